"""Made studies: a search space with a branch, trials that end in every way, memory that follows a known law."""

from __future__ import annotations

import math
import random
from pathlib import Path

from memfit.records.figure import measured
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
from memfit.study.folder import create
from memfit.study.storage.facts import Fact, Proposed, Started, fact
from memfit.study.storage.sqlite import SqliteStorage

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


def write_made_study(folder: Path, trials: tuple[TrialRecord, ...]) -> None:
    """A finished study in a folder, as its coordinator would have left it."""
    where = create(folder, "")
    storage = SqliteStorage(folder / where.storage)
    facts: list[Fact] = [fact(0, "study", "study", MADE_SETTINGS)]
    for trial in trials:
        n = trial.number
        begun = Started(attempt=1, folder=f"trials/{n:05d}", started_at=trial.started_at)
        facts.append(
            fact(3 * n + 1, f"p{n}", "proposed", Proposed(proposal=trial.proposal, trial_id=trial.trial_id), n)
        )
        facts.append(fact(3 * n + 2, f"s{n}.1", "started", begun, n))
        facts.append(fact(3 * n + 3, f"e{n}", "ended", trial, n))
    storage.append(where.study_id, facts)
    storage.close()
