"""How long do `show`, `list` and `resume` of a study with ten thousand trials take, and how much memory?

Each is a process of its own, start-up included; wall time and, for a machine that is not quiet, CPU time. Resuming is
of a study that has all its trials: everything is read, the tuner gets its history, study.json is written again.

    python -m benchmarks.study.large [--trials 10000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.study.listing import SETTINGS, facts_of
from memfit.study.folder import create
from memfit.study.storage.interface import fact
from memfit.study.storage.sqlite import SqliteStorage

TARGETS = {"show": 2.0, "list": 2.0, "resume": 5.0}
MOST_BYTES = 500 * 10**6


def make_study(folder: Path, trials: int) -> None:
    """A study that has all the trials it was asked for."""
    where = create(folder, "")
    storage = SqliteStorage(folder / where.storage)
    settings = msgspec.structs.replace(SETTINGS, max_trials=trials)
    rows = [fact(0, "study", "study", settings), *(each for number in range(trials) for each in facts_of(number))]
    storage.append(where.study_id, rows)
    storage.close()


def run(words: list[str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak bytes of one command."""
    began = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen([sys.executable, "-m", "memfit", "study", *words], stdout=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> int:
    """Measure, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    reached = True
    with tempfile.TemporaryDirectory(prefix="memfit-large-") as name:
        folder = Path(name) / "study"
        make_study(folder, options.trials)
        print(f"{options.trials} trials{'wall, s':>14}{'CPU, s':>10}{'memory, MB':>14}{'target':>18}")
        for verb, target in TARGETS.items():
            words = [verb, str(folder), *(["--no-figures", "-q"] if verb == "resume" else [])]
            rounds = [run(words) for _ in range(options.rounds)]
            wall, cpu = statistics.median(each[0] for each in rounds), statistics.median(each[1] for each in rounds)
            memory = max(each[2] for each in rounds)
            print(f"{verb:<12}{wall:>16.2f}{cpu:>10.2f}{memory / 1e6:>14.0f}{f'below {target:g} s':>18}")
            reached &= wall < target and memory < MOST_BYTES
    print(f"memory below {MOST_BYTES / 1e6:.0f} MB and times: {'all reached' if reached else 'not all reached'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
