"""How long does it take to store the facts of a trial, and to list a thousand trials?

Storing: the three facts of one trial (proposed, started, ended), each committed, in memfit's table on SQLite (WAL,
flushed at every commit; and unflushed, for comparison), and the same trial in Optuna's journal file and in Optuna's
SQLite storage. Listing: `memfit study show` of a study with a thousand finished trials, as a process, start-up
included.

    python -m benchmarks.study.listing [--trials 1000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from memfit.records.figure import measured
from memfit.records.study import Intermediate, Proposal, SearchSpace, Span, StudySettings, TrialOutcome, TrialRecord
from memfit.study.folder import create
from memfit.study.storage.interface import Fact, Proposed, Started, fact
from memfit.study.storage.sqlite import SqliteStorage

SETTINGS = StudySettings(
    name="listing", space=SearchSpace(parameters=(Span(name="x", low=0, high=1), Span(name="y", low=0, high=1))),
    command="python trial.py",
)  # fmt: skip
STORED_TRIALS = 50
MOST_SECONDS = 1.0


def facts_of(number: int) -> list[Fact]:
    """What a real trial with ten intermediate results leaves."""
    proposal = Proposal(number=number, parameters={"x": 0.1, "y": 0.2}, draws={"x": 0.1, "y": 0.2})
    figure = measured(4.5e8, "bytes", "kernel high-water mark, every reset kept, read at exit")
    ended = TrialRecord(
        proposal=proposal, trial_id="abcde", outcome=TrialOutcome(kind="done", message="exit code 0"), metric=0.5,
        intermediates=tuple(Intermediate(sequence=step, value=0.1, time_seconds=step) for step in range(10)),
        peak=figure, average=figure, background=figure, duration=measured(3.2, "seconds", "from start to end"),
        end_order=number,
    )  # fmt: skip
    place = 3 * number + 1
    started = Started(attempt=1, folder=f"trials/{number:05d}", started_at="2026-01-01T00:00:00+00:00")
    return [
        fact(place, f"p{number}", "proposed", Proposed(proposal=proposal, trial_id="abcde"), number),
        fact(place + 1, f"s{number}.1", "started", started, number),
        fact(place + 2, f"e{number}", "ended", ended, number),
    ]


def store_facts(folder: Path, *, flushed: bool) -> float:
    """Milliseconds per trial in memfit's own table."""
    storage = SqliteStorage(folder / f"facts-{flushed}.db")
    storage.append("s", [fact(0, "study", "study", SETTINGS)])
    if not flushed:
        storage._open(create=True).execute("PRAGMA synchronous = NORMAL")
    rows = [each for number in range(STORED_TRIALS) for each in facts_of(number)]
    began = time.perf_counter()
    for each in rows:
        storage.append("s", [each])
    took = time.perf_counter() - began
    storage.close()
    return took * 1000 / STORED_TRIALS


def optuna_trials(make_storage: Callable[[], object]) -> float:
    """Milliseconds per trial of ask, suggest, ten reports and tell."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=make_storage(), sampler=optuna.samplers.RandomSampler())  # pyright: ignore[reportArgumentType]
    began = time.perf_counter()
    for _ in range(STORED_TRIALS):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.suggest_float("y", 0, 1)
        for step in range(10):
            trial.report(0.1, step)
        study.tell(trial, 0.5)
    return (time.perf_counter() - began) * 1000 / STORED_TRIALS


def journal(folder: Path) -> float:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna_trials(lambda: JournalStorage(JournalFileBackend(str(folder / "journal.log"))))


def optuna_sqlite(folder: Path) -> float:
    return optuna_trials(lambda: f"sqlite:///{folder / 'optuna.db'}")


def make_study(folder: Path, trials: int) -> None:
    """A finished study with so many trials."""
    where = create(folder, "")
    storage = SqliteStorage(folder / where.storage)
    rows = [fact(0, "study", "study", SETTINGS)]
    storage.append(where.study_id, rows + [each for number in range(trials) for each in facts_of(number)])
    storage.close()


def list_trials(folder: Path, *, as_json: bool) -> float:
    """Seconds of one `memfit study show`."""
    words = ["show", str(folder), *(["--json"] if as_json else [])]
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "memfit", "study", *words], check=True, capture_output=True, text=True)
    took = time.perf_counter() - began
    shown = len(json.loads(done.stdout)["trials"]) if as_json else done.stdout.count("x=0.1")
    assert shown >= 100, done.stdout[:500]
    return took


def main() -> int:
    """Measure, print, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    arms: dict[str, Callable[[Path], float]] = {
        "memfit, SQLite WAL, flushed": lambda folder: store_facts(folder, flushed=True),
        "memfit, SQLite WAL, unflushed": lambda folder: store_facts(folder, flushed=False),
        "Optuna's journal file": journal,
        "Optuna's SQLite storage": optuna_sqlite,
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, arm in arms.items():
            with tempfile.TemporaryDirectory(prefix="memfit-bench-") as folder:
                found[name].append(arm(Path(folder)))
    print(f"{'storing one trial':<34}{'ms (median)':>12}{'lowest':>10}{'highest':>10}")
    for name, times in found.items():
        print(f"{name:<34}{statistics.median(times):>12.2f}{min(times):>10.2f}{max(times):>10.2f}")
    with tempfile.TemporaryDirectory(prefix="memfit-bench-") as name:
        folder = Path(name) / "study"
        make_study(folder, options.trials)
        times = [list_trials(folder, as_json=False) for _ in range(options.rounds)]
    print(f"listing {options.trials} trials: {min(times):.2f} to {max(times):.2f} s (target: below {MOST_SECONDS:g} s)")
    return 0 if statistics.median(times) < MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
