"""Made studies, realistic without any trial, for tests, demonstrations and benchmarks; all numbers follow from a seed.

    made_study         memory follows a known law; trials stand above the limit, fail or are stopped early
    made_mixed_study   memory grows with batch, layers and width; trials fail, run out of memory or are rejected

`write_made_study` stores either through the same storage as a real one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memfit.records.figure import measured, unknown
from memfit.records.study import (
    Branch,
    Choice,
    Goal,
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
from memfit.study.storage.interface import Fact, Proposed, Started, fact
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.units import MIB

WIDTHS = (8, 16, 64, 100, 256, 1024)
BATCHES = (16, 32, 64, 128, 256)
MADE_SPACE = SearchSpace(
    parameters=(
        Span(name="lr", low=1e-5, high=1e-1, log=True),
        Choice(name="batch_size", options=BATCHES),
        Choice(name="hidden", options=WIDTHS),
        Integers(name="layers", low=1, end=7),
        Nested(
            name="optimizer",
            branches=(
                Branch(name="sgd", parameters=(Span(name="momentum", low=0.0, high=0.99),)),
                Branch(name="adam"),
            ),
        ),
        Choice(name="activation", options=("relu", "gelu", "tanh")),
    )
)
MADE_SETTINGS = StudySettings(
    name="made study", space=MADE_SPACE, command="python train.py --epochs 10", goal=Goal(direction="minimize"),
    memory=MemoryRule(use="limit", limit_bytes=640 * 2**20),
)  # fmt: skip
BASE_BYTES, PER_PARAMETER, PER_ACTIVATION = 370 * 2**20, 16.0, 8.0


def made_trial(number: int, chance: random.Random) -> TrialRecord:
    """One trial of a made training: memory by a law, a loss with a valley in the learning rate."""
    lr, batch, width = 10 ** chance.uniform(-5, -1), chance.choice(BATCHES), chance.choice(WIDTHS)
    layers, is_sgd = chance.randrange(1, 7), chance.random() < 0.5
    optimizer = {"_name": "sgd", "momentum": chance.uniform(0, 0.99)} if is_sgd else {"_name": "adam"}
    point = {
        "lr": lr, "batch_size": batch, "hidden": width, "layers": layers, "optimizer": optimizer,
        "activation": chance.choice(("relu", "gelu", "tanh")),
    }  # fmt: skip
    num_parameters = 784 * width + (layers - 1) * width * width + 10 * width
    num_activations = layers * width + 10
    peak = BASE_BYTES + PER_PARAMETER * num_parameters + PER_ACTIVATION * batch * num_activations
    peak += chance.gauss(0, 0.4 * 2**20)
    loss = 0.25 + 0.12 * (math.log10(lr) + 2.7) ** 2 + 0.6 / math.sqrt(width) + abs(chance.gauss(0, 0.03))
    kind = _kind(peak, chance)
    has_size = kind in ("done", "stopped early")
    reports = 10 if kind == "done" else chance.randrange(0, 6)
    curve = [loss + 2 * math.exp(-0.5 * step) * (1 + 0.2 * chance.random()) for step in range(reports)]
    return TrialRecord(
        proposal=Proposal(number=number, parameters=point), trial_id=f"t{number}",
        outcome=TrialOutcome(kind=kind, message="exit code 1" if kind == "failed" else ""),
        metric=curve[-1] if kind == "done" else None,
        others={"num_parameters": num_parameters, "num_activations": num_activations} if has_size else {},
        intermediates=tuple(
            Intermediate(sequence=step, value=value, time_seconds=1.0 + step) for step, value in enumerate(curve)
        ),
        peak=measured(peak, "bytes", "kernel high-water mark, read at the end"),
        average=measured(peak * 0.8, "bytes", "mean over time"),
        background=measured(2.0e9, "bytes", "mean over time"),
        duration=measured(12.5, "seconds", "from start to end"), epoch_time=measured(1.0, "seconds", "median"),
        started_at="2026-01-01T00:00:00+00:00", end_order=number, run_folder=f"trials/{number:05d}/run",
        notes=("another trial ran beside it",) if number % 7 == 0 else (),
    )  # fmt: skip


def _kind(peak_bytes: float, chance: random.Random) -> TrialOutcomeKind:
    limit_bytes = MADE_SETTINGS.memory.limit_bytes
    if limit_bytes is not None and peak_bytes > limit_bytes:
        return "over the limit"
    return "failed" if chance.random() < 0.02 else "stopped early" if chance.random() < 0.03 else "done"


def made_trials(count: int, seed: int = 0) -> tuple[TrialRecord, ...]:
    """So many trials, the same whenever they are made."""
    chance = random.Random(seed)
    return tuple(made_trial(number, chance) for number in range(count))


def made_study(count: int, seed: int = 0) -> Study:
    """A finished study of so many trials."""
    moment = "2026-01-01T00:00:00+00:00"
    return Study(study_id="made", settings=MADE_SETTINGS, trials=made_trials(count, seed), created_at=moment)


# ---- trials that fail, run out of memory and are rejected ------------------------------------------------------------

MIXED_LIMIT_BYTES = 1600 * MIB
MIXED_SPACE = SearchSpace(
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


def made_mixed_study(num_trials: int, *, seed: int = 1, num_reports: int = 8, num_wanted: int | None = None) -> Study:
    """A study in which trials fail, run out of memory and are rejected; `num_wanted` are asked for."""
    rng = random.Random(seed)
    memory = MemoryRule(use="limit", limit_bytes=MIXED_LIMIT_BYTES)
    wanted = num_trials if num_wanted is None else num_wanted
    settings = StudySettings(name="made-study", space=MIXED_SPACE, workload="mlp", memory=memory, max_trials=wanted)
    trials = tuple(_mixed_trial(number, rng, num_reports) for number in range(num_trials))
    return Study(study_id="made0001", settings=settings, trials=trials, created_at="2026-03-14T09:26:53+00:00")


def _mixed_trial(number: int, rng: random.Random, num_reports: int) -> TrialRecord:
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
    if peak_bytes > MIXED_LIMIT_BYTES:
        return "out of memory", "the kernel ended it"
    if rng.random() < 0.02:
        return "failed", "exit code 1: ValueError: loss is nan"
    if peak_bytes > 0.8 * MIXED_LIMIT_BYTES and rng.random() < 0.5:
        return "rejected by prediction", "predicted to need more than the limit"
    return "done", ""


# ---- on disk ---------------------------------------------------------------------------------------------------------


def write_made_study(folder: str | Path, study: Study, *, runs_of: Sequence[int] = ()) -> Path:
    """Store a study as its coordinator would have left it, with made runs of some of its trials."""
    path = Path(folder)
    where = create(path, "")
    append_facts(path, where, [fact(0, "study", "study", study.settings)])
    add_trials(path, study.trials, runs_of=runs_of)
    return path


def add_trials(folder: Path, trials: Sequence[TrialRecord], *, runs_of: Sequence[int] = ()) -> None:
    """Add trials to a stored study, as they end."""
    where = find(folder)
    assert where is not None
    facts: list[Fact] = []
    for trial in trials:
        number, place = trial.number, f"trials/{trial.number:05d}"
        if number in runs_of:
            write_made_run(folder / place / "run", MadeRun(seconds=4.0, seed=number, startup_seconds=1.0))
            trial = msgspec.structs.replace(trial, run_folder=f"{place}/run")
        first = Proposed(proposal=trial.proposal, trial_id=trial.trial_id)
        begun = Started(attempt=1, folder=place, started_at=trial.started_at)
        facts.append(fact(3 * number + 1, f"p{number}", "proposed", first, number))
        facts.append(fact(3 * number + 2, f"s{number}.1", "started", begun, number))
        facts.append(fact(3 * number + 3, f"e{number}", "ended", trial, number))
    append_facts(folder, where, facts)


def append_facts(folder: Path, where: Where, facts: list[Fact]) -> None:
    """Store facts in the study's own database."""
    storage = storage_of(folder, where)
    try:
        storage.append(where.study_id, facts)
    finally:
        storage.close()
