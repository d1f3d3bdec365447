"""Picture of a pipeline step: what every rank and link does over time, and the memory of every rank against its limit.

Forward is blue, backward orange, weights green, transfers thin and grey on the line between two ranks; white is a
bubble. Numbers are micro-batches. Colours are from the Okabe-Ito set.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memfit.records.pipeline import PipelineEvent, PipelinePlan
from memfit.show.figures.reproduction import SETTINGS, require_matplotlib, save_both
from memfit.show.figures.timeline import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from memfit.units import GIB, MIB, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"forward": SKY, "backward": ORANGE, "weight": GREEN, "send": GREY, "send back": PURPLE}
WORDS = {
    "forward": "forward", "backward": "backward", "weight": "weights", "send": "activations sent",
    "send back": "gradients sent",
}  # fmt: skip
LINES = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY, "#20262e")
MOST_LABELS = 600
_INK = "#20262e"


def draw_pipeline(plan: PipelinePlan, folder: str | Path, name: str = "schedule") -> tuple[Path, ...]:
    """Write the picture as PNG and SVG."""
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(SETTINGS):
        return save_both(_picture(plan), Path(folder), name)


def _picture(plan: PipelinePlan) -> Figure:
    from matplotlib.figure import Figure

    num_ranks = plan.cut.num_ranks
    height = 0.62 * num_ranks + 0.9
    picture = Figure(figsize=(13.0, height + 3.3), dpi=110, facecolor="white", layout="constrained")
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=[height, 2.6])
    factor, unit = _time_unit(plan.step.seconds)
    _draw_events(above, plan, factor)
    _draw_memory(below, plan, factor)
    below.set_xlabel(f"{unit} of one step, {plan.cut.num_micro_batches} micro-batches")
    below.set_xlim(0, plan.step.seconds * factor)
    picture.suptitle(_title(plan), size=12, x=0.01, ha="left")
    return picture


def _title(plan: PipelinePlan) -> str:
    order = "an order of its own" if plan.cut.schedule == "custom" else plan.cut.schedule
    target = (
        Path(plan.chain.target).name if "/" not in plan.chain.target else "/".join(plan.chain.target.split("/")[-2:])
    )
    idle = sum(plan.step.idle_shares) / len(plan.step.idle_shares)
    return (
        f"{target} on {plan.cut.num_ranks} ranks, {plan.planner}, {order}: "
        f"{format_seconds(plan.step.seconds)} a step, {idle:.0%} idle"
    )


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1e3, "milliseconds") if seconds < 10 else (1.0, "seconds")


def _draw_events(place: Axes, plan: PipelinePlan, factor: float) -> None:
    """A row per rank, transfers on the lines between them."""
    labels = sum(event.resource.startswith("rank") for event in plan.step.events) <= MOST_LABELS
    shown: set[str] = set()
    for event in plan.step.events:
        row, thickness = _row(event)
        start, length = event.start_seconds * factor, event.seconds * factor
        place.barh(
            row, length, left=start, height=thickness, color=COLORS[event.kind], edgecolor="white", linewidth=0.5,
            label=WORDS[event.kind] if event.kind not in shown else None,
        )  # fmt: skip
        shown.add(event.kind)
        if labels and event.resource.startswith("rank") and length > 0.011 * plan.step.seconds * factor:
            text = str(event.micro_batch)
            if len(plan.cut.stages) > plan.cut.num_ranks:
                text = f"{event.micro_batch}\ns{event.stage}"
            place.text(start + length / 2, row, text, ha="center", va="center", size=7, color=_INK)
    place.set_yticks(range(plan.cut.num_ranks), [f"rank {rank}" for rank in range(plan.cut.num_ranks)])
    place.set_ylim(plan.cut.num_ranks - 0.45, -0.6)
    place.spines[["top", "right"]].set_visible(False)
    place.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False, fontsize=9)


def _row(event: PipelineEvent) -> tuple[float, float]:
    if event.resource.startswith("rank"):
        return float(event.resource.split()[1]), 0.62
    low, high = event.resource.split()[1].split("-")
    return (int(low) + int(high)) / 2, 0.16


def _draw_memory(place: Axes, plan: PipelinePlan, factor: float) -> None:
    top = max(max(curve.num_bytes) for curve in plan.step.curves)
    size, unit = (GIB, "GiB") if top >= GIB else (MIB, "MiB")
    for curve in plan.step.curves:
        color = LINES[curve.rank % len(LINES)]
        is_fullest = curve.rank == plan.fullest_rank
        place.step(
            [second * factor for second in curve.seconds], [value / size for value in curve.num_bytes], where="post",
            color=color, linewidth=2.2 if is_fullest else 1.2, linestyle="-" if curve.rank < len(LINES) else "--",
            label=f"rank {curve.rank}: {format_bytes(max(curve.num_bytes))}" + (", the fullest" if is_fullest else ""),
        )  # fmt: skip
    for limit in sorted(set(plan.limits_bytes)):
        if limit < 3 * top:
            place.axhline(limit / size, color=RED, linewidth=1, linestyle=(0, (4, 3)))
            place.text(0, limit / size, f" limit {format_bytes(limit)}", va="bottom", size=8, color=RED)
    place.set_ylabel(f"{unit} of a rank")
    place.set_ylim(bottom=0)
    place.grid(axis="y", color="#e3e6ea", linewidth=0.6)
    place.set_axisbelow(True)
    place.spines[["top", "right"]].set_visible(False)
    place.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
