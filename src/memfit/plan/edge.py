"""What does it cost to train in the memory of a small device, by published formulas and by the optimal plan?

The edge work (Kukreja et al., "Training on the edge: the why and the how", 2019) takes a ResNet as a chain of equal
layers, as many as its name says, with a backward of two forwards:

- `checkpoint_sequential` with s segments holds s - 1 + (l - floor(l / s) (s - 1)) layers and runs all but the last
  segment twice;
- Revolve with c slots repeats t(l, c) steps (`revolve`), and runs every step once more with everything kept.

Beside these stand the same two rules and the nested plan on the chain as it is, unequal stages and all.
"""

from __future__ import annotations

from dataclasses import dataclass

from memfit.plan.case import Case, judge
from memfit.plan.planners import PLANNERS
from memfit.plan.recompute.revolve import advances
from memfit.records.plan import Chain
from memfit.records.reproduction import LinkSpeed, MemoryCell, Price, Worth

FORWARDS_PER_STEP = 3
"""One forward, and a backward of two."""
HOURS_PER_DAY = 24.0
SPEEDS_MBIT = (0.1, 1.0, 10.0, 100.0)


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
class Question:
    """A device, a link and a day's images; the figures are the user's, or assumed."""

    link_mbit: float = 10.0
    link_watts: float = 2.0
    device_gflops: float = 20.0
    """Reached in training, two operations for a multiplication with its addition."""
    device_watts: float = 10.0
    images_per_day: int = 5000
    image_bytes: int = 250_000
    num_epochs: int = 1


def worth_of(chain: Chain, cell: MemoryCell, slowdown: float, question: Question) -> Worth:
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
