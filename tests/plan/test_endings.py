"""Where a checkpoint leaves the last module of a stage outside: do table, peak, seconds and replay agree, and is the
answer the best of all nested plans?"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.plan.case import Case
from memfit.plan.levers import half_precision, split_batch
from memfit.plan.offload.combined import every_nodes
from memfit.plan.problem.program import lower
from memfit.plan.problem.simulator import simulate
from memfit.plan.problem.sizes import Sizes
from memfit.plan.recompute.nested import NestedPlanner
from memfit.records.plan import Chain, Checkpoint, Ending, Keep, Node, Stage, stages_of
from memfit.testing.made_records.chains import odd_chain

RANDOM = st.integers(0, 2**32).map(Random)


def chain_with_endings(random: Random, num_stages: int) -> Chain:
    chain = odd_chain(random, num_stages)
    stages = list(chain.stages)
    for index, (stage, after) in enumerate(pairwise(stages)):
        if after.output_bytes >= stage.output_bytes and random.random() < 0.7:
            seconds, left = random.random() * stage.forward_seconds, random.randint(0, stage.saved_bytes)
            stages[index] = msgspec.structs.replace(stage, ending=Ending(forward_seconds=seconds, saved_bytes=left))
    return msgspec.structs.replace(chain, stages=tuple(stages))


@given(RANDOM, st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_the_answer_is_the_best_of_all_nested_plans_also_with_endings(random: Random, num_stages: int):
    chain = chain_with_endings(random, num_stages)
    sizes, planner = Sizes(chain), NestedPlanner.of(chain)
    seen = [simulate(lower(chain, nodes)) for nodes in every_nodes(sizes, 0, num_stages)]
    assert planner.least.peak_bytes == min(replayed.peak_bytes for replayed in seen)
    for budget_bytes in range(planner.least.peak_bytes, max(r.peak_bytes for r in seen) + 1):
        expected = min(replayed.seconds for replayed in seen if replayed.peak_bytes <= budget_bytes)
        found = planner.best(budget_bytes)
        assert found is not None
        assert found.seconds == pytest.approx(expected)
        assert planner.bound_seconds(budget_bytes) == pytest.approx(expected)


@example(Random(1489014), 3)
@given(RANDOM, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_the_short_way_to_peak_and_seconds_agrees_with_the_replay(random: Random, num_stages: int):
    chain = chain_with_endings(random, num_stages)
    sizes, planner = Sizes(chain), NestedPlanner.of(chain)
    for nodes in every_nodes(sizes, 0, num_stages):
        replayed, found = simulate(lower(chain, nodes)), planner.found(nodes)
        assert found.peak_bytes == replayed.peak_bytes >= sizes.floor_bytes()
        assert found.seconds == pytest.approx(replayed.seconds)


class Theatre:
    """Acts nodes out module by module: a stage with an ending is its head and, outside of a checkpoint, its last."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.alive, self.peak, self.gradients = chain, 0, 0, 0

    def hold(self, num_bytes: int) -> None:
        self.alive += num_bytes
        self.peak = max(self.peak, self.alive)

    def output(self, index: int) -> int:
        return self.chain.stages[index].output_bytes if index >= 0 else 0

    def forward(self, nodes: tuple[Node, ...], *, again: bool) -> None:
        for position, node in enumerate(nodes):
            ends = again and position == len(nodes) - 1
            stage = self.chain.stages[list(stages_of((node,)))[-1]]
            if isinstance(node, Keep):
                self.hold(stage.ending.saved_bytes if ends and stage.ending else stage.saved_bytes)
            else:
                self.hold(stage.output_bytes)

    def backward(self, nodes: tuple[Node, ...], *, again: bool) -> None:
        for position in range(len(nodes) - 1, -1, -1):
            node, ends = nodes[position], again and position == len(nodes) - 1
            first, last = (list(stages_of((node,)))[k] for k in (0, -1))
            stage = self.chain.stages[last]
            if isinstance(node, Keep):
                self.hold(self.output(first - 1) + stage.gradient_bytes)
                self.alive -= stage.output_bytes
                self.alive -= stage.ending.saved_bytes if ends and stage.ending else stage.saved_bytes
                continue
            if stage.ending is not None and not ends:  # the module outside: its gradient comes, the one above goes
                self.hold(stage.output_bytes)
                self.alive -= stage.output_bytes
            self.alive -= stage.output_bytes
            self.forward(node.inside, again=True)
            self.backward(node.inside, again=True)


@given(RANDOM, st.integers(2, 5))
@settings(max_examples=80, deadline=None)
def test_the_backward_of_the_module_outside_is_within_the_peak_that_is_promised(random: Random, num_stages: int):
    chain = chain_with_endings(random, num_stages)
    bare = tuple(
        msgspec.structs.replace(stage, options=(), forward_transient_bytes=0, backward_transient_bytes=0)
        for stage in chain.stages
    )
    chain = Chain(stages=bare)
    sizes = Sizes(chain)
    for nodes in every_nodes(sizes, 0, num_stages):
        theatre = Theatre(chain)
        theatre.forward(nodes, again=False)
        theatre.hold(bare[-1].output_bytes)
        theatre.backward(nodes, again=False)
        assert theatre.peak <= sizes.peak_bytes(nodes)


def even(num_stages: int, ending: Ending | None) -> Chain:
    stage = Stage(name="s", forward_seconds=1.0, backward_seconds=2.0, output_bytes=4, saved_bytes=4)
    ended = msgspec.structs.replace(stage, ending=ending)
    return Chain(stages=(*(ended for _ in range(num_stages - 1)), stage))


def test_a_run_that_ends_early_takes_less_memory_and_less_time():
    plain, ended = even(8, None), even(8, Ending(forward_seconds=0.0, saved_bytes=0))
    nodes = (Checkpoint(inside=tuple(Keep(stage=k) for k in range(5))), *(Keep(stage=k) for k in range(5, 8)))
    before, after = simulate(lower(plain, nodes)), simulate(lower(ended, nodes))
    assert before.seconds - after.seconds == 1.0
    assert before.peak_bytes - after.peak_bytes == 4


@pytest.mark.parametrize("stages", [1, 2])
def test_an_ending_before_a_smaller_output_or_at_the_end_is_refused(stages: int):
    last = Stage(name="t", forward_seconds=1.0, backward_seconds=2.0, output_bytes=3, saved_bytes=3)
    first = Stage(
        name="s", forward_seconds=1.0, backward_seconds=2.0, output_bytes=4, saved_bytes=4,
        ending=Ending(forward_seconds=0.5, saved_bytes=0),
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"the ending of stage 's' needs a next stage whose output is as large"):
        Case(Chain(stages=(first, last)[:stages]), 100)


def test_levers_scale_endings_with_their_stages():
    chain = even(4, Ending(forward_seconds=0.5, saved_bytes=2))
    for changed in (half_precision(chain), split_batch(chain, 2)):
        ending = changed.stages[0].ending
        assert ending is not None
        assert ending.saved_bytes == 1
        Case(changed, 100)
    assert even(4, None).stages[0].ending is None
