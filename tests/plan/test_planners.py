"""Does every planner keep one contract: a plan that fits, is valid, keeps its promise and beats no optimal one?"""

from __future__ import annotations

from random import Random

import pytest

from memfit.errors import DoesNotFit, UsageError
from memfit.plan.case import Case
from memfit.plan.planners import (
    PLANNERS,
    compare_planners,
    make_plan,
    replay_plan,
    trace_frontier,
)
from memfit.plan.recompute.rules import equal_segments, greedy_ends
from memfit.records.plan import Chain, Checkpoint, Link
from memfit.testing.contracts.planner import DISK, PlannerContract
from memfit.testing.made_records.chains import even_chain, narrowing_chain, rough_chain


@pytest.mark.parametrize("planner", [pytest.param(planner, id=name) for name, planner in PLANNERS.items()])
class TestEveryPlanner(PlannerContract):
    """Those that have a name pass what any planner passes."""


@pytest.mark.parametrize("name", list(PLANNERS))
def test_a_named_planner_promises_alone_what_it_promises_in_a_comparison_and_in_a_replay(name: str):
    chain = narrowing_chain(9)
    budget_bytes = round(Case(chain, 1).nested.plain.peak_bytes * 0.88)
    candidate = compare_planners(chain, budget_bytes, link=DISK, names=[name])[0]
    if not candidate.fits:
        with pytest.raises(DoesNotFit):
            make_plan(chain, budget_bytes, link=DISK, planner=name)
        return
    plan = make_plan(chain, budget_bytes, link=DISK, planner=name)
    assert (plan.seconds, plan.peak_bytes) == (candidate.seconds, candidate.peak_bytes)
    again = replay_plan(plan)
    assert (again.seconds, again.peak_bytes) == (plan.seconds, plan.peak_bytes)
    assert plan.lower_bound_seconds <= plan.seconds


@pytest.mark.parametrize("make", [even_chain, narrowing_chain])
@pytest.mark.parametrize("share", [0.35, 0.6, 0.9])
def test_no_rule_beats_the_planner_of_its_family(make, share: float):
    chain: Chain = make(10)
    case = Case(chain, 1)
    base = case.sizes.base_bytes
    budget_bytes = base + round((case.nested.plain.peak_bytes - base) * share)
    found = {candidate.solver: candidate for candidate in compare_planners(chain, budget_bytes, link=DISK)}
    best = {"checkpoint": "nested", "offload": "offload", "combined": "combined"}
    for name, candidate in found.items():
        if candidate.seconds is not None:
            for winner in {best[PLANNERS[name].family], "combined"}:
                seconds = found[winner].seconds
                assert seconds is not None, f"{name} fits, {winner} does not"
                assert seconds <= candidate.seconds * (1 + 1e-9), f"{name} beats {winner}"


def test_candidates_that_do_not_fit_come_last_with_what_they_need():
    chain = even_chain(8)
    low = Case(chain, 1).nested.least.peak_bytes
    found = compare_planners(chain, low)
    fits = [candidate.fits for candidate in found]
    assert fits == sorted(fits, reverse=True)
    keep_all = next(candidate for candidate in found if candidate.solver == "keep all")
    assert keep_all.peak_bytes == Case(chain, 1).nested.found(Case(chain, 1).kept).peak_bytes
    assert "more than the budget" in keep_all.reason


@pytest.mark.parametrize("link", [None, DISK])
def test_the_smallest_budget_is_the_least_that_fits(link: Link | None):
    chain = rough_chain(Random(5), 9)
    with pytest.raises(DoesNotFit) as caught:
        make_plan(chain, chain.fixed.total_bytes + 5, link=link)
    smallest = caught.value.needed_bytes
    assert smallest is not None
    plan = make_plan(chain, smallest, link=link)
    assert plan.peak_bytes == smallest == plan.smallest_budget_bytes
    with pytest.raises(DoesNotFit):
        make_plan(chain, smallest - 1, link=link)


def test_a_refusal_says_what_is_alive_all_the_time():
    chain = even_chain(4)
    with pytest.raises(DoesNotFit, match="alive all the time") as caught:
        make_plan(chain, chain.fixed.total_bytes // 2)
    assert caught.value.exit_code == 3


def test_the_frontier_of_both_together_lies_below_that_of_recomputing():
    chain = narrowing_chain(7)
    both, alone = trace_frontier(chain, link=DISK, num_points=6), trace_frontier(chain, num_points=6)
    assert both[0].peak_bytes <= alone[0].peak_bytes
    for point in alone:
        assert any(p.peak_bytes <= point.peak_bytes and p.seconds <= point.seconds * 1.02 for p in both)


def test_equal_segments_keep_the_last_run_and_share_the_others():
    nodes = equal_segments(even_chain(18), 3)
    runs = [len(node.inside) for node in nodes if isinstance(node, Checkpoint)]
    assert runs == [6, 6]
    assert len(nodes) == 2 + 6


def test_greedy_segments_close_when_the_threshold_is_exceeded():
    assert greedy_ends([3, 3, 3, 9, 1, 1], 5) == [2, 4]
    assert greedy_ends([1, 1], 10) == []


def test_a_planner_without_a_plan_says_precisely_why():
    chain = even_chain(6)
    plain_bytes = Case(chain, 1).nested.plain.peak_bytes
    tight_bytes = chain.fixed.total_bytes + 1
    found = {c.solver: c.reason for c in compare_planners(chain, plain_bytes, link=DISK, names=["vDNN conv"])}
    assert found == {"vDNN conv": "no stage is a convolution with a stage before it"}
    alone = compare_planners(chain, plain_bytes // 2, names=["offload all", "POFO"])
    assert {candidate.reason for candidate in alone} == {"there is no link to move over"}
    tight = compare_planners(chain, tight_bytes, link=DISK, names=["offload fluid"])[0]
    assert "plans of its kind need" in tight.reason


def test_an_unknown_planner_is_a_usage_error_that_names_the_others():
    with pytest.raises(UsageError, match="nested"):
        make_plan(even_chain(3), 10**9, planner="magic")
