"""What does a trivial trial cost, from one end to the next: bare, under Optuna alone, under memfit, under NNI?

Interleaved rounds of N trials that read their parameters and report one result; the figure is wall time per trial,
start-up of the coordinator included, so every arm pays for its own. memfit measures the memory of each trial
meanwhile; the others do not. NNI runs where an environment has it (--nni PYTHON); its time ends when it says that
the experiment is done.

    python -m benchmarks.study.overhead [--trials 10] [--rounds 3] [--nni /path/to/python]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TRIAL = """
import nni
nni.report_final_result(nni.get_next_parameter()["x"])
"""
SPACE = '{"x": {"_type": "uniform", "_value": [0, 1]}}'
OPTUNA = """
import subprocess, sys, optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(storage=sys.argv[2] or None, sampler=optuna.samplers.RandomSampler())
for _ in range(int(sys.argv[1])):
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    subprocess.run([sys.executable, "-c", "print(%r)" % x], check=True, stdout=subprocess.DEVNULL)
    study.tell(trial, x)
"""
NNI = """
import sys, time
from nni.experiment import Experiment
experiment = Experiment("local")
experiment.config.trial_command = sys.argv[2] + " trial.py"
experiment.config.trial_code_directory = "."
experiment.config.experiment_working_directory = "experiments"
experiment.config.search_space = {"x": {"_type": "uniform", "_value": [0, 1]}}
experiment.config.tuner.name = "Random"
experiment.config.max_trial_number = int(sys.argv[1])
experiment.config.trial_concurrency = 1
experiment.start(int(sys.argv[3]))
while experiment.get_status() not in ("DONE", "ERROR"):
    time.sleep(0.2)
print(experiment.get_status())
experiment.stop()
"""
LEAST_RATIO = 10.0


class Unfinished(Exception):
    """A peer that did not get to its end; the round is left out."""


def bare(folder: Path, trials: int) -> None:
    """Nothing but the processes."""
    for _ in range(trials):
        subprocess.run([sys.executable, "-c", "pass"], check=True)


def optuna_alone(folder: Path, trials: int) -> None:
    """Ask, a process, tell; a database file, nothing measured."""
    storage = f"sqlite:///{folder / 'optuna.db'}"
    subprocess.run([sys.executable, "-c", OPTUNA, str(trials), storage], check=True, stderr=subprocess.DEVNULL)


def memfit(folder: Path, trials: int) -> None:
    """A whole study, measured and stored."""
    words = ["--space", "space.json", "--tuner", "Random", "--trials", str(trials), "-q", "--no-figures", "-o", "study"]
    command = [sys.executable, "-m", "memfit", "study", *words, "--", sys.executable, "trial.py"]
    subprocess.run(command, cwd=folder, check=True)


def nni(folder: Path, trials: int, python: str) -> None:
    """A whole experiment, until NNI says that it is done."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NNI_")}
    # The tuner runs as `python`, which must be the one that has nni.
    environment["PATH"] = f"{Path(python).parent}{os.pathsep}{environment.get('PATH', '')}"
    command = [python, "-c", NNI, str(trials), python, str(18000 + os.getpid() % 2000)]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, env=environment)
    if "DONE" not in done.stdout.split():
        raise Unfinished("its tuner did not connect in time" if "ERROR" in done.stdout.split() else done.stderr[-300:])


def seconds_per_trial(arm: Callable[[Path, int], None], trials: int) -> float:
    """One round of one arm in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="memfit-bench-") as name:
        folder = Path(name)
        (folder / "trial.py").write_text(TRIAL)
        (folder / "space.json").write_text(SPACE)
        began = time.perf_counter()
        arm(folder, trials)
        return (time.perf_counter() - began) / trials


def main() -> int:
    """Measure, print, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nni", help="the Python of an environment with nni")
    options = parser.parse_args()
    arms: dict[str, Callable[[Path, int], None]] = {
        "bare process": bare,
        "Optuna alone": optuna_alone,
        "memfit": memfit,
    }
    if options.nni:
        arms["NNI"] = lambda folder, trials: nni(folder, trials, options.nni)
    else:
        print("NNI: skipped, no environment with it was given (--nni PYTHON)")
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        try:
            times = {name: seconds_per_trial(arm, options.trials) for name, arm in arms.items()}
        except Unfinished as error:
            print(f"NNI did not finish, the round is left out: {error}")
            continue
        for name, seconds in times.items():
            found[name].append(seconds)
    if not found["memfit"]:
        print("no round was finished by every arm")
        return 1
    print(f"{'arm':<16}{'ms per trial (median)':>24}{'lowest':>10}{'highest':>10}")
    for name, times in found.items():
        low, high = min(times) * 1000, max(times) * 1000
        print(f"{name:<16}{statistics.median(times) * 1000:>24.0f}{low:>10.0f}{high:>10.0f}")
    return verdict(found)


def verdict(found: dict[str, list[float]]) -> int:
    """The ratio to NNI of every round, and whether the median reaches the target."""
    if "NNI" not in found:
        return 0
    ratios = [theirs / ours for theirs, ours in zip(found["NNI"], found["memfit"], strict=True)]
    ratio = statistics.median(ratios)
    print(f"NNI takes {ratio:.1f} times as long as memfit (target: at least {LEAST_RATIO:g})")
    return 0 if ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
