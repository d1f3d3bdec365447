"""PipeDream's profiles: published splits, seconds of the planners, other cuts beside the exact one, shared ranks."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence

from benchmarks.plans.report import Claim
from memfit.errors import DoesNotFit
from memfit.plan.pipeline import pipedream
from memfit.plan.pipeline.case import PipelineCase
from memfit.plan.pipeline.ilp.scipy_planners import special_plan
from memfit.plan.pipeline.ilp.scipy_schedule import best_schedule
from memfit.plan.pipeline.partition import exact_contiguous
from memfit.plan.pipeline.planners import PLANNERS, candidate_of, judge
from memfit.records.pipeline import PipelineChain, RankLink
from memfit.reproduce.pipelining import memory_sizes

Chains = Mapping[str, PipelineChain]
LINK = RankLink(bytes_per_second=12e9)
RANKS = (2, 4, 8)
GIGABYTES = (4, 6, 8, 12, 16)
PUBLISHED = {"vgg16": "3-1", "alexnet": "3-1", "resnet50": "2-2", "gnmt": "1-1-1-1"}
OTHERS = ("PipeDream straight", "ranks-behind rule", "balanced time", "equal layers", "equal parameters")


def split_claims(chains: Chains) -> list[Claim]:
    """PipeDream's partitioner on four GPUs at 1 GB/s."""
    claims = []
    for name, expected in PUBLISHED.items():
        if name not in chains:
            continue
        case = PipelineCase(chains[name], (10**14,) * 4, RankLink(bytes_per_second=1e9))
        proposal = pipedream.replicated(case)
        assert proposal is not None
        found = "-".join(str(stage.num_replicas) for stage in proposal.stages)
        alone = sum(layer.forward_seconds + layer.backward_seconds for layer in case.chain.layers)
        speed = f"{found}, {alone / pipedream.predicted_period(case):.2f} times one GPU"
        claims.append(Claim(f"{name}: published {expected}", "4 GPUs, 1 GB/s", speed, found == expected))
    return claims


def speed_claims(chains: Chains) -> list[Claim]:
    """CPU seconds of the exact planner over ranks and memory, and of the integer program for its cut."""
    claims = []
    import scipy.optimize  # noqa: F401  (its loading takes seconds and is no planning)

    for name, chain in chains.items():
        exact: list[float] = []
        solver: list[float] = []
        for num_ranks in RANKS:
            for size in memory_sizes(chain, num_ranks, LINK):
                case = PipelineCase(chain, (size,) * num_ranks, LINK)
                started = time.process_time()
                proposal = exact_contiguous(case)
                exact.append(time.process_time() - started)
                if proposal is not None and num_ranks == 4:
                    started = time.process_time()
                    best_schedule(case, proposal.stages)
                    solver.append(time.process_time() - started)
        tried = f"{len(chain.layers)} layers, {len(exact)} cases"
        claims.append(
            Claim(f"{name}: exact below 0.2 s", tried, f"at most {max(exact):.3f} s of CPU", max(exact) < 0.2)
        )
        claims.append(
            Claim(
                f"{name}: program below 2 s",
                f"{len(solver)} cuts",
                f"at most {max(solver):.2f} s of CPU",
                max(solver) < 2,
            )
        )
    return claims


def rule_claims(chains: Chains) -> list[Claim]:
    """Periods of other cuts over the exact one, each with its best schedule within the same memory."""
    image = {name: chain for name, chain in chains.items() if name in ("vgg16", "resnet50")}
    claims = []
    for other in OTHERS:
        claims.append(_side_by_side(other, chains, RANKS, None, "4 profiles, 2 4 8 ranks, least to enough"))
        claims.append(_side_by_side(other, chains, RANKS, GIGABYTES, "4 profiles, 2 4 8 ranks, 4 to 16 GB"))
        claims.append(_side_by_side(other, image, (4, 8), GIGABYTES, "vgg16, resnet50, 4 8 ranks, 4 to 16 GB"))
    return claims


def _side_by_side(
    other: str, chains: Chains, ranks: Sequence[int], gigabytes: Sequence[int] | None, words: str
) -> Claim:
    ratios, missing, number = [], 0, 0
    for chain, num_ranks in itertools.product(chains.values(), ranks):
        sizes = memory_sizes(chain, num_ranks, LINK) if gigabytes is None else [g * 10**9 for g in gigabytes]
        for size in sizes:
            found = _ratio(PipelineCase(chain, (size,) * num_ranks, LINK), other)
            if found is not None:
                number += 1
                missing += found == 0
                ratios += [found] if found else []
    result = f"x {statistics.median(ratios):.2f} median, x {max(ratios):.2f} worst, no fit in {missing} of {number}"
    return Claim(other, words, result, min(ratios) >= 1 - 1e-6)


def _ratio(case: PipelineCase, other: str) -> float | None:
    """The period of a cut over the exact one; 0 when only the exact one fits, None when nothing does."""
    best = exact_contiguous(case)
    outcome = None if best is None else judge(case, best)
    if outcome is None:
        return None
    found = candidate_of(case, PLANNERS[other])
    return 0.0 if found.period_seconds is None else found.period_seconds / outcome.period_seconds


def shared_claims(chains: Chains) -> list[Claim]:
    """One rank with several stages beside the exact contiguous plan, four ranks."""
    claims = []
    for name, chain in chains.items():
        gains, slowest = [], 0.0
        for size in memory_sizes(chain, 4, LINK)[1:4]:
            case = PipelineCase(chain, (size,) * 4, LINK)
            started = time.process_time()
            try:
                plan = special_plan(case, baselines=False)
            except DoesNotFit:
                continue
            slowest = max(slowest, time.process_time() - started)
            exact = candidate_of(case, PLANNERS["exact"])
            gains.append((exact.period_seconds or plan.period_seconds) / plan.period_seconds - 1)
        said = ", ".join(f"{gain:+.1%}" for gain in gains)
        claims.append(Claim(f"{name}: gain by a shared rank", f"{len(gains)} sizes", f"{said}; {slowest:.0f} s", None))
    return claims
