"""Contract of a pipeline planner: subclass it, give it `planner`, and pytest runs these laws on your planner.

    class TestMyPlanner(PipelinePlannerContract):
        @pytest.fixture
        def planner(self):
            return PipelineRule("mine", my_function)

Needs pytest. Chains are random, of a few bytes and seconds; a proposal is judged by the event simulation, its period
against an exhaustive search that shares no code with it.
"""

from __future__ import annotations

import itertools
from random import Random

import msgspec
import pytest

from memfit.plan.pipeline.case import PipelineCase, PipelinePlanner, PipelineProposal
from memfit.plan.pipeline.planners import judge
from memfit.records.pipeline import RankLink
from memfit.testing.oracles.pipeline_search import best_contiguous, made_pipeline_chain

NUM_CASES = 25


def made_pipeline_case(seed: int) -> PipelineCase:
    """A random chain with a place that cannot be cut, on ranks of one memory."""
    random = Random(seed)
    chain = made_pipeline_chain(random, random.randint(3, 6))
    if random.random() < 0.5:
        place = random.randrange(len(chain.layers) - 1)
        layers = list(chain.layers)
        layers[place] = msgspec.structs.replace(layers[place], no_cut_because="two tensors cross")
        chain = msgspec.structs.replace(chain, layers=tuple(layers))
    pieces = 1 + sum(not layer.no_cut_because for layer in chain.layers[:-1])
    link = RankLink(bytes_per_second=random.choice((2.0, 1e9)), full_duplex=random.random() < 0.5)
    return PipelineCase(chain, (random.randint(30, 150),) * random.randint(1, min(3, pieces)), link)


class PipelinePlannerContract:
    """What every pipeline planner does, whatever its rule."""

    @pytest.fixture
    def planner(self) -> PipelinePlanner:
        """The planner to judge."""
        raise NotImplementedError("give your planner in a fixture called `planner`")

    def proposals(self, planner: PipelinePlanner) -> list[tuple[PipelineCase, PipelineProposal]]:
        """What it proposes for random cases."""
        cases = [made_pipeline_case(seed) for seed in range(NUM_CASES)]
        found = [(case, planner.propose(case)) for case in cases]
        return [(case, proposal) for case, proposal in found if proposal is not None]

    def test_it_has_a_name_and_finds_something(self, planner: PipelinePlanner):
        assert planner.name
        assert isinstance(planner.optimal_among, str)
        assert self.proposals(planner)

    def test_every_layer_is_in_one_stage_and_no_cut_lies_where_none_can(self, planner: PipelinePlanner):
        for case, proposal in self.proposals(planner):
            stages = proposal.stages
            assert stages[0].first == 0
            assert stages[-1].last == case.num_layers - 1
            for this, following in itertools.pairwise(stages):
                assert following.first == this.last + 1
                assert case.can_cut(this.last)

    def test_ranks_are_there_and_used_once(self, planner: PipelinePlanner):
        for case, proposal in self.proposals(planner):
            used = [rank for stage in proposal.stages for rank in range(stage.rank, stage.rank + stage.num_replicas)]
            assert len(used) == len(set(used))
            assert set(used) <= set(range(case.num_ranks))

    def test_what_fits_stays_within_memory_and_is_never_faster_than_the_best(self, planner: PipelinePlanner):
        for case, proposal in self.proposals(planner):
            outcome = judge(case, proposal)
            if outcome is None:
                continue
            assert all(rank.fits for rank in outcome.ranks)
            if all(stage.num_replicas == 1 for stage in proposal.stages):
                best = best_contiguous(case.chain, case.limits_bytes, case.link)
                assert outcome.period_seconds >= best * (1 - 1e-7)
