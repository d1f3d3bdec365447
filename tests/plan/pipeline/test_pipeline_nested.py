"""Does nested checkpointing inside of a stage do what it promises, and is it worth its place among the choices?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest

from memfit.plan.pipeline.case import PipelineCase
from memfit.plan.pipeline.planners import plan_pipeline
from memfit.plan.pipeline.stage_checkpoints import NUM_SLOTS, NestedRuns
from memfit.plan.pipeline.stage_curve import MOST_WAYS, curve_of
from memfit.records.pipeline import Layer, PipelineChain, RankLink

Tree = tuple[int, "Tree", "Tree"] | None
"""A run brought back whole, or by halves behind a layer."""


def made_layers(random: Random, number: int) -> list[Layer]:
    """Sizes so small that a step of the grid is a byte."""
    layers = []
    for index in range(number):
        output = random.randint(1, 4)
        layers.append(
            Layer(
                name=f"layer {index}", forward_seconds=float(random.randint(1, 9)), backward_seconds=1.0,
                parameter_bytes=1, gradient_bytes=1, output_bytes=output, saved_bytes=output + random.randint(0, 3),
                transient_bytes=random.randint(0, 2),
            )
        )  # fmt: skip
    return layers


def every_tree(i: int, j: int) -> Iterator[Tree]:
    yield None
    for k in range(i, j):
        for left in every_tree(i, k):
            for right in every_tree(k + 1, j):
                yield k, left, right


class Machine:
    """Runs a tree with a count of live bytes beside what is held, one layer after another."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers, self.live, self.peak, self.seconds = layers, 0, 0, 0.0

    def take(self, num_bytes: int, passing: int = 0) -> None:
        self.live += num_bytes
        self.peak = max(self.peak, self.live + passing)

    def bring_back(self, tree: Tree, i: int, j: int) -> None:
        """Run again and do the backward; the input of i and the output of j are there."""
        if tree is None:
            saved = sum(layer.saved_bytes for layer in self.layers[i : j + 1])
            own = saved - min(saved, self.layers[j].output_bytes)
            self.take(own, max(layer.transient_bytes for layer in self.layers[i : j + 1]))
            self.seconds += sum(layer.forward_seconds for layer in self.layers[i : j + 1])
            self.take(-own)
            return
        k, left, right = tree
        before = 0
        for layer in self.layers[i : k + 1]:
            self.take(layer.output_bytes, layer.transient_bytes)
            self.seconds += layer.forward_seconds
            self.take(-before)
            before = layer.output_bytes
        self.bring_back(right, k + 1, j)
        self.bring_back(left, i, k)
        self.take(-before)


@pytest.mark.parametrize("seed", range(12))
def test_the_table_has_the_least_seconds_of_all_trees_that_a_machine_runs_within_the_bytes(seed: int):
    random = Random(seed)
    layers = made_layers(random, random.randint(1, 5))
    nested, last = NestedRuns(layers), len(layers) - 1
    assert nested.slot_bytes == 1
    ran = []
    for tree in every_tree(0, last):
        machine = Machine(layers)
        machine.bring_back(tree, 0, last)
        assert machine.live == 0
        ran.append((machine.peak, machine.seconds))
    for working in range(NUM_SLOTS + 1):
        expected = min((seconds for peak, seconds in ran if peak <= working), default=math.inf)
        assert nested.least[0, last][working] == expected


def uneven_chain(number: int = 24) -> PipelineChain:
    """Large activations in front, as in a convolutional network."""
    layers = tuple(
        Layer(
            name=f"layer {index}", forward_seconds=1.0, backward_seconds=2.0, parameter_bytes=100, gradient_bytes=100,
            output_bytes=4000 >> (index // 4), saved_bytes=12000 >> (index // 4), transient_bytes=100,
        )
        for index in range(number)
    )  # fmt: skip
    return PipelineChain(layers=layers, input_bytes=1000)


def test_ways_are_few_hold_less_the_slower_they_are_and_never_more_than_everything():
    chain = uneven_chain()
    case = PipelineCase(chain, (10**6,) * 2, RankLink(bytes_per_second=1e9), curve=curve_of(chain))
    for first, last in ((0, 23), (3, 9), (20, 23), (5, 5)):
        plain, *ways = case.choices(first, last)
        assert len(ways) <= MOST_WAYS
        for way in ways:
            assert way.held_bytes < plain.held_bytes
            assert way.backward_seconds > plain.backward_seconds
            assert way.held_bytes >= case.input_bytes(first)
    assert any("nested" in way.name for way in case.choices(0, 23))


@pytest.mark.parametrize("memory", [34_000, 38_000, 42_000])
def test_unequal_runs_are_faster_where_layers_are_uneven(memory: int, monkeypatch: pytest.MonkeyPatch):
    chain = uneven_chain()
    case = PipelineCase(chain, (memory,) * 2, RankLink(bytes_per_second=1e9), curve=curve_of(chain))
    nested = plan_pipeline(case, baselines=False)
    assert nested.fits
    assert any("nested" in stage.choice.name for stage in nested.cut.stages)
    monkeypatch.setattr(NestedRuns, "choices", lambda *_: [])
    equal = PipelineCase(chain, (memory,) * 2, RankLink(bytes_per_second=1e9), curve=curve_of(chain))
    assert nested.period_seconds < plan_pipeline(equal, baselines=False).period_seconds
