"""Do the tables of the edge follow the published formulas, and does the optimal plan never lose to the rules?"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.plan.case import Case
from memfit.plan.recompute.revolve import advances
from memfit.records.plan import Chain, Fixed, Stage
from memfit.reproduce.edge import (
    BATCHES,
    SIZES,
    EdgeQuestion,
    edge_tables,
    linear_revolve,
    linear_sequential,
    linear_slots,
    memory_cell,
    num_chains,
    price_curve,
    price_of,
    worth_of,
)


def made_chain(network: str, image_size: int, batch_size: int) -> Chain:
    """Stages that shrink, with bytes in proportion to pixels and examples."""
    unit = image_size**2 * batch_size
    stages = tuple(
        Stage(
            name=f"s{index}", forward_seconds=unit / 1e9, backward_seconds=2 * unit / 1e9,
            output_bytes=4 * unit // (index + 1), saved_bytes=20 * unit // (index + 1), gradient_bytes=1000,
        )
        for index in range(8)
    )  # fmt: skip
    return Chain(stages=stages, input_bytes=12 * unit, fixed=Fixed(parameter_bytes=8000), target=network)


@pytest.mark.parametrize(
    ("num_layers", "num_slots", "factor"), [(34, 28, 1.37), (50, 27, 1.47), (50, 16, 1.55), (152, 19, 1.62)]
)
def test_revolve_on_equal_layers_is_the_closed_form(num_layers: int, num_slots: int, factor: float):
    assert linear_revolve(num_layers, num_slots) == pytest.approx(factor, abs=0.01)


@given(st.integers(2, 200), st.integers(1, 220))
def test_formulas_never_pay_less_than_nothing_and_more_slots_never_cost_more(num_layers: int, num_slots: int):
    for formula in (linear_sequential, linear_revolve):
        here, more = formula(num_layers, num_slots), formula(num_layers, num_slots + 1)
        assert here is None or (more is not None and 1.0 <= more <= here + 1e-12)
    assert linear_sequential(num_layers, num_layers) == 1.0
    assert linear_revolve(num_layers, num_slots) == 1 + advances(num_layers, num_slots) / (3 * num_layers)


@pytest.mark.parametrize(("num_layers", "fewest"), [(18, 8), (50, 14), (101, 20), (152, 26)])
def test_the_fewest_layers_that_sequential_checkpoints_hold_are_the_published_ones(num_layers: int, fewest: int):
    assert linear_sequential(num_layers, fewest) is not None
    assert linear_sequential(num_layers, fewest - 1) is None


def test_slots_are_what_is_left_beside_parameters_gradients_and_the_batch():
    chain = made_chain("made", 10, 1)
    held_bytes = chain.fixed.total_bytes + chain.input_bytes + 8000
    layer_bytes = sum(stage.saved_bytes for stage in chain.stages) / 4
    assert linear_slots(chain, round(held_bytes + 2.5 * layer_bytes), 4) == 2
    assert linear_slots(chain, held_bytes // 2, 4) == 0
    assert linear_slots(chain, 10**12, 4) == 4


def test_the_optimal_plan_is_never_slower_than_the_rules_and_gets_cheaper_with_memory():
    case = Case(made_chain("made", 100, 2), 1)
    curve = price_curve(case, memory_cell(case, "made", 100, 2), 8, num_points=7)
    assert curve[0].budget_bytes == curve[0].smallest_bytes
    assert curve[-1].budget_bytes == curve[-1].plain_bytes
    assert curve[-1].nested == pytest.approx(1.0)
    for price in curve:
        assert price.nested is not None
        for other in (price.sequential, price.revolve):
            assert other is None or price.nested <= other * (1 + 1e-9)
    assert [p.nested for p in curve] == sorted((p.nested or 0 for p in curve), reverse=True)


def test_what_does_not_fit_has_no_price():
    case = Case(made_chain("made", 100, 2), 1)
    cell = memory_cell(case, "made", 100, 2)
    price = price_of(case.with_budget(cell.smallest_bytes - 1), cell, 8)
    assert (price.sequential, price.revolve, price.nested) == (None, None, None)


def test_hours_and_energy_follow_from_the_figures():
    chain = made_chain("made", 100, 2)
    case = Case(chain, 1)
    question = EdgeQuestion(
        link_mbit=8.0, link_watts=3.0, device_gflops=2.0, device_watts=5.0, images_per_day=3600, image_bytes=1_000_000
    )
    worth = worth_of(chain, memory_cell(case, "made", 100, 2), 1.5, question)
    gflop = sum(stage.forward_seconds for stage in chain.stages) * 1e12 / 1e9 / 2
    assert worth.gflop_per_image == pytest.approx(gflop)
    assert worth.train_hours == pytest.approx(gflop * 3 * 1.5 / 2.0)
    assert worth.train_watt_hours == pytest.approx(worth.train_hours * 5.0)
    assert worth.links[0].send_hours == pytest.approx(1.0)
    assert worth.links[0].send_watt_hours == pytest.approx(3.0)
    assert worth.most_images_per_day == int(24 / worth.train_hours * 3600)
    assert worth.equal_mbit_per_second == pytest.approx(8.0 / worth.train_hours)


@pytest.mark.parametrize(
    ("mbit", "gflops", "says"),
    [(1e-6, 1e6, "train on the device"), (1e3, 1e-6, "send"), (1e-6, 1e-6, "neither"), (1e3, 1e6, "both keep up")],
)
def test_the_verdict_is_about_who_keeps_up_with_a_day(mbit: float, gflops: float, says: str):
    chain = made_chain("made", 100, 2)
    cell = memory_cell(Case(chain, 1), "made", 100, 2)
    assert says in worth_of(chain, cell, 1.0, EdgeQuestion(link_mbit=mbit, device_gflops=gflops)).links[0].verdict


def test_the_tables_hold_every_network_batch_and_size_and_make_every_chain_once():
    made: list[str] = []
    networks = ("ResNet-18", "ResNet-50")
    tables = edge_tables(
        made_chain, networks, budget_bytes=10**9, num_points=3, question=EdgeQuestion(), tick=made.append
    )
    assert len(made) == len(set(made)) == num_chains(networks)
    assert [(c.network, c.batch_size) for c in tables.by_batch] == [(n, b) for n in networks for b in BATCHES]
    assert [(c.network, c.image_size) for c in tables.by_size] == [(n, s) for n in networks for s in SIZES]
    assert len(tables.curves) == 2 * 3
    assert tables.worth is not None
    tight = edge_tables(made_chain, networks, budget_bytes=20_000, num_points=2, question=EdgeQuestion())
    assert tight.worth is None
    assert "does not fit" in tight.not_worth_because


def verdicts_at(budget_bytes: int, **question: Any) -> list[str]:
    tables = edge_tables(
        made_chain,
        ("ResNet-18", "ResNet-50"),
        budget_bytes=budget_bytes,
        num_points=2,
        question=EdgeQuestion(**question),
    )
    return [statement.verdict for statement in tables.statements]


def test_each_statement_is_judged_by_its_rule():
    plenty, tight, none = 10**12, 200_000_000, 20_000
    factor = "cannot tell"  # the source's batch and image size are not known
    assert verdicts_at(plenty) == ["does not hold", "cannot tell", factor]
    assert verdicts_at(tight) == ["holds", "holds", factor]
    assert verdicts_at(tight, device_gflops=1e-6) == ["does not hold", "holds", factor]
    assert verdicts_at(tight, link_mbit=1e-6) == ["does not hold", "holds", factor]
    assert verdicts_at(none) == ["cannot tell", "does not hold", factor]
