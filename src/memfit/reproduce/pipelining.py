"""Statements on pipelined model parallelism (Beaumont, Eyraud-Dubois and Shilova, 2021), judged on profiles. Pure.

The work models the memory of pipelines, studies how hard it is to maximise throughput within it, and states the
problem as an integer linear program. Its abstract is at hand, its full text is not: the statements are in our words,
and each verdict is on what was run here. Profiles are given from outside; random chains and hard instances are made
here.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from random import Random

from memfit.errors import DoesNotFit
from memfit.plan.pipeline.case import PipelineCase, PipelineProposal
from memfit.plan.pipeline.partition import exact_contiguous, fewest_bytes
from memfit.plan.pipeline.planners import PLANNERS, candidate_of, judge, plan_pipeline
from memfit.records.pipeline import Layer, PipelineChain, RankLink
from memfit.records.reproduction import PipelineComparison, PipeliningResult, Statement
from memfit.reproduce.statements import judged
from memfit.units import format_bytes, format_seconds

SOURCE = (
    "Beaumont, Eyraud-Dubois and Shilova, Pipelined model parallelism: complexity results and memory considerations, "
    "2021"
)
SHORT = "Beaumont, Eyraud-Dubois and Shilova"
RANKS = (2, 4, 8)
NUM_SIZES = 5
BLIND, RULE = "PipeDream straight", "ranks-behind rule"
SAME = 1e-5
"""Relative; periods that differ by less are equal."""

MEMORY_SAYS = (
    "beside the weights, a pipeline keeps activations of several micro-batches, most of them on the first ranks"
)
COUNT_SAYS = "how many are kept follows from the schedule; counting one for each rank behind is not right in general"
EXACT_SAYS = "for a given contiguous allocation the best periodic schedule is found by a greedy rule"
ILP_SAYS = "an integer linear program finds the best schedule of any given allocation"
HARD_SAYS = "without contiguity, finding the best allocation is as hard as packing bins, even without memory limits"
SHARED_SAYS = "giving one rank several stages can be faster than one stage on each"
BLIND_SAYS = "cuts that ignore memory are slower within the same memory"
TOO_FEW = "no chain can be cut into as many stages as there are ranks; other networks or profiles"
SAID = (MEMORY_SAYS, COUNT_SAYS, EXACT_SAYS, ILP_SAYS, HARD_SAYS, SHARED_SAYS, BLIND_SAYS)


# ---- memory sizes and cuts side by side ------------------------------------------------------------------------


def memory_sizes(chain: PipelineChain, num_ranks: int, link: RankLink, number: int = NUM_SIZES) -> list[int]:
    """Sizes from a little above the least that fits to what the fastest pipeline needs, evenly by their ratio."""
    free = PipelineCase(chain, (1 << 60,) * num_ranks, link)
    least = fewest_bytes(free)
    plan = plan_pipeline(free, baselines=False)
    most = max(max(rank.total_bytes for rank in plan.ranks), round(least * 1.1))
    low = least * 1.02
    return [round(low * (most / low) ** (index / (number - 1))) for index in range(number)]


def num_pieces(chain: PipelineChain) -> int:
    """How many stages a chain can be cut into."""
    return 1 + sum(not layer.no_cut_because for layer in chain.layers[:-1])


def compare_rules(
    chains: Mapping[str, PipelineChain], link: RankLink, progress: Callable[[str, float], None]
) -> tuple[PipelineComparison, ...]:
    """The exact planner beside memory-blind cuts and the fixed rule, over ranks and memory sizes."""
    wanted = [(name, ranks) for name in chains for ranks in RANKS]
    rows = []
    for index, (name, num_ranks) in enumerate(wanted):
        progress(f"{name} on {num_ranks} ranks", index / len(wanted))
        chain = chains[name]
        if num_ranks > num_pieces(chain):
            continue
        for size in memory_sizes(chain, num_ranks, link):
            rows.append(_compared(name, PipelineCase(chain, (size,) * num_ranks, link)))
    return tuple(rows)


def _compared(name: str, case: PipelineCase) -> PipelineComparison:
    exact = candidate_of(case, PLANNERS["exact"])
    blind, rule = candidate_of(case, PLANNERS[BLIND]), candidate_of(case, PLANNERS[RULE])
    return PipelineComparison(
        chain=name, num_ranks=case.num_ranks, memory_bytes=case.limits_bytes[0], exact_seconds=exact.period_seconds,
        blind_seconds=blind.period_seconds, rule_seconds=rule.period_seconds,
    )  # fmt: skip


def ratios(rows: Sequence[PipelineComparison], which: str) -> list[float]:
    """Periods of one cut over those of the exact planner, where both fit."""
    pairs = ((getattr(row, which), row.exact_seconds) for row in rows)
    return [other / own for other, own in pairs if other is not None and own]


# ---- random chains and hard instances --------------------------------------------------------------------------


def random_case(seed: int) -> PipelineCase:
    """A chain of three to five layers on two or three ranks, of a few bytes and seconds."""
    random = Random(seed)
    layers = tuple(_random_layer(random, index) for index in range(random.randint(3, 5)))
    link = RankLink(bytes_per_second=random.choice((2.0, 1e9)), full_duplex=random.random() < 0.4)
    limit = random.randint(40, 120)
    return PipelineCase(PipelineChain(layers=layers), (limit,) * random.randint(2, 3), link)


def _random_layer(random: Random, index: int) -> Layer:
    size = random.randint(0, 8)
    return Layer(
        name=f"layer{index}", forward_seconds=random.randint(1, 9) / 4, backward_seconds=random.randint(1, 17) / 4,
        parameter_bytes=size, gradient_bytes=size, output_bytes=random.randint(0, 6), saved_bytes=random.randint(1, 9),
    )  # fmt: skip


def solver_against_exact(num_cases: int) -> tuple[int, int, int]:
    """How many random cases fit, in how many the solver attains the exact period, in how many it is shorter."""
    from memfit.plan.pipeline.ilp.scipy_schedule import best_schedule

    num_fit = num_equal = num_better = 0
    for seed in range(num_cases):
        case = random_case(seed)
        proposal = exact_contiguous(case)
        outcome = None if proposal is None else judge(case, proposal)
        if proposal is None or outcome is None:
            continue
        num_fit += 1
        placed = best_schedule(case, proposal.stages)
        period = math.inf if placed is None else placed.period_seconds
        num_equal += abs(period / outcome.period_seconds - 1) <= SAME
        num_better += period < outcome.period_seconds * (1 - SAME)
    return num_fit, num_equal, num_better


PACKING = ((3, 1, 4, 2, 5, 3), (5, 1, 1, 5, 1, 5), (7, 1, 1, 1, 1, 1), (2, 2, 2, 2, 2, 4))
"""Loads of six layers for two ranks."""


def solve_packing(loads: Sequence[int]) -> tuple[float, float, float]:
    """The shortest period by the joint integer program, by trying all ways to share out, and with contiguous stages."""
    from memfit.plan.pipeline.ilp.scipy_joint import joint_allocation
    from memfit.plan.pipeline.ilp.scipy_schedule import best_schedule

    layers = tuple(
        Layer(
            name=f"item{index}", forward_seconds=load / 2, backward_seconds=load / 2, parameter_bytes=0,
            gradient_bytes=0, output_bytes=0, saved_bytes=0,
        )
        for index, load in enumerate(loads)
    )  # fmt: skip
    case = PipelineCase(PipelineChain(layers=layers), (1 << 40,) * 2, RankLink(bytes_per_second=1e12))
    stages, _ = joint_allocation(case)
    placed = None if stages is None else best_schedule(case, stages)
    subsets = itertools.product((0, 1), repeat=len(loads))
    packed = min(max(_side(loads, side), sum(loads) - _side(loads, side)) for side in subsets)
    contiguous = judge(case, exact_contiguous(case) or PipelineProposal(()))
    assert contiguous is not None
    return math.inf if placed is None else placed.period_seconds, packed, contiguous.period_seconds


def _side(loads: Sequence[int], side: Sequence[int]) -> int:
    return sum(load for load, taken in zip(loads, side, strict=True) if taken)


def shared_ranks(
    chains: Mapping[str, PipelineChain], link: RankLink, progress: Callable[[str, float], None], num_ranks: int = 4
) -> tuple[PipelineComparison, ...]:
    """The exact contiguous plan beside the best with a shared rank, where memory is short."""
    from memfit.plan.pipeline.ilp.scipy_planners import special_plan

    rows = []
    for index, (name, chain) in enumerate(chains.items()):
        progress(f"{name} with a shared rank", index / len(chains))
        for size in memory_sizes(chain, num_ranks, link)[1:4] if num_pieces(chain) >= num_ranks else ():
            case = PipelineCase(chain, (size,) * num_ranks, link)
            try:
                plan = special_plan(case, baselines=False)
            except DoesNotFit:
                continue
            exact = candidate_of(case, PLANNERS["exact"])
            rows.append(
                PipelineComparison(
                    chain=name, num_ranks=num_ranks, memory_bytes=size, exact_seconds=exact.period_seconds,
                    shared_seconds=plan.period_seconds,
                )
            )  # fmt: skip
    return tuple(rows)


# ---- verdicts --------------------------------------------------------------------------------------------------


def statements_on(
    found: PipeliningResult, chains: Mapping[str, PipelineChain], link: RankLink
) -> tuple[Statement, ...]:
    """Every statement with its evidence and verdict."""
    memory, fall, off = _memory_evidence(chains, link)
    solver = found.num_solved is not None
    needs = "" if solver else "the integer programs need scipy: pip install 'memfit[ilp]'"
    return (
        judged(MEMORY_SAYS, SHORT, evidence=memory, holds=fall if memory else None, reason="" if memory else TOO_FEW),
        _on_counts(found, off),
        _on_solver(EXACT_SAYS, found, needs, "the greedy rule has the period of the integer program in"),
        _on_solver(ILP_SAYS, found, needs, "the integer program attains the exact period in"),
        _on_packing(found, needs),
        _on_shared(found, needs),
        _on_blind(found),
    )


def _memory_evidence(chains: Mapping[str, PipelineChain], link: RankLink) -> tuple[list[str], bool, list[str]]:
    """Of the fastest pipeline on four ranks: activations against weights, and copies against ranks behind."""
    lines, fall, off = [], True, []
    for name, chain in chains.items():
        if num_pieces(chain) < 4:
            continue
        plan = plan_pipeline(PipelineCase(chain, (1 << 60,) * 4, link), baselines=False)
        copies = [stage.in_flight for stage in plan.cut.stages]
        first = {part.name: part.num_bytes for part in plan.ranks[0].parts}
        weights = sum(layer.parameter_bytes for layer in chain.layers)
        kept = first.get("activations in flight", 0)
        lines.append(
            f"{name}: rank 0 keeps {format_bytes(kept)} of activations, all weights are {format_bytes(weights)}; "
            f"micro-batches in flight {', '.join(map(str, copies))}"
        )
        fall = fall and copies == sorted(copies, reverse=True) and copies[0] > 1
        rule = list(range(len(copies), 0, -1))
        if copies != rule:
            off.append(f"{name}: {', '.join(map(str, copies))} in flight instead of {', '.join(map(str, rule))}")
    return lines, fall and bool(lines), off


def _on_counts(found: PipeliningResult, off: Sequence[str]) -> Statement:
    by_rule = ratios(found.comparisons, "rule_seconds")
    missing = sum(row.exact_seconds is not None and row.rule_seconds is None for row in found.comparisons)
    lines = list(off)
    if by_rule:
        lines.append(
            f"planned by the fixed rule: {statistics.median(by_rule):.2f} times the exact period in the median, "
            f"{max(by_rule):.2f} at worst, no plan in {missing} of {len(found.comparisons)} cases that have one"
        )
    if not found.comparisons:
        return judged(COUNT_SAYS, SHORT, evidence=lines, holds=None, reason=TOO_FEW)
    is_off = bool(off) or missing > 0 or max(by_rule, default=1) > 1 + SAME
    return judged(COUNT_SAYS, SHORT, evidence=lines, holds=is_off)


def _on_solver(says: str, found: PipeliningResult, needs: str, words: str) -> Statement:
    if needs or found.num_solved is None:
        return judged(says, SHORT, evidence=(), holds=None, reason=needs)
    line = f"{words} {found.num_equal} of {found.num_solved} random chains, and a shorter one in {found.num_better}"
    return judged(says, SHORT, evidence=[line], holds=found.num_equal == found.num_solved and not found.num_better)


def _on_packing(found: PipeliningResult, needs: str) -> Statement:
    if needs:
        return judged(HARD_SAYS, SHORT, evidence=(), holds=None, reason=needs)
    lines = [
        f"loads {', '.join(map(str, loads))}: {joint:.4g} by program, {packed:.4g} by packing, {near:.4g} contiguous"
        for loads, joint, packed, near in found.packing
    ]
    agree = all(abs(joint - packed) <= SAME * packed for _, joint, packed, _ in found.packing)
    lines.append("the shortest period is the fullest bin of the best packing: instances, no proof of hardness")
    return judged(HARD_SAYS, SHORT, evidence=lines, holds=agree)


def _on_shared(found: PipeliningResult, needs: str) -> Statement:
    if needs:
        return judged(SHARED_SAYS, SHORT, evidence=(), holds=None, reason=needs)
    gains = [
        (row.exact_seconds / row.shared_seconds - 1, row)
        for row in found.shared
        if row.exact_seconds and row.shared_seconds
    ]
    better = [(gain, row) for gain, row in gains if gain > 1e-4]
    lines = [f"faster in {len(better)} of {len(gains)} cases, four ranks, memory between the least and enough"]
    lines += [
        f"{row.chain}, {format_bytes(row.memory_bytes)}: {format_seconds(row.exact_seconds or 0)} contiguous, "
        f"{format_seconds(row.shared_seconds or 0)} with a shared rank"
        for _, row in sorted(better, key=lambda pair: -pair[0])[:4]
    ]
    reason = "" if better else "none of these cases gains; other networks or sizes of memory may"
    return judged(SHARED_SAYS, SHORT, evidence=lines, holds=True if better else None, reason=reason)


def _on_blind(found: PipeliningResult) -> Statement:
    blind = ratios(found.comparisons, "blind_seconds")
    missing = sum(row.exact_seconds is not None and row.blind_seconds is None for row in found.comparisons)
    if not blind:
        return judged(BLIND_SAYS, SHORT, evidence=(), holds=None, reason="no cut that ignores memory fits anywhere")
    lines = [
        f"{statistics.median(blind):.2f} times the exact period in the median of {len(blind)} cases, {max(blind):.2f} "
        f"at worst; {missing} more cases have a plan that the blind cut does not fit"
    ]
    return judged(BLIND_SAYS, SHORT, evidence=lines, holds=statistics.median(blind) > 1 + SAME)
