"""How many runs die of memory, depending on what the tuner is told about the ones that did?

An invented training with four hyperparameters (batch, width, depth, learning rate): larger is better, memory is limited
to 16 GiB, and about 69 % of the space does not fit. Every arm gets the same number of suggestions. It says how the
telling works, nothing about a real model.

    random               random search: the base rate
    told as failed       the tuner is told that the trial failed
    no constraint        control: the trial's true value is told, and nothing about memory
    constraint           told as infeasible
    predictor P %        points whose predicted peak is above the limit are rejected before they start; P is the
                         deviation of the predictor's error on a logarithmic scale

    python -m benchmarks.study.constraint_toy [SEEDS [SUGGESTIONS]]
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from memfit.records.figure import Figure, measured
from memfit.records.study import (
    Choice,
    Goal,
    Integers,
    MemoryRule,
    Proposal,
    SearchSpace,
    Span,
    StudySettings,
    Tool,
    TrialOutcome,
    TrialRecord,
)
from memfit.study.engine.engine import SearchEngine
from memfit.units import GIB

LIMIT_BYTES = 16 * GIB
SPACE = SearchSpace(
    parameters=(
        Choice(name="batch", options=(8, 16, 32, 64, 128, 256)),
        Span(name="width", low=128, high=2048, log=True, step=1.0, whole=True),
        Integers(name="depth", low=2, end=49),
        Span(name="lr", low=1e-5, high=1e-1, log=True),
    )
)


def peak_bytes(point: dict[str, float]) -> float:
    """Weights, gradients and two moments, and the activations of a transformer-like network of 2048 tokens."""
    weights = 12 * point["depth"] * point["width"] ** 2
    activations = 34 * point["batch"] * 2048 * point["width"] * point["depth"]
    return 16 * weights + activations + 0.5 * GIB


def score(point: dict[str, float]) -> float:
    """Larger networks and batches are better, with a best learning rate; between 0 and 1."""
    size = math.log(point["width"] * point["depth"]) / math.log(2048 * 48)
    batch = math.log(point["batch"]) / math.log(256)
    rate = math.exp(-(math.log10(point["lr"] / 1e-3) ** 2))
    return 0.5 * size + 0.2 * batch + 0.3 * rate


@dataclass(frozen=True, slots=True)
class Result:
    """What one arm with one seed did."""

    num_started: int
    num_out_of_memory: int
    best: float
    num_fitting_refused: int


def _trial(proposal: Proposal, kind: str, predicted_bytes: float | None = None) -> TrialRecord:
    peak: dict[str, Figure] = {}
    if kind != "rejected by prediction":
        peak["peak"] = measured(peak_bytes(proposal.parameters), "bytes", "invented")
    if predicted_bytes is not None:
        peak["predicted_peak"] = Figure(value=predicted_bytes, unit="bytes", source="predicted")
    metric = score(proposal.parameters) if kind == "done" else None
    return TrialRecord(proposal=proposal, outcome=TrialOutcome(kind=kind), metric=metric, **peak)  # pyright: ignore[reportArgumentType]


def _fits(proposal: Proposal) -> bool:
    return peak_bytes(proposal.parameters) <= LIMIT_BYTES


def told_as_infeasible(proposal: Proposal) -> TrialRecord:
    return _trial(proposal, "done" if _fits(proposal) else "out of memory")


def told_as_failed(proposal: Proposal) -> TrialRecord:
    return _trial(proposal, "done" if _fits(proposal) else "failed")


def told_as_done(proposal: Proposal) -> TrialRecord:
    return _trial(proposal, "done")


def run_arm(
    tuner: str,
    tell: Callable[[Proposal], TrialRecord],
    *,
    seed: int,
    num_suggestions: int,
    limited: bool = True,
    predictor_error: float | None = None,
) -> Result:
    """Give one arm its suggestions; a rejected point is a suggestion, but no run."""
    memory = MemoryRule(use="limit", limit_bytes=LIMIT_BYTES) if limited else MemoryRule()
    arguments = {"tpe_args": {"n_startup_jobs": 10}} if tuner == "TPE" else {}
    engine = SearchEngine(
        StudySettings(
            space=SPACE,
            tuner=Tool(name=tuner, arguments=arguments),
            goal=Goal(direction="maximize"),
            memory=memory,
            seed=seed,
        )
    )
    noise = np.random.default_rng([seed, 4242])
    started = died = refused = 0
    best = -math.inf
    for _ in range(num_suggestions):
        proposal = engine.ask()
        assert proposal is not None
        predicted = None
        if predictor_error is not None:
            predicted = peak_bytes(proposal.parameters) * math.exp(noise.normal(0, predictor_error))
        if predicted is not None and predicted > LIMIT_BYTES:
            refused += _fits(proposal)
            engine.tell(_trial(proposal, "rejected by prediction", predicted))
            continue
        started += 1
        died += not _fits(proposal)
        best = max(best, score(proposal.parameters)) if _fits(proposal) else best
        engine.tell(tell(proposal))
    return Result(started, died, best, refused)


ARMS: dict[str, dict[str, Any]] = {
    "random": {"tuner": "Random", "tell": told_as_failed},
    "told as failed": {"tuner": "TPE", "tell": told_as_failed},
    "no constraint": {"tuner": "TPE", "tell": told_as_done, "limited": False},
    "constraint": {"tuner": "TPE", "tell": told_as_infeasible},
    "predictor 0 %": {"tuner": "TPE", "tell": told_as_infeasible, "predictor_error": 0.0},
    "predictor 10 %": {"tuner": "TPE", "tell": told_as_infeasible, "predictor_error": 0.1},
    "predictor 30 %": {"tuner": "TPE", "tell": told_as_infeasible, "predictor_error": 0.3},
}


def share_that_does_not_fit(num_points: int = 20_000) -> float:
    """How much of the space is above the limit."""
    from memfit.study.space.random_points import generator_for, random_draws
    from memfit.study.space.space import parameters_of

    generator = generator_for(0, 0)
    points = (parameters_of(SPACE, random_draws(SPACE, generator)) for _ in range(num_points))
    return sum(peak_bytes(point) > LIMIT_BYTES for point in points) / num_points


def main(num_seeds: int = 8, num_suggestions: int = 80) -> None:
    """Print the table."""
    print(
        f"{share_that_does_not_fit():.0%} of the space does not fit; {num_suggestions} suggestions, {num_seeds} seeds"
    )
    print(
        f"{'arm':<16} {'started':>8} {'out of memory: median, range, share of starts':>48} {'best':>12} {'refused':>8}"
    )
    for name, arm in ARMS.items():
        results = [run_arm(**arm, seed=seed, num_suggestions=num_suggestions) for seed in range(num_seeds)]
        died = [result.num_out_of_memory for result in results]
        share = sum(died) / sum(result.num_started for result in results)
        best = [result.best for result in results]
        started = statistics.median(result.num_started for result in results)
        refused = statistics.median(result.num_fitting_refused for result in results)
        middle = f"{statistics.median(died):g}, {min(died)}-{max(died)}, {share:.1%}"
        print(f"{name:<16} {started:>8g} {middle:>48} {statistics.mean(best):>12.3f} {refused:>8g}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
