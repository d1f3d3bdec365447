"""How does the price of fitting look as curves: time of a step against its memory, a panel for each network?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memfit.records.reproduction import EdgeTables, Price
from memfit.show.figures.experiment import SETTINGS, require_matplotlib, save_both
from memfit.show.figures.timeline import BLUE, GREEN, GREY, ORANGE, RED
from memfit.units import GIB, format_bytes

CURVES: tuple[tuple[str, str, str, str, str], ...] = (
    ("nested", BLUE, "-", "o", "optimal nested plan"),
    ("sequential", GREEN, "--", "s", "sequential (equal segments)"),
    ("revolve", RED, ":", "^", "Revolve"),
    ("linear_revolve", ORANGE, "-.", "D", "Revolve, published formula (equal layers)"),
    ("linear_sequential", GREY, "-.", "v", "sequential, published formula (equal layers)"),
)
HIGHEST = 2.0
"""Slower than this is drawn as leaving the picture."""


def draw_edge(tables: EdgeTables, folder: str | Path, name: str = "edge") -> tuple[Path, ...]:
    """Write the curves as PNG and SVG; returns both paths, or none where there is nothing to draw."""
    if not tables.curves:
        return ()
    matplotlib = require_matplotlib()
    with matplotlib.rc_context(SETTINGS):
        return save_both(_draw(tables), Path(folder), name)


def _draw(tables: EdgeTables) -> Any:
    from matplotlib.figure import Figure

    networks = list(dict.fromkeys(price.network for price in tables.curves))
    picture = Figure(figsize=(max(11.0, 4.2 * len(networks)), 4.4), dpi=110, facecolor="white", layout="constrained")
    panels = picture.subplots(1, len(networks), squeeze=False, sharey=True)[0]
    for panel, network in zip(panels, networks, strict=True):
        _curves(panel, [price for price in tables.curves if price.network == network], tables.budget_bytes)
    panels[0].set_ylabel("time of a step over the plain step")
    handles, words = panels[0].get_legend_handles_labels()
    picture.legend(handles, words, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    picture.suptitle("What it costs to train in less memory (computed from shapes)", size=12)
    return picture


def _curves(panel: Any, prices: Sequence[Price], budget_bytes: int) -> None:
    memory = [price.budget_bytes / GIB for price in prices]
    for field, color, line, marker, words in CURVES:
        values = [getattr(price, field) for price in prices]
        heights = [float("nan") if value is None else value for value in values]
        panel.plot(
            memory, heights, color=color, linestyle=line, marker=marker, markersize=3.5, linewidth=1.8, label=words
        )
    if min(memory) < budget_bytes / GIB < max(memory):
        panel.axvline(budget_bytes / GIB, color="#20262e", linewidth=0.8, linestyle=(0, (1, 3)))
        panel.text(budget_bytes / GIB, HIGHEST, f" {format_bytes(budget_bytes)}", size=8, va="top")
    first = prices[0]
    title = f"{first.network}, {first.image_size}x{first.image_size}, batch {first.batch_size}"
    panel.set_title(title, size=10, loc="left")
    panel.set_xlabel("memory, GiB")
    panel.set_ylim(0.97, HIGHEST)
    panel.grid(color="#e3e6ea", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
