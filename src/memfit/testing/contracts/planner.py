"""Contract of a planner: subclass it, give it `planner`, and pytest runs these laws on your planner.

    class TestMyPlanner(PlannerContract):
        @pytest.fixture
        def planner(self):
            return Rule("mine", "checkpoint", my_function)

Needs pytest and hypothesis. Chains are random, of a few bytes and seconds, with everything that a chain may have; a
plan is judged by the simulator, and, for chains of up to four stages, by an exhaustive search that shares no code
with it.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memfit.plan.case import Case, PlannedOutcome, Planner, judge, moved_nodes
from memfit.plan.planners import PLANNERS, plan_from_outcome, smallest_budget
from memfit.records.plan import Chain, Checkpoint, Keep, Link, Node, Plan, decode_plan, encode_plan
from memfit.testing.made_records.chains import narrowing_chain, odd_chain, odd_link
from memfit.testing.oracles.plan_search import best_nested

RANDOM = st.integers(0, 2**32).map(Random)
NUM_STAGES = st.integers(1, 7)
SHARE = st.floats(0, 1.05)
"""0 is the smallest budget that any plan fits into, 1 is everything kept."""
DISK = Link(name="disk", out_bytes_per_second=2e9, in_bytes_per_second=3e9, latency_seconds=1e-4)
ROUNDING = 1e-9
SHARED = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)
"""All examples of a law share the fixtures of pytest, and all subclasses share the law."""


def many(max_examples: int) -> settings:
    """Hypothesis beside fixtures of pytest, which all examples share."""
    return settings(max_examples=max_examples, deadline=None, suppress_health_check=SHARED)


def odd_case(random: Random, num_stages: int, share: float, *, linked: bool = True) -> Case:
    """A small random chain under a budget between the smallest that fits and a little more than everything kept."""
    case = Case(odd_chain(random, num_stages), 1, odd_link(random) if linked else None)
    low, high = smallest_budget(case, PLANNERS["combined"]), case.nested.plain.peak_bytes
    return case.with_budget(max(1, round(low + share * (high - low))))


def outcome_of(planner: Planner, case: Case) -> PlannedOutcome | None:
    """What the planner proposes, as the simulator sees it; None where that is nothing, or does not fit."""
    proposal = planner.propose(case)
    return None if proposal is None else judge(case, proposal)


def stages_of(nodes: tuple[Node, ...]) -> list[int]:
    """The stages that nodes cover, in order."""
    return [stage for node in nodes for stage in ([node.stage] if isinstance(node, Keep) else stages_of(node.inside))]


class PlannerContract:
    """What every planner does, whatever its rule."""

    @pytest.fixture
    def planner(self) -> Planner:
        """The planner to judge."""
        raise NotImplementedError("give your planner in a fixture called `planner`")

    def test_it_says_what_it_is(self, planner: Planner):
        assert planner.name
        assert planner.family in ("checkpoint", "offload", "combined")
        assert planner.nothing_because

    @many(25)
    @given(random=RANDOM, num_stages=NUM_STAGES, share=SHARE)
    def test_what_it_proposes_fits_or_it_proposes_nothing_that_counts(
        self, planner: Planner, random: Random, num_stages: int, share: float
    ):
        case = odd_case(random, num_stages, share)
        outcome = outcome_of(planner, case)
        if outcome is not None:
            assert stages_of(outcome.proposal.nodes) == list(range(num_stages)), "every stage once, in order"
            assert outcome.replayed.peak_bytes <= case.budget_bytes
            assert outcome.replayed.peak_bytes >= case.sizes.floor_bytes()
            assert outcome.replayed.seconds >= outcome.program.compute_seconds

    @many(15)
    @given(random=RANDOM, num_stages=NUM_STAGES, share=SHARE, linked=st.booleans())
    def test_it_does_only_what_its_family_may(
        self, planner: Planner, random: Random, num_stages: int, share: float, linked: bool
    ):
        proposal = planner.propose(odd_case(random, num_stages, share, linked=linked))
        if proposal is None:
            return
        if planner.family == "checkpoint" or not linked:
            assert moved_nodes(proposal.nodes) == [], f"{planner.family} moved something, with a link: {linked}"
        if planner.family == "offload":
            assert not any(isinstance(node, Checkpoint) for node in proposal.nodes), "it recomputes"

    @many(8)
    @given(random=RANDOM, num_stages=NUM_STAGES, share=SHARE)
    def test_it_answers_the_same_question_in_the_same_way(
        self, planner: Planner, random: Random, num_stages: int, share: float
    ):
        case = odd_case(random, num_stages, share)
        first, again = planner.propose(case), planner.propose(Case(case.chain, case.budget_bytes, case.link))
        assert (first and first.nodes) == (again and again.nodes)

    @many(15)
    @given(random=RANDOM, num_stages=st.integers(1, 4), share=SHARE)
    def test_without_a_link_it_is_not_faster_than_the_best_of_all_plans(
        self, planner: Planner, random: Random, num_stages: int, share: float
    ):
        case = odd_case(random, num_stages, share, linked=False)
        outcome = outcome_of(planner, case)
        if outcome is not None:
            edge = best_nested(case.chain, to_the_end=True)
            best = min((seconds for peak, seconds in edge if peak <= case.budget_bytes), default=None)
            assert best is not None, f"exhaustive search finds nothing in {case.budget_bytes} bytes"
            assert outcome.replayed.seconds >= best - ROUNDING

    @pytest.mark.parametrize("share", [0.4, 0.88])
    def test_its_plan_keeps_its_promise_and_survives_its_file(self, planner: Planner, share: float):
        chain: Chain = narrowing_chain(9)
        case = Case(chain, round(Case(chain, 1).nested.plain.peak_bytes * share), DISK)
        outcome = outcome_of(planner, case)
        if outcome is None:
            return
        plan: Plan = plan_from_outcome(case, planner, outcome)
        assert plan.solver == planner.name
        assert plan.peak_bytes <= case.budget_bytes
        assert plan.smallest_budget_bytes <= plan.peak_bytes
        assert plan.gap >= 0
        assert max(step.memory_bytes for step in plan.steps) == plan.peak_bytes
        assert decode_plan(encode_plan(plan)) == plan
