"""How long does it take to show and to draw a study of ten thousand trials, and how much memory?

The study has six hyperparameters, one of them a branch with parameters of its own, ten intermediate results per trial,
trials that failed, ran out of memory or were rejected, and the sizes of networks that follow a law. Each line is a
process of its own, start-up included, with the kernel's high-water mark of its memory.

    python -m benchmarks.study.figures [--trials 10000] [--rounds 3] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memfit.testing.made_records.studies import made_study, write_made_study

TARGETS = {"study show": (2.0, 500.0), "study show, to a file": (2.0, 500.0), "figures": (10.0, 500.0)}


def run_process(words: list[str]) -> tuple[float, float, float, str]:
    """Seconds, seconds of CPU, MB at the highest, and the output of one process."""
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, output[-500:]
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - began, cpu_seconds, usage.ru_maxrss * 1024 / 1e6, output


def main() -> int:
    """Measure, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="leave the study and its figures in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memfit-bench-") as name:
        folder = options.keep or Path(name) / "study"
        if not folder.exists():
            write_made_study(folder, made_study(options.trials))
        met = [_line(what, folder, options.trials, options.rounds) for what in TARGETS]
    return 0 if all(met) else 1


def _line(what: str, folder: Path, trials: int, rounds: int) -> bool:
    draw = "import memfit, sys; print(*memfit.draw_study(memfit.read_study(sys.argv[1])))"
    words = {
        "study show": ["-m", "memfit", "study", "show", str(folder), "--json"],
        "study show, to a file": ["-m", "memfit", "study", "show", str(folder)],
        "figures": ["-c", draw, str(folder)],
    }[what]
    found = [run_process([sys.executable, *words]) for _ in range(rounds)]
    if what == "study show, to a file":
        lines = found[0][3].splitlines()
        assert sum("lr=" in line and "activation=" in line for line in lines) == trials, "a trial lost a hyperparameter"
    seconds, megabytes = sorted(each[0] for each in found), max(each[2] for each in found)
    cpu_seconds = min(each[1] for each in found)
    most_seconds, most_megabytes = TARGETS[what]
    middle = seconds[len(seconds) // 2]
    name = what + (" --json" if what == "study show" else "")
    timed = f"{middle:>7.2f} s ({seconds[0]:.2f}-{seconds[-1]:.2f}; target < {most_seconds:g}), CPU {cpu_seconds:.2f} s"
    print(f"{name:<24}{trials:>7} trials {timed}, {megabytes:.0f} MB (target < {most_megabytes:g})")
    return middle < most_seconds and megabytes < most_megabytes


if __name__ == "__main__":
    sys.exit(main())
