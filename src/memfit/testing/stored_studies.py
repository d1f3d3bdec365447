"""Made studies, realistic without any trial, for tests, demonstrations and benchmarks.

A made study is stored through the same storage as a real one. All numbers follow from the seed. Memory grows with the
batch, layers and width; the loss has its best learning rate; some trials fail, run out of memory or are rejected.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from memfit.records.figure import measured, unknown
from memfit.records.study import (
    Branch,
    Choice,
    Integers,
    Intermediate,
    MemoryRule,
    Nested,
    Proposal,
    SearchSpace,
    Span,
    Study,
    StudySettings,
    TrialOutcome,
    TrialOutcomeKind,
    TrialRecord,
)
from memfit.study.folder import Where, create, find, storage_of
from memfit.study.storage.facts import Fact, Proposed, fact
from memfit.testing.made_runs import MadeRun, write_made_run
from memfit.units import MIB

LIMIT_BYTES = 1600 * MIB
SPACE = SearchSpace(
    parameters=(
        Span(name="lr", low=1e-5, high=1e-1, log=True),
        Choice(name="batch_size", options=(16, 32, 64, 128)),
        Choice(name="optimizer", options=("adam", "sgd", "adafactor")),
        Integers(name="layers", low=1, end=13),
        Nested(
            name="model",
            branches=(
                Branch(name="conv", parameters=(Integers(name="width", low=8, end=257),)),
                Branch(name="mlp", parameters=(Span(name="dropout", low=0, high=0.6),)),
            ),
        ),
    )
)


def made_study(num_trials: int, *, seed: int = 1, num_reports: int = 8, num_wanted: int | None = None) -> Study:
    """A study in memory."""
    rng = random.Random(seed)
    memory = MemoryRule(use="limit", limit_bytes=LIMIT_BYTES)
    wanted = num_trials if num_wanted is None else num_wanted
    settings = StudySettings(name="made-study", space=SPACE, workload="mlp", memory=memory, max_trials=wanted)
    trials = tuple(_trial(number, rng, num_reports) for number in range(num_trials))
    return Study(study_id="made0001", settings=settings, trials=trials, created_at="2026-03-14T09:26:53+00:00")


def _trial(number: int, rng: random.Random, num_reports: int) -> TrialRecord:
    point = _point(rng)
    width = point["model"].get("width", 40)  # pyright: ignore[reportAttributeAccessIssue]
    work = point["batch_size"] * point["layers"] * width / 190  # pyright: ignore[reportOperatorIssue]
    peak_bytes = int(MIB * (180 + work * (1.4 if point["optimizer"] == "adam" else 1.0) + rng.gauss(0, 4)))
    loss = abs(math.log10(float(point["lr"])) + 2.6) * 0.3 + 0.9 / point["layers"] + 6 / width + rng.gauss(0, 0.04)  # pyright: ignore
    kind, message = _ending(peak_bytes, rng)
    done, why = kind == "done", message or "the trial did not end well"
    return TrialRecord(
        proposal=Proposal(number=number, parameters=point),
        outcome=TrialOutcome(kind=kind, message=message),
        trial_id=f"{number:05d}"[-5:],
        metric=loss if done else None,
        metric_reason="" if done else why,
        intermediates=tuple(
            Intermediate(sequence=report, value=loss * (1 + 2 / (report + 1))) for report in range(num_reports * done)
        ),
        peak=measured(peak_bytes, "bytes", "made") if kind in ("done", "out of memory") else unknown("bytes", why),
        duration=unknown("seconds", why)
        if kind == "rejected by prediction"
        else measured(3 + work / 40 + rng.random(), "seconds", "made"),
        started_at="2026-03-14T09:26:53+00:00",
        ended_at="2026-03-14T09:27:53+00:00",
        end_order=number,
    )


def _point(rng: random.Random) -> dict[str, object]:
    is_conv = rng.random() < 0.6
    model = (
        {"_name": "conv", "width": rng.randint(8, 256)} if is_conv else {"_name": "mlp", "dropout": 0.6 * rng.random()}
    )
    return {
        "lr": 10 ** rng.uniform(-5, -1),
        "batch_size": rng.choice((16, 32, 64, 128)),
        "optimizer": rng.choice(("adam", "sgd", "adafactor")),
        "layers": rng.randint(1, 12),
        "model": model,
    }


def _ending(peak_bytes: int, rng: random.Random) -> tuple[TrialOutcomeKind, str]:
    if peak_bytes > LIMIT_BYTES:
        return "out of memory", "the kernel ended it"
    if rng.random() < 0.02:
        return "failed", "exit code 1: ValueError: loss is nan"
    if peak_bytes > 0.8 * LIMIT_BYTES and rng.random() < 0.5:
        return "rejected by prediction", "predicted to need more than the limit"
    return "done", ""


# ---- on disk ---------------------------------------------------------------------------------------------------------


def write_made_study(folder: str | Path, study: Study, *, runs_of: Sequence[int] = ()) -> Path:
    """Store a study as `memfit study` does, with made runs of some of its trials."""
    path = Path(folder)
    where = create(path, "")
    begin = [fact(0, "study", "study", study.settings)]
    append_facts(path, where, begin)
    add_trials(path, study.trials, runs_of=runs_of)
    return path


def add_trials(folder: Path, trials: Sequence[TrialRecord], *, runs_of: Sequence[int] = ()) -> None:
    """Add trials to a stored study, as they end."""
    import msgspec

    where = find(folder)
    assert where is not None
    facts: list[Fact] = []
    for trial in trials:
        if trial.number in runs_of:
            place = f"trials/{trial.number:05d}"
            write_made_run(folder / place / "run", MadeRun(seconds=4.0, seed=trial.number, startup_seconds=1.0))
            trial = msgspec.structs.replace(trial, run_folder=f"{place}/run")
        first = Proposed(proposal=trial.proposal, trial_id=trial.trial_id)
        number = trial.number
        facts.append(fact(2 * number + 1, f"proposed-{number}", "proposed", first, number))
        facts.append(fact(2 * number + 2, f"ended-{number}", "ended", trial, number))
    append_facts(folder, where, facts)


def append_facts(folder: Path, where: Where, facts: list[Fact]) -> None:
    """Store facts in the study's own database."""
    storage = storage_of(folder, where)
    try:
        storage.append(where.study_id, facts)
    finally:
        storage.close()
