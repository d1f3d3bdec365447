"""How right is the peak a tool reports, how much does it add to the job, and how much of the peak can it name?

Whole programs through the real command lines. The truth is the kernel's high-water mark, read by the program itself.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.overhead.options import Options
from benchmarks.overhead.report import Part
from benchmarks.overhead.samplers import HERE
from benchmarks.overhead.whole_runs_report import MEMFIT, MEMFIT_LEDGER, PLAIN, Run, judge
from memfit.explain.run.ledger import explain_peak
from memfit.runfolder.reader import read_run

NUM_STEPS = 100
NUM_STEPS_TRACED = 20
JOB = str(HERE / "torch_peak_job.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
"""glibc's moving mmap threshold makes equal runs differ by 7 %; it is pinned for all of them alike."""


def measure(options: Options) -> Part:
    """Every tool once in each round, in a new order each time."""
    draw = random.Random(options.seed)
    runs: dict[str, list[Run]] = {name: [] for name in TOOLS}
    for _ in range(options.count(quick=1, full=3)):
        for name in draw.sample(list(TOOLS), len(TOOLS)):
            options.quiet.wait()
            with tempfile.TemporaryDirectory(prefix="memfit-bench-") as folder:
                runs[name].append(TOOLS[name](Path(folder)))
    return judge(runs)


def _job(folder: Path, tool: str | None = None) -> list[str]:
    num_steps = NUM_STEPS if tool is None else NUM_STEPS_TRACED
    return [sys.executable, JOB, str(folder / "answer.json"), str(num_steps), *([tool] if tool else [])]


def _call(command: list[str], folder: Path) -> None:
    """Run to the end; a tool that fails is no result."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command[:6])} ... ended with code {done.returncode}:\n{done.stderr[-2000:]}")


def environment() -> dict[str, str]:
    top = str(HERE.parents[1])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{top}{os.pathsep}{path}" if path else top}


def _answer(folder: Path) -> dict[str, int]:
    return json.loads((folder / "answer.json").read_text())


def _result(folder: Path, reported_bytes: float | None = None, named_share: float | None = None) -> Run:
    true_bytes = _answer(folder)["true_peak_bytes"]
    return Run(true_bytes=true_bytes, reported_bytes=reported_bytes, named_share=named_share)


# ---- the tools -----------------------------------------------------------------------------------------------------


def _plain(folder: Path) -> Run:
    _call(_job(folder), folder)
    return _result(folder)


def _memfit(*arguments: str) -> Callable[[Path], Run]:
    def run(folder: Path) -> Run:
        options = ["-q", "--no-report", *arguments, "-o", str(folder / "run")]
        _call([sys.executable, "-m", "memfit", "measure", *options, "--", *_job(folder)], folder)
        record = read_run(folder / "run")
        ledgers = explain_peak(record)
        return _result(folder, record.peak.value, ledgers[0].explained_ratio if ledgers else None)

    return run


def _mprof(folder: Path) -> Run:
    _call([sys.executable, "-m", "mprof", "run", "-T", "0.1", "-o", "mprof.dat", *_job(folder)], folder)
    lines = (folder / "mprof.dat").read_text().splitlines()
    return _result(folder, max(float(line.split()[1]) for line in lines if line.startswith("MEM ")) * 1024**2)


def _psrecord(folder: Path) -> Run:
    command = "exec " + shlex.join(_job(folder))  # without exec, psrecord watches a shell
    _call([sys.executable, "-m", "psrecord", command, "--log", "psrecord.txt"], folder)
    lines = [line.split() for line in (folder / "psrecord.txt").read_text().splitlines() if not line.startswith("#")]
    return _result(folder, max(float(fields[2]) for fields in lines) * 1024**2)


def _psutil(folder: Path) -> Run:
    with subprocess.Popen(_job(folder), cwd=folder, env=environment()) as job:
        arguments = [str(job.pid), "0.01", "largest.txt"]
        watcher = subprocess.Popen([sys.executable, str(HERE / "psutil_sampler.py"), *arguments], cwd=folder)
        watcher.wait()
    return _result(folder, int((folder / "largest.txt").read_text()))


def _memray(folder: Path) -> Run:
    memray = importlib.import_module("memray")
    _call([sys.executable, "-m", "memray", "run", "-q", "-o", "heap.bin", *_job(folder)[1:]], folder)
    with memray.FileReader(str(folder / "heap.bin")) as reader:
        peak_bytes = reader.metadata.peak_memory
    return _result(folder, peak_bytes, peak_bytes / _answer(folder)["true_peak_bytes"])


def _inside(tool: str) -> Callable[[Path], Run]:
    def run(folder: Path) -> Run:
        _call(_job(folder, tool), folder)
        answer = _answer(folder)
        return _result(folder, answer["tensor_peak_bytes"], answer["tensor_peak_bytes"] / answer["true_peak_bytes"])

    return run


TOOLS: dict[str, Callable[[Path], Run]] = {
    PLAIN: _plain,
    MEMFIT: _memfit(),
    MEMFIT_LEDGER: _memfit("--ledger"),
    "psutil, own process, 10 ms": _psutil,
    "mprof, 100 ms": _mprof,
    "psrecord, default": _psrecord,
    "memray (heap)": _memray,
    "MemTracker (tensors)": _inside("MemTracker"),
    "torch.profiler (tensors)": _inside("torch.profiler"),
}
