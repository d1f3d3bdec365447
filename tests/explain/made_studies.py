"""Made studies: random hyperparameters, and memory by a rule that the test knows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from memfit.records.figure import measured, unknown
from memfit.records.study import (
    Choice,
    Proposal,
    SearchSpace,
    Study,
    StudySettings,
    TrialOutcome,
    TrialOutcomeKind,
    TrialRecord,
)
from memfit.units import MIB

Rule = Callable[[dict[str, Any], int], float]
"""From hyperparameters and place in the order to MiB beyond the base."""

SETTINGS = StudySettings(name="made", space=SearchSpace(parameters=(Choice(name="a", options=(1,)),)), workload="mlp")
START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)


def drawn(random: np.random.Generator) -> dict[str, Any]:
    """One point of the usual space."""
    return {
        "lr": float(np.exp(random.uniform(np.log(1e-4), 0))),
        "batch_size": int(random.choice([16, 32, 64, 128, 256])),
        "width": int(random.integers(32, 512)),
        "optimizer": str(random.choice(["adam", "sgd", "rmsprop"])),
        "dropout": float(random.uniform(0, 0.5)),
    }


def made_trial(
    number: int,
    parameters: dict[str, Any],
    memory_mib: float | None,
    *,
    kind: TrialOutcomeKind = "done",
    background_mib: float | None = None,
    hours: float | None = None,
    others: dict[str, Any] | None = None,
) -> TrialRecord:
    """One trial."""
    started = "" if hours is None else (START + timedelta(hours=hours)).isoformat()
    return TrialRecord(
        proposal=Proposal(number=number, parameters=parameters),
        outcome=TrialOutcome(kind=kind),
        peak=unknown("bytes", "no number") if memory_mib is None else measured(memory_mib * MIB, "bytes", "VmHWM"),
        background=unknown("bytes", "none")
        if background_mib is None
        else measured(background_mib * MIB, "bytes", "mean"),
        started_at=started,
        others=others or {},
    )


def made_study(
    rule: Rule = lambda row, place: 0.0,
    *,
    seed: int = 0,
    num_trials: int = 40,
    noise_mib: float = 5.0,
    rows: list[dict[str, Any]] | None = None,
    background: Callable[[int], float] | None = None,
    hours_each: float = 0.5,
    sizes: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Study:
    """A study of 1000 MiB, the rule, and normal noise."""
    random = np.random.default_rng(seed)
    rows = rows or [drawn(random) for _ in range(num_trials)]
    trials = []
    for place, row in enumerate(rows):
        memory = 1000 + rule(row, place) + random.normal(0, noise_mib)
        extra = None if background is None else background(place)
        others = sizes(row) if sizes else None
        hours = place * hours_each
        trials.append(made_trial(place, row, memory, background_mib=extra, hours=hours, others=others))
    return Study(study_id="made", settings=SETTINGS, trials=tuple(trials))
