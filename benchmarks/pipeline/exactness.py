"""Random chains: the exact planner beside an exhaustive search, and the integer program beside the exact planner."""

from __future__ import annotations

import math
import time
from random import Random

from benchmarks.plans.report import Claim
from memfit.plan.pipeline.case import PipelineCase
from memfit.plan.pipeline.ilp.scipy_schedule import best_schedule
from memfit.plan.pipeline.partition import exact_contiguous
from memfit.plan.pipeline.planners import judge
from memfit.plan.pipeline.schedule.steady import copies_at, elements_of
from memfit.records.pipeline import RankLink
from memfit.testing.oracles.pipeline_search import best_contiguous, made_pipeline_chain


def made_case(seed: int) -> PipelineCase:
    """Two to seven layers on one to four ranks; links slow or free, half and full duplex; ranks alike or not.

    A link that is nearly free would make periods that differ by less than the solver's tolerance.
    """
    random = Random(seed)
    chain = made_pipeline_chain(random, random.randint(2, 7))
    num_ranks = random.randint(1, min(4, len(chain.layers)))
    limits = [random.randint(15, 140)] * num_ranks
    if random.random() < 0.3:
        limits = [random.randint(15, 140) for _ in limits]
    link = RankLink(
        bytes_per_second=random.choice((1.0, 3.0, 10.0, 1e30)), latency_seconds=random.choice((0.0, 0.5)),
        full_duplex=random.random() < 0.4,
    )  # fmt: skip
    return PipelineCase(chain, tuple(limits), link)


def exact_period(case: PipelineCase) -> float:
    """Of the exact planner, replayed; infinity when nothing fits."""
    proposal = exact_contiguous(case)
    outcome = None if proposal is None else judge(case, proposal)
    return math.inf if outcome is None else outcome.period_seconds


def oracle_claims(number: int) -> list[Claim]:
    """The same period as an exhaustive search, or the same answer that nothing fits."""
    equal = fits = 0
    worst = 0.0
    for seed in range(number):
        case = made_case(seed)
        found = exact_period(case)
        expected = best_contiguous(case.chain, case.limits_bytes, case.link)
        fits += expected < math.inf
        off = 0.0 if found == expected else abs(found / expected - 1) if expected < math.inf else math.inf
        worst = max(worst, off)
        equal += off <= 1e-7
    tried = f"{number} chains, {fits} of which fit"
    return [Claim("the exact planner is exact", tried, f"{equal} equal, worst {worst:.1e}", equal == number)]


def solver_claims(number: int) -> list[Claim]:
    """The solver attains the period and never a shorter one, also not with one copy less."""
    solved = equal = better = lowered = attained = 0
    slowest = 0.0
    for seed in range(number):
        case = made_case(seed)
        proposal = exact_contiguous(case)
        outcome = None if proposal is None else judge(case, proposal)
        if proposal is None or outcome is None:
            continue
        started = time.process_time()
        placed = best_schedule(case, proposal.stages)
        slowest = max(slowest, time.process_time() - started)
        solved += 1
        period = math.inf if placed is None else placed.period_seconds
        equal += abs(period / outcome.period_seconds - 1) <= 1e-5
        better += period < outcome.period_seconds * (1 - 1e-5)
        counts = copies_at(elements_of(case, proposal.stages), outcome.period_seconds)
        for stage in (index for index, count in enumerate(counts) if count > 1):
            fewer = [count - (index == stage) for index, count in enumerate(counts)]
            again = best_schedule(case, proposal.stages, most_copies=fewer)
            lowered += 1
            attained += again is not None and again.period_seconds <= outcome.period_seconds * (1 + 1e-6)
    return [
        Claim("the solver attains the exact period", f"{solved} chains", f"{equal} equal", equal == solved),
        Claim("the solver never beats it", f"{solved} chains", f"{better} shorter", better == 0),
        Claim("one copy less never keeps the period", f"{lowered} counts", f"{attained} kept it", attained == 0),
        Claim("slowest program", f"{solved} chains", f"{slowest:.2f} s of CPU", None),
    ]
