"""What does memfit's stand-in for `nni` cost a trial, beside the bare interpreter?

Interleaved rounds of processes; CPU time of each by the kernel's own accounting, so that load matters little:

    bare         python -c pass
    shim         import nni, get the parameters, report one intermediate and one final result
    10 000       the same with 10 000 intermediate results, timed inside

    python -m benchmarks.study.shim [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from memfit.records.study import Proposal
from memfit.study.trials.files import ReportReader, trial_environment, write_parameters

TRIAL = """
import nni
parameters = nni.get_next_parameter()
nni.report_intermediate_result(parameters["lr"])
nni.report_final_result({"default": 0.5, "loss": 1.25})
"""
MANY = """
import nni, time
nni.get_next_parameter()
began = time.perf_counter(), time.process_time()
for step in range(10_000):
    nni.report_intermediate_result(step / 10_000)
print(time.perf_counter() - began[0], time.process_time() - began[1])
"""
PROGRAMS = {"bare": "pass", "json alone": "import json; json.loads('1')", "shim": TRIAL}
MOST_ADDED_SECONDS = 0.025
MOST_SECONDS_FOR_MANY = 1.0


def cpu_seconds(program: str, environment: dict[str, str]) -> float:
    """CPU time of one process running a program, start and end included."""
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"the program ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def prepare(folder: Path) -> dict[str, str]:
    """A trial's folder and environment, as a study makes them."""
    write_parameters(folder, Proposal(number=0, parameters={"lr": 0.1}))
    return trial_environment(
        os.environ, folder=folder, code_folder=folder, study_id="bench", trial_id="aaaaa", number=0
    )


def added_cpu_seconds(num_rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each program, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        environment = prepare(Path(folder))
        for program in PROGRAMS.values():
            cpu_seconds(program, environment)  # compiled files are written in the first run
        seen: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        for _ in range(num_rounds):
            for name, program in PROGRAMS.items():
                seen[name].append(cpu_seconds(program, environment))
        return seen


def seconds_for_many() -> tuple[float, float, int]:
    """Wall and CPU seconds of 10 000 intermediate results, and how many of them arrived."""
    with tempfile.TemporaryDirectory() as folder:
        environment = prepare(Path(folder))
        done = subprocess.run([sys.executable, "-c", MANY], env=environment, capture_output=True, text=True, check=True)
        wall, cpu = (float(word) for word in done.stdout.split())
        return wall, cpu, len(ReportReader(Path(folder)).read_new())


def main(num_rounds: int = 25) -> None:
    """Print both figures beside what is allowed."""
    seen = added_cpu_seconds(num_rounds)
    bare = statistics.median(seen["bare"])
    for name, times in seen.items():
        middle = statistics.median(times)
        print(f"{name:<12} {middle * 1e3:7.1f} ms of CPU  (+{(middle - bare) * 1e3:.1f} ms over bare)")
    print(f"allowed      {MOST_ADDED_SECONDS * 1e3:7.1f} ms over bare")
    wall, cpu, num_arrived = seconds_for_many()
    print(f"10 000 intermediate results: {wall:.3f} s, {cpu:.3f} s of CPU, {num_arrived} arrived (allowed 1 s)")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
