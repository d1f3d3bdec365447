"""Which tables answer whether a ResNet can be trained on a small device: memory, its price, and whether it is worth it?

The chain of a network at a batch and an image size is handed in, so that this file decides nothing about torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from memfit.plan.case import Case
from memfit.plan.edge import Question, memory_cell, price_curve, price_of, slowdown_of, worth_of
from memfit.records.plan import Chain
from memfit.records.reproduction import EdgeTables, MemoryCell, Price, PublishedFigure, Worth

BATCHES, SIZES = (1, 2, 4, 8, 16, 32), (224, 350, 500, 650)
BATCH, SIZE = 8, 500
"""Of the price, the curves and the question of worth."""
DRAWN = ("ResNet-18", "ResNet-50", "ResNet-152")
ASKED = "ResNet-50"

ChainOf = Callable[[str, int, int], Chain]
"""Network, image size, batch size."""


class EdgeCases:
    """Chains with what is known of them, each made once."""

    def __init__(self, chain_of: ChainOf, tick: Callable[[str], None]) -> None:
        self._chain_of, self._tick = chain_of, tick
        self.get = cache(self._make)

    def _make(self, network: str, image_size: int, batch_size: int) -> tuple[Case, MemoryCell]:
        self._tick(f"{network} at {image_size}x{image_size}, batch {batch_size}")
        case = Case(self._chain_of(network, image_size, batch_size), 1)
        return case, memory_cell(case, network, image_size, batch_size)


def num_chains(networks: Sequence[str]) -> int:
    """How many different chains the tables ask for."""
    return len(networks) * len({(SIZES[0], b) for b in BATCHES} | {(s, b) for s in SIZES for b in (1, BATCH)})


def edge_tables(
    chain_of: ChainOf,
    networks: Sequence[str],
    *,
    budget_bytes: int,
    num_points: int,
    question: Question,
    tick: Callable[[str], None] = lambda what: None,
) -> EdgeTables:
    """All tables; `tick` is told what is at hand before each chain is made."""
    cases = EdgeCases(chain_of, tick)
    worth, why_not = _worth(cases, networks, budget_bytes, question)
    return EdgeTables(
        budget_bytes=budget_bytes,
        by_batch=tuple(cases.get(n, SIZES[0], b)[1] for n in networks for b in BATCHES),
        by_size_alone=tuple(cases.get(n, s, 1)[1] for n in networks for s in SIZES),
        by_size=tuple(cases.get(n, s, BATCH)[1] for n in networks for s in SIZES),
        prices=tuple(_price(cases, n, s, budget_bytes) for n in networks for s in SIZES),
        curves=tuple(p for n in networks if n in DRAWN for p in _curve(cases, n, num_points)),
        published=_published(cases, networks),
        worth=worth,
        not_worth_because=why_not,
    )


def _price(cases: EdgeCases, network: str, image_size: int, budget_bytes: int) -> Price:
    case, cell = cases.get(network, image_size, BATCH)
    return price_of(case.with_budget(budget_bytes), cell, layers_of(network))


def _curve(cases: EdgeCases, network: str, num_points: int) -> tuple[Price, ...]:
    case, cell = cases.get(network, SIZE, BATCH)
    return price_curve(case, cell, layers_of(network), num_points)


def layers_of(network: str) -> int:
    """As many as its name says."""
    return int(network.rsplit("-", 1)[1])


def _published(cases: EdgeCases, networks: Sequence[str]) -> tuple[PublishedFigure, ...]:
    """What others reported of the same networks, where it can be set beside ours."""
    if "ResNet-18" not in networks:
        return ()
    cells = [cases.get("ResNet-18", SIZES[0], batch_size)[1] for batch_size in (BATCHES[0], BATCH, BATCHES[-1])]
    factors = (f"{cell.plain_bytes / cell.smallest_bytes:.1f} at batch {cell.batch_size}" for cell in cells)
    ours = "divided by at most " + ", ".join(factors) + f" (image {SIZES[0]}x{SIZES[0]})"
    return (
        PublishedFigure(
            what="memory of ResNet-18 when it recomputes",
            published="divided by 1.8",
            ours=ours,
            source="Naveen and Kumar, 2019 (on a Raspberry Pi; image size and batch not known here)",
        ),
    )


def _worth(
    cases: EdgeCases, networks: Sequence[str], budget_bytes: int, question: Question
) -> tuple[Worth | None, str]:
    network = ASKED if ASKED in networks else networks[0]
    case, cell = cases.get(network, SIZE, BATCH)
    slowdown = slowdown_of(case.with_budget(budget_bytes), "nested")
    if slowdown is None:
        return None, f"{network} at {SIZE}x{SIZE}, batch {BATCH} does not fit into the budget with any nested plan"
    return worth_of(case.chain, cell, slowdown, question), ""
