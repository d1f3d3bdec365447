"""Training a ResNet on a small device: memory, the price of fitting, and the published statements.

The edge work (Kukreja et al., "Training on the edge: the why and the how", 2019) takes a ResNet as a chain of equal
layers, as many as its name says, with a backward of two forwards:

- `checkpoint_sequential` with s segments holds s - 1 + (l - floor(l / s) (s - 1)) layers and runs all but the last
  segment twice;
- Revolve with c slots repeats t(l, c) steps (`revolve`), and runs every step once more with everything kept.

Beside these stand the same two rules and the nested plan on the chain as it is, unequal stages and all. The chain of a
network at a batch and an image size is handed in, so that this file decides nothing about torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from memfit.plan.case import Case, judge
from memfit.plan.planners import PLANNERS
from memfit.plan.recompute.revolve import advances
from memfit.records.plan import Chain
from memfit.records.reproduction import EdgeTables, LinkSpeed, MemoryCell, Price, Statement, Worth
from memfit.reproduce.statements import judged

FORWARDS_PER_STEP = 3
"""One forward, and a backward of two."""
HOURS_PER_DAY = 24.0
SPEEDS_MBIT = (0.1, 1.0, 10.0, 100.0)
BATCHES, SIZES = (1, 2, 4, 8, 16, 32), (224, 350, 500, 650)
BATCH, SIZE = 8, 500
"""Of the price, the curves and the question of worth."""
DRAWN = ("ResNet-18", "ResNet-50", "ResNet-152")
ASKED = "ResNet-50"
RESNET_18_FACTOR = 1.8
EDGE_SOURCE = "Kukreja et al., 2019"
FACTOR_SOURCE = "Naveen and Kumar, 2019"
MEMORY_SAYS = "memory, not computing or the network, is what stops training on such a device"
CHECKPOINTS_SAY = "recomputing brings the training into the memory of the device"
FACTOR_SAYS = "recomputing divides the memory of ResNet-18 by 1.8"

ChainOf = Callable[[str, int, int], Chain]
"""Network, image size, batch size."""


def memory_cell(case: Case, network: str, image_size: int, batch_size: int) -> MemoryCell:
    """What a step takes with everything kept, and at least."""
    nested = case.nested
    return MemoryCell(
        network=network,
        image_size=image_size,
        batch_size=batch_size,
        plain_bytes=nested.plain.peak_bytes,
        smallest_bytes=nested.least.peak_bytes,
    )


def price_of(case: Case, cell: MemoryCell, num_layers: int) -> Price:
    """The time of a step within the budget over the plain one, by three rules on the chain and two formulas."""
    slots = linear_slots(case.chain, case.budget_bytes, num_layers)
    return Price(
        network=cell.network,
        image_size=cell.image_size,
        batch_size=cell.batch_size,
        budget_bytes=case.budget_bytes,
        plain_bytes=cell.plain_bytes,
        smallest_bytes=cell.smallest_bytes,
        sequential=slowdown_of(case, "equal segments"),
        revolve=slowdown_of(case, "revolve"),
        nested=slowdown_of(case, "nested"),
        linear_slots=slots,
        linear_sequential=linear_sequential(num_layers, slots),
        linear_revolve=linear_revolve(num_layers, slots),
    )


def price_curve(case: Case, cell: MemoryCell, num_layers: int, num_points: int) -> tuple[Price, ...]:
    """The price at budgets in equal steps from the smallest to the plain peak."""
    low, span = cell.smallest_bytes, cell.plain_bytes - cell.smallest_bytes
    budgets = [low + span * k // max(1, num_points - 1) for k in range(num_points)]
    return tuple(price_of(case.with_budget(budget_bytes), cell, num_layers) for budget_bytes in budgets)


def slowdown_of(case: Case, planner: str) -> float | None:
    """The seconds of one planner's plan over the plain ones; None where it does not fit."""
    proposal = PLANNERS[planner].propose(case)
    outcome = None if proposal is None else judge(case, proposal)
    return None if outcome is None else outcome.replayed.seconds / case.nested.plain.seconds


# ---- equal layers ------------------------------------------------------------------------------------------------


def linear_slots(chain: Chain, budget_bytes: int, num_layers: int) -> int:
    """How many layers fit beside parameters and gradients when all are equally large."""
    gradient_bytes = sum(stage.gradient_bytes for stage in chain.stages)
    layer_bytes = sum(stage.saved_bytes for stage in chain.stages) / num_layers
    free_bytes = budget_bytes - chain.fixed.total_bytes - chain.input_bytes - gradient_bytes
    return max(0, min(num_layers, int(free_bytes / layer_bytes)))


def linear_sequential(num_layers: int, num_slots: int) -> float | None:
    """The fastest number of segments whose layers fit; one segment keeps everything."""
    times = []
    for num_segments in range(1, num_layers + 1):
        last = num_layers - num_layers // num_segments * (num_segments - 1)
        if num_segments - 1 + last <= num_slots:
            times.append(1 + (num_layers - last) / (FORWARDS_PER_STEP * num_layers))
    return min(times, default=None)


def linear_revolve(num_layers: int, num_slots: int) -> float | None:
    """Revolve's closed form: repeated steps, then every step once more with everything kept, and the backwards."""
    if num_slots < 1:
        return None
    return 1 + advances(num_layers, num_slots) / (FORWARDS_PER_STEP * num_layers)


# ---- is it worth it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeQuestion:
    """A device, a link and a day's images; the figures are the user's, or assumed."""

    link_mbit: float = 10.0
    link_watts: float = 2.0
    device_gflops: float = 20.0
    """Reached in training, two operations for a multiplication with its addition."""
    device_watts: float = 10.0
    images_per_day: int = 5000
    image_bytes: int = 250_000
    num_epochs: int = 1


def worth_of(chain: Chain, cell: MemoryCell, slowdown: float, question: EdgeQuestion) -> Worth:
    """Hours and watt-hours of a day's images: sent over links, or trained on where they are."""
    gflop = sum(stage.forward_seconds for stage in chain.stages) * 1e3 / cell.batch_size
    hours_per_image = question.num_epochs * gflop * FORWARDS_PER_STEP * slowdown / question.device_gflops / 3600
    train_hours = question.images_per_day * hours_per_image
    train_watt_hours = train_hours * question.device_watts
    day_megabits = question.images_per_day * question.image_bytes * 8 / 1e6
    return Worth(
        network=cell.network,
        image_size=cell.image_size,
        images_per_day=question.images_per_day,
        image_bytes=question.image_bytes,
        num_epochs=question.num_epochs,
        gflop_per_image=gflop,
        device_gflops=question.device_gflops,
        device_watts=question.device_watts,
        link_watts=question.link_watts,
        slowdown=slowdown,
        train_hours=train_hours,
        train_watt_hours=train_watt_hours,
        links=tuple(
            _link_speed(mbit, day_megabits, question.link_watts, train_hours, train_watt_hours)
            for mbit in dict.fromkeys((question.link_mbit, *SPEEDS_MBIT))
        ),
        most_images_per_day=int(HOURS_PER_DAY / hours_per_image),
        equal_mbit_per_second=day_megabits / (train_hours * 3600),
    )


def _link_speed(
    mbit: float, day_megabits: float, link_watts: float, train_hours: float, train_watt_hours: float
) -> LinkSpeed:
    send_hours = day_megabits / mbit / 3600
    watt_hours = send_hours * link_watts
    verdict = _verdict(send_hours, train_hours, cheaper_to_send=watt_hours < train_watt_hours)
    return LinkSpeed(mbit_per_second=mbit, send_hours=send_hours, send_watt_hours=watt_hours, verdict=verdict)


def _verdict(send_hours: float, train_hours: float, *, cheaper_to_send: bool) -> str:
    if send_hours > HOURS_PER_DAY and train_hours > HOURS_PER_DAY:
        return "neither keeps up: fewer images, fewer passes or a smaller network"
    if send_hours > HOURS_PER_DAY:
        return "the link does not keep up: train on the device"
    if train_hours > HOURS_PER_DAY:
        return "the device does not keep up: send"
    if cheaper_to_send:
        return "both keep up; sending takes less energy: train where data may not leave"
    return "both keep up; training on the device takes less energy"


# ---- the tables ------------------------------------------------------------------------------------------------------


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
    question: EdgeQuestion,
    tick: Callable[[str], None] = lambda what: None,
) -> EdgeTables:
    """All tables; `tick` is called with what is at hand before each chain is made."""
    cases = EdgeCases(chain_of, tick)
    worth, why_not = _worth(cases, networks, budget_bytes, question)
    by_batch = tuple(cases.get(n, SIZES[0], b)[1] for n in networks for b in BATCHES)
    prices = tuple(_price(cases, n, s, budget_bytes) for n in networks for s in SIZES)
    return EdgeTables(
        budget_bytes=budget_bytes,
        by_batch=by_batch,
        by_size_alone=tuple(cases.get(n, s, 1)[1] for n in networks for s in SIZES),
        by_size=tuple(cases.get(n, s, BATCH)[1] for n in networks for s in SIZES),
        prices=prices,
        curves=tuple(p for n in networks if n in DRAWN for p in _curve(cases, n, num_points)),
        statements=statements_on(prices, by_batch, worth),
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


def _worth(
    cases: EdgeCases, networks: Sequence[str], budget_bytes: int, question: EdgeQuestion
) -> tuple[Worth | None, str]:
    network = ASKED if ASKED in networks else networks[0]
    case, cell = cases.get(network, SIZE, BATCH)
    slowdown = slowdown_of(case.with_budget(budget_bytes), "nested")
    if slowdown is None:
        return None, f"{network} at {SIZE}x{SIZE}, batch {BATCH} does not fit into the budget with any nested plan"
    return worth_of(case.chain, cell, slowdown, question), ""


# ---- what the sources say --------------------------------------------------------------------------------------------


def statements_on(
    prices: Sequence[Price], by_batch: Sequence[MemoryCell], worth: Worth | None
) -> tuple[Statement, ...]:
    """Every statement with its verdict."""
    cells = [cell for cell in by_batch if cell.network == "ResNet-18"]
    return (_on_memory(prices, worth), _on_checkpoints(prices), *((_on_factor(cells),) if cells else ()))


def _on_memory(prices: Sequence[Price], worth: Worth | None) -> Statement:
    """Holds where some plain steps do not fit, while computing and sending keep up with a day's images."""
    too_large = [price for price in prices if price.plain_bytes > price.budget_bytes]
    counted = f"{len(too_large)} of {len(prices)} steps (batch {BATCH})"
    evidence = [f"with everything kept, {counted} take more than the budget"]
    if worth is None:
        reason = "no plan fits the step that is asked about, so that computing and sending cannot be compared"
        return judged(MEMORY_SAYS, EDGE_SOURCE, evidence=evidence, holds=None if too_large else False, reason=reason)
    asked = worth.links[0]
    evidence += [
        f"a day's images take {worth.train_hours:.1f} h of computing at {worth.device_gflops:g} GFLOP/s, and "
        f"{asked.send_hours:.1f} h to send at {asked.mbit_per_second:g} Mbit/s (both assumed, unless they were given)"
    ]
    keep_up = worth.train_hours <= HOURS_PER_DAY and asked.send_hours <= HOURS_PER_DAY
    return judged(MEMORY_SAYS, EDGE_SOURCE, evidence=evidence, holds=bool(too_large) and keep_up)


def _on_checkpoints(prices: Sequence[Price]) -> Statement:
    """Holds where every step that is too large fits by Revolve's formula and by the nested plan on the network."""
    too_large = [price for price in prices if price.plain_bytes > price.budget_bytes]
    if not too_large:
        reason = "every step fits with everything kept; a smaller --budget would tell"
        return judged(CHECKPOINTS_SAY, EDGE_SOURCE, evidence=(), holds=None, reason=reason)
    rules = {
        "Revolve on equal layers": [price.linear_revolve for price in too_large],
        "sequential checkpoints on equal layers": [price.linear_sequential for price in too_large],
        "the optimal nested plan on the network as it is": [price.nested for price in too_large],
    }
    evidence = []
    for rule, times in rules.items():
        fits = [time for time in times if time is not None]
        slowest = f", at most x{max(fits):.2f} as long" if fits else ""
        evidence.append(f"{rule}: {len(fits)} of {len(too_large)} steps that are too large fit{slowest}")
    revolve, _, nested = rules.values()
    return judged(CHECKPOINTS_SAY, EDGE_SOURCE, evidence=evidence, holds=None not in (*revolve, *nested))


def _on_factor(cells: Sequence[MemoryCell]) -> Statement:
    """Image size and batch of the source are not known here, so that no factor of ours can confirm or refute it."""
    shown = [cell for cell in cells if cell.batch_size in (BATCHES[0], BATCH, BATCHES[-1])]
    factors = (f"{cell.plain_bytes / cell.smallest_bytes:.1f} at batch {cell.batch_size}" for cell in shown)
    evidence = ("divided by at most " + ", ".join(factors) + f" (image {SIZES[0]}x{SIZES[0]})",)
    reason = "the factor depends on batch and image size; those of the source (on a Raspberry Pi) are not known here"
    published = f"divided by {RESNET_18_FACTOR}"
    return judged(FACTOR_SAYS, FACTOR_SOURCE, published=published, evidence=evidence, holds=None, reason=reason)
