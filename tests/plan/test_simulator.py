"""Does the arbiter replay plans as an independent actor would, and refuse what cannot be run?"""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.errors import InvalidSchedule
from memfit.plan.problem.program import lower
from memfit.plan.problem.simulator import simulate
from memfit.plan.problem.sizes import Sizes
from memfit.plan.problem.transfers import Room, Transfers
from memfit.records.plan import Chain, Checkpoint, Keep, Link, Node, Stage
from memfit.testing.made_records.chains import odd_chain, odd_link
from memfit.testing.oracles import plan_search

RANDOM = st.integers(0, 2**32).map(Random)
LINK = Link(name="host", out_bytes_per_second=1.0, in_bytes_per_second=1.0)


def to_nodes(chain: Chain, plan: plan_search.Plan) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for act in plan:
        if act[0] == "keep":
            option = "" if act[2] is None else chain.stages[act[1]].options[act[2]].name
            nodes.append(Keep(stage=act[1], option=option))
        else:
            nodes.append(Checkpoint(inside=to_nodes(chain, act[1])))
    return tuple(nodes)


def any_plan(random: Random, chain: Chain) -> plan_search.Plan:
    plans = plan_search.every_plan(chain, 0, len(chain.stages), to_the_end=True)
    return random.choice(list(plans))


def any_moves(random: Random, num_nodes: int) -> tuple[int, ...]:
    return tuple(sorted(random.sample(range(num_nodes - 1), random.randint(1, num_nodes - 1))))


@given(RANDOM, st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_time_and_peak_of_every_nested_plan_are_what_acting_it_out_gives(random: Random, num_stages: int):
    chain = odd_chain(random, num_stages)
    plan = any_plan(random, chain)
    nodes = to_nodes(chain, plan)
    replayed = simulate(lower(chain, nodes))
    assert (replayed.seconds, replayed.peak_bytes) == plan_search.cost_of(plan_search.act_out(chain, plan))
    assert Sizes(chain).peak_bytes(nodes) == replayed.peak_bytes


@given(RANDOM, st.integers(2, 5), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_moves_take_as_long_as_acting_them_out_and_stay_within_the_budget(random: Random, num_stages: int, less: int):
    chain, link = odd_chain(random, num_stages), odd_link(random, limited=False)
    plan = any_plan(random, chain)
    if len(plan) < 2:
        return
    chosen, happened = any_moves(random, len(plan)), plan_search.act_out(chain, plan)
    budget_bytes = plan_search.cost_of(happened)[1] - less
    program = lower(chain, to_nodes(chain, plan))
    transfers = Room.of(program, budget_bytes).transfers(chosen)
    expected = plan_search.move(happened, chosen, link, budget_bytes)
    assert (transfers is None) == (expected is None)
    if transfers is not None:
        replayed = simulate(program, transfers, link)
        assert replayed.seconds == pytest.approx(expected, abs=1e-9)
        assert replayed.peak_bytes <= budget_bytes
        assert replayed.seconds == pytest.approx(program.compute_seconds + replayed.stall_seconds, abs=1e-9)


@given(RANDOM, st.integers(2, 4), st.integers(0, 12))
@settings(max_examples=80, deadline=None)
def test_no_other_moments_of_fetching_are_faster(random: Random, num_stages: int, less: int):
    chain, link = odd_chain(random, num_stages), odd_link(random, limited=False)
    plan = any_plan(random, chain)
    happened = plan_search.act_out(chain, plan)
    if len(plan) < 2 or len(happened) > 13:
        return
    chosen = any_moves(random, len(plan))[:2]
    budget_bytes = plan_search.cost_of(happened)[1] - less
    program = lower(chain, to_nodes(chain, plan))
    transfers = Room.of(program, budget_bytes).transfers(chosen)
    best = plan_search.best_starts(happened, chosen, link, budget_bytes)
    assert (transfers is None) == (best is None)
    if transfers is not None:
        assert simulate(program, transfers, link).seconds == pytest.approx(best, abs=1e-9)


@given(RANDOM, st.integers(2, 5), st.integers(0, 12))
@settings(max_examples=100, deadline=None)
def test_a_link_or_stages_slower_than_predicted_cost_time_but_never_memory(random: Random, num_stages: int, less: int):
    chain, link = odd_chain(random, num_stages), odd_link(random, limited=False)
    plan = any_plan(random, chain)
    if len(plan) < 2:
        return
    program = lower(chain, to_nodes(chain, plan))
    budget_bytes = max(program.memory_bytes()) - less
    transfers = Room.of(program, budget_bytes).transfers(any_moves(random, len(plan)))
    if transfers is None:
        return
    for factor in (0.01, 0.3, 7.0, 1000.0):
        other = msgspec.structs.replace(link, out_bytes_per_second=factor, in_bytes_per_second=1 / factor)
        assert simulate(program, transfers, other).peak_bytes <= budget_bytes
    for operation in program.operations:
        operation.seconds = random.choice([0.0, 0.1, 10.0])
    assert simulate(program, transfers, link).peak_bytes <= budget_bytes


def chain_of(num_stages: int, **changes) -> Chain:
    stage = Stage(name="s", forward_seconds=1, backward_seconds=2, output_bytes=4, saved_bytes=10)
    stages = (msgspec.structs.replace(stage, name=f"s{k}", **changes) for k in range(num_stages))
    return Chain(stages=tuple(stages))


def kept(*stages: int, offload: tuple[int, ...] = ()) -> tuple[Node, ...]:
    return tuple(Keep(stage=stage, offload=stage in offload) for stage in stages)


@pytest.mark.parametrize(
    ("chain", "nodes", "said"),
    [
        (chain_of(3), kept(0, 1), "every stage once"),
        (chain_of(3), kept(0, 2, 1), "every stage once"),
        (chain_of(2), (*kept(0, 1), Checkpoint(inside=())), "holds no stages"),
        (chain_of(2, recomputable=False), (Checkpoint(inside=kept(0)), *kept(1)), "may run only once"),
        (chain_of(3, joins_next=False), (Checkpoint(inside=kept(0, 1)), *kept(2)), "has another reader"),
        (chain_of(1), (Keep(stage=0, option="lean"),), "has no option"),
        (chain_of(3), (Checkpoint(inside=kept(0, 1, offload=(0,))), *kept(2)), "only what the first forward leaves"),
    ],
)
def test_nodes_that_cannot_be_run_are_refused(chain: Chain, nodes: tuple[Node, ...], said: str):
    with pytest.raises(InvalidSchedule, match=said):
        lower(chain, nodes)


def good_transfers() -> tuple:
    program = lower(chain_of(4), kept(0, 1, 2, 3))
    transfers = Room.of(program, max(program.memory_bytes()) - 10).transfers((0, 1))
    assert transfers is not None
    return program, transfers


def test_transfers_that_cannot_be_run_are_refused():
    program, good = good_transfers()
    assert simulate(program, good, LINK).seconds > 0
    wrong = {
        "there is no link": (good, None),
        "is too small": (good, msgspec.structs.replace(LINK, capacity_bytes=19)),
        "cannot have started": (Transfers(good.moved, [2, *good.wait_sent[1:]], good.fetch_after), LINK),
        "do not match": (Transfers(good.moved, good.wait_sent[1:], good.fetch_after), LINK),
        "at the wrong time": (Transfers(good.moved, good.wait_sent, [good.moved[0].needed_by, 4]), LINK),
        "in the order in which": (Transfers(good.moved[::-1], [0] * len(good.wait_sent), good.fetch_after), LINK),
    }
    for said, (transfers, link) in wrong.items():
        with pytest.raises(InvalidSchedule, match=said):
            simulate(program, transfers, link)


def test_reading_a_freed_value_is_refused():
    program = lower(chain_of(2), kept(0, 1))
    program.operations[1].frees.append(program.operations[0].makes[0])
    with pytest.raises(InvalidSchedule, match="not there"):
        simulate(program)


def test_an_operation_that_takes_no_time_still_counts_for_the_peak():
    slow = simulate(lower(chain_of(2), kept(0, 1)))
    instant = simulate(lower(chain_of(2, forward_seconds=0, backward_seconds=0), kept(0, 1)))
    assert instant.peak_bytes == slow.peak_bytes
    assert instant.seconds == 0


def test_leaving_a_wait_out_shows_in_the_peak():
    program, good = good_transfers()
    budget_bytes = simulate(program, good, LINK).peak_bytes
    hasty = Transfers(good.moved, [0] * len(good.wait_sent), good.fetch_after)
    slow = msgspec.structs.replace(LINK, out_bytes_per_second=0.001)
    assert simulate(program, hasty, slow).peak_bytes > budget_bytes
