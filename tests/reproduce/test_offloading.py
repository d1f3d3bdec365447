"""Does a comparison over budgets and links ask everybody the same, and does its ranking say what the answers say?"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from memfit.errors import UsageError
from memfit.plan.case import Case
from memfit.plan.planners import PLANNERS, make_plan
from memfit.records.plan import Candidate, Chain, Link
from memfit.records.reproduction import Cell, Network, Panel
from memfit.reproduce.offloading import (
    budgets_between,
    compare_links,
    compare_networks,
    describe_network,
    rank_planners,
    statements_on,
)
from memfit.testing.made_records.chains import even_chain, narrowing_chain, rough_chain

LINKS = [
    Link(name="host", out_bytes_per_second=speed, in_bytes_per_second=speed, latency_seconds=2e-5)
    for speed in (2e9, 8e9)
]


@pytest.fixture(scope="module")
def panels() -> tuple[Panel, ...]:
    return compare_links("narrowing", narrowing_chain(8), LINKS, num_points=4)


def test_budgets_run_from_the_least_that_fits_to_everything_kept():
    chain = rough_chain(Random(3), 8)
    budgets = budgets_between(chain, LINKS[0], 5)
    assert len(budgets) == 5
    assert budgets[-1] == Case(chain, 1).nested.plain.peak_bytes
    assert make_plan(chain, budgets[0], link=LINKS[0]).peak_bytes == budgets[0]
    with pytest.raises(UsageError, match="two points"):
        budgets_between(chain, LINKS[0], 1)


def test_every_planner_is_asked_at_every_budget_behind_every_link(panels: tuple[Panel, ...]):
    assert [panel.link for panel in panels] == LINKS
    for cell in (cell for panel in panels for cell in panel.cells):
        assert sorted(candidate.solver for candidate in cell.candidates) == sorted(PLANNERS)
        for candidate in cell.candidates:
            assert candidate.fits == (candidate.seconds is not None)
            assert not candidate.fits or (candidate.peak_bytes or 0) <= cell.budget_bytes
            assert candidate.fits or candidate.reason


def test_an_answer_is_the_one_that_the_planner_gives_alone(panels: tuple[Panel, ...]):
    cell = panels[1].cells[2]
    for name in ("nested", "offload", "combined", "SuperNeurons"):
        found = next(candidate for candidate in cell.candidates if candidate.solver == name)
        plan = make_plan(narrowing_chain(8), cell.budget_bytes, link=LINKS[1], planner=name)
        assert (found.seconds, found.peak_bytes) == (plan.seconds, plan.peak_bytes)


def test_recomputing_knows_no_link_and_a_faster_link_never_hurts_the_search(panels: tuple[Panel, ...]):
    slow, fast = panels
    for left, right in zip(slow.cells, fast.cells, strict=True):
        before, after = ({c.solver: c for c in cell.candidates} for cell in (left, right))
        for name, planner in PLANNERS.items():
            if planner.family == "checkpoint":
                assert before[name] == after[name]
        assert (after["combined"].seconds or 0.0) <= (before["combined"].seconds or 0.0) * (1 + 1e-9)


@pytest.mark.parametrize("make", [even_chain, narrowing_chain])
def test_no_planner_is_faster_than_the_search_over_both(make):
    chain: Chain = make(8)
    standings = rank_planners(compare_links("made", chain, LINKS[1:], num_points=4))
    assert standings[0].planner == "combined"
    assert standings[0].num_best == standings[0].num_fits == standings[0].num_cells == 4


def _cell(**seconds: float | None) -> Cell:
    found = [
        Candidate(solver=name.replace("_", " "), fits=value is not None, peak_bytes=1, seconds=value)
        for name, value in seconds.items()
    ]
    ordered = sorted(found, key=lambda c: (c.seconds is None, c.seconds or 0.0))
    return Cell(budget_bytes=1, candidates=tuple(ordered))


def test_the_ranking_counts_fits_and_averages_only_where_a_planner_fits():
    cells = (_cell(nested=2.0, offload=1.0, revolve=None), _cell(nested=3.0, offload=None, revolve=None))
    by_name = {s.planner: s for s in rank_planners([Panel(network="made", link=LINKS[0], cells=cells)])}
    assert list(by_name) == ["nested", "offload", "revolve"]
    assert (by_name["nested"].num_fits, by_name["nested"].num_best) == (2, 1)
    assert by_name["nested"].mean_over_best == pytest.approx(1.5)
    assert by_name["nested"].worst_over_best == pytest.approx(2.0)
    assert (by_name["offload"].num_fits, by_name["offload"].mean_over_best) == (1, 1.0)
    assert by_name["revolve"].mean_over_best is None


NETWORK = Network(
    name="made", num_examples=1, num_stages=3, plain_peak_bytes=9, plain_seconds=0.5, smallest_budget_bytes=1
)
PLAIN = {"nested": 1.0, "combined": 1.0, "TFLMS": 9.0, "offload_prefix": 1.0}


def judged(*cells: Mapping[str, float | None]) -> list[tuple[str, tuple[str, ...]]]:
    panel = Panel(network="made", link=LINKS[0], cells=tuple(_cell(**cell) for cell in (*cells, PLAIN)))
    return [(statement.verdict, statement.evidence) for statement in statements_on([panel], [NETWORK])]


def test_statements_compare_the_heuristics_with_earlier_rules_and_count_what_moving_spares():
    heuristics, moving = judged(
        {"nested": 3.0, "combined": 2.5, "TFLMS": 4.0, "AutoSwap": 3.0, "offload_prefix": 2.0, "offload_fluid": 2.5},
        {"nested": 2.0, "combined": 1.5, "TFLMS": 2.0, "AutoSwap": None, "offload_prefix": None, "offload_fluid": 2.5},
    )
    assert "x1.150 as fast on average over 2 cases, from x0.800 to x1.500" in heuristics[1][0]
    assert "faster in 1 of them, slower in 1" in heuristics[1][1]
    assert heuristics[0] == "cannot tell"  # better on average, and as often worse as better
    assert moving[0] == "does not hold"  # a quarter is less than a third
    assert "takes away 25% of the time that recomputing alone adds (2 cases)" in moving[1][0]


def test_the_verdicts_follow_their_rules_and_nothing_is_claimed_without_a_case():
    faster = {"nested": 2.0, "combined": 1.0, "TFLMS": 4.0, "offload_prefix": 2.0}
    slower = {"nested": 2.0, "combined": 1.9, "TFLMS": 1.0, "offload_prefix": 2.0}
    assert [verdict for verdict, _ in judged(faster)] == ["holds", "holds"]
    assert [verdict for verdict, _ in judged(slower)] == ["does not hold", "does not hold"]
    assert [verdict for verdict, _ in judged()] == ["cannot tell", "cannot tell"]
    assert [statement.verdict for statement in statements_on([], [])] == ["cannot tell"]


def test_a_network_is_described_before_any_planner_touches_it():
    chain = narrowing_chain(6)
    network = describe_network("made", ("batch_size=4",), 4, chain, LINKS[0])
    assert network.plain_peak_bytes == Case(chain, 1).nested.plain.peak_bytes
    assert network.smallest_budget_bytes == budgets_between(chain, LINKS[0], 2)[0]
    assert network.num_stages == 6


def test_many_chains_are_compared_and_the_share_of_the_work_grows_from_zero_below_one():
    chains = {"short": even_chain(4), "long": narrowing_chain(7)}
    seen: list[tuple[str, float]] = []
    panels = compare_networks(chains, LINKS, num_points=2, show=lambda what, share: seen.append((what, share)))
    assert [(panel.network, panel.link) for panel in panels] == [(name, link) for name in chains for link in LINKS]
    shares = [share for _, share in seen]
    assert (shares[0], len(shares)) == (0.0, 2 * 2 * 2)
    assert shares == sorted(set(shares))
    assert shares[-1] == pytest.approx(1 - 49 / (4 * (16 + 49)))
    assert seen[0][0] == "short, 2 GB/s"
