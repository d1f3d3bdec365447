"""Does a plan say truly what sets its peak, what each decision gives, and when no plan can help?"""

from __future__ import annotations

import msgspec
import pytest

from memfit.plan.case import Case
from memfit.plan.levers import half_precision, split_batch, without_optimizer_state
from memfit.plan.planners import levers_for, make_plan
from memfit.plan.problem.program import lower
from memfit.plan.problem.simulator import simulate
from memfit.plan.problem.transfers import Room
from memfit.plan.reasons import least_budget_bytes
from memfit.records.plan import Chain, Link, Stage
from memfit.testing.made_records.chains import even_chain, narrowing_chain

LINK = Link(name="host", out_bytes_per_second=4e9, in_bytes_per_second=4e9)


@pytest.mark.parametrize("planner", ["nested", "offload", "combined", "every block"])
@pytest.mark.parametrize("share", [0.88, 0.95, 1.0])
def test_the_parts_at_the_peak_add_up_to_it(planner: str, share: float):
    chain = narrowing_chain(8)
    peak = Case(chain, 1).nested.plain.peak_bytes
    plan = make_plan(chain, round(peak * share), link=LINK, planner=planner)
    assert sum(part.num_bytes for part in plan.binding.parts) == plan.peak_bytes
    assert all(part.num_bytes > 0 for part in plan.binding.parts)
    assert "transfers under way" not in {part.name for part in plan.binding.parts}
    assert plan.steps[plan.binding.step].memory_bytes == plan.peak_bytes
    assert plan.binding.unavoidable_bytes <= plan.peak_bytes


def test_a_peak_in_the_update_is_said_to_be_beyond_any_plan():
    chain = msgspec.structs.replace(even_chain(4), update_transient_bytes=2**34)
    plan = make_plan(chain, 2**35)
    assert plan.binding.where == "the optimizer's step"
    assert not plan.binding.a_plan_helps
    assert "optimizer's step" in plan.notes[-1]


def test_a_peak_within_one_large_stage_is_said_to_be_beyond_any_plan():
    small = Stage(name="body", forward_seconds=1, backward_seconds=2, output_bytes=1, saved_bytes=2)
    logits = Stage(name="logits", forward_seconds=1, backward_seconds=2, output_bytes=1, saved_bytes=10**6)
    chain = Chain(stages=(msgspec.structs.replace(small, saved_bytes=1), logits))
    plan = make_plan(chain, 10**7)
    assert plan.binding.where == "the backward of logits"
    assert not plan.binding.a_plan_helps
    assert "a single stage" in plan.notes[-1]


def test_each_decision_says_what_the_plan_would_need_without_it():
    chain = even_chain(10)
    plan = make_plan(chain, round(Case(chain, 1).nested.plain.peak_bytes * 0.7), planner="equal segments")
    assert plan.decisions
    for decision in plan.decisions:
        assert decision.what.startswith("recompute blocks.")
        assert decision.paid_seconds == pytest.approx(sum(chain.stages[k].forward_seconds for k in decision.stages))
        assert decision.freed_bytes > 0
    assert plan.recompute_seconds == pytest.approx(sum(decision.paid_seconds for decision in plan.decisions))


def test_moves_are_decisions_as_well():
    chain = narrowing_chain(8)
    plan = make_plan(chain, round(Case(chain, 1).nested.plain.peak_bytes * 0.9), link=LINK, planner="offload")
    moved = [decision for decision in plan.decisions if decision.what.startswith("move ")]
    assert len(moved) == len(plan.moves) > 0
    assert sum(decision.freed_bytes for decision in moved) == plan.moved_bytes
    assert all(decision.paid_seconds >= -1e-12 for decision in moved)


def test_the_least_budget_of_a_set_is_exactly_where_it_starts_to_fit():
    chain = narrowing_chain(7)
    program = lower(chain, Case(chain, 1).kept)
    for chosen in ([], [0], [0, 1, 2], [2, 4]):
        least = least_budget_bytes(program, chosen)
        assert Room.of(program, least).transfers(chosen) is not None
        assert Room.of(program, least - 1).transfers(chosen) is None
    assert least_budget_bytes(program, []) == simulate(program).peak_bytes


# ---- levers ------------------------------------------------------------------------------------------------------


def test_levers_fit_where_they_say_so_and_name_their_price():
    chain = even_chain(8)
    before = Case(chain, 1).nested.least.peak_bytes
    levers = {lever.name: lever for lever in levers_for(chain, before)}
    assert len(levers) >= 6
    for name, lever in levers.items():
        assert lever.price, name
        assert (lever.peak_bytes is None) == (lever.smallest_budget_bytes > before)
        assert lever.peak_bytes is None or lever.peak_bytes <= before
    for name in ("activations in half precision", "an optimizer without state", "optimizer state in 8 bits"):
        assert levers[name].smallest_budget_bytes < before
    splits = [lever.smallest_budget_bytes for name, lever in levers.items() if name.startswith("split")]
    assert splits == sorted(splits, reverse=True)


def test_a_lever_that_is_not_enough_says_so():
    chain = even_chain(8)
    levers = levers_for(chain, chain.fixed.parameter_bytes)
    assert all(lever.peak_bytes is None and lever.reason for lever in levers)


def test_splitting_the_batch_holds_all_gradients_and_rounds_up():
    chain = even_chain(4)
    parts = split_batch(chain, 3)
    total = sum(stage.gradient_bytes for stage in chain.stages)
    assert parts.fixed.gradient_bytes == total
    assert all(3 * new.saved_bytes >= old.saved_bytes for new, old in zip(parts.stages, chain.stages, strict=True))
    assert all(
        new.backward_transient_bytes >= old.gradient_bytes for new, old in zip(parts.stages, chain.stages, strict=True)
    )
    assert split_batch(chain, 1).stages[0].forward_seconds == chain.stages[0].forward_seconds


def test_half_precision_keeps_a_copy_of_the_parameters_and_a_leaner_optimizer_drops_only_its_state():
    chain = even_chain(4)
    half = half_precision(chain)
    assert half.fixed.total_bytes == chain.fixed.total_bytes + chain.fixed.parameter_bytes // 2
    assert half.stages[0].saved_bytes == chain.stages[0].saved_bytes // 2
    lean = without_optimizer_state(chain)
    assert chain.fixed.total_bytes - lean.fixed.total_bytes == chain.fixed.optimizer_state_bytes
