"""Report of a run: which pages and pictures are written, and where."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from memfit.records.difference import Comparison
from memfit.show.new_file import check_new
from memfit.show.page.page import write_page
from memfit.show.views.run import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Where each kind goes; None for not asked for."""

    html: str | Path | None = None
    png: str | Path | None = None
    svg: str | Path | None = None


def beside_the_record(folder: str) -> Targets:
    """The page in the run folder, and the pictures where matplotlib is installed."""
    page = Path(folder) / "report.html"
    if find_spec("matplotlib") is None:
        return Targets(html=page)
    return Targets(html=page, png=page.with_name("timeline.png"), svg=page.with_name("timeline.svg"))


def write_all(
    view: RunView,
    page_view: RunView,
    targets: Targets,
    *,
    other: RunView | None = None,
    comparison: Comparison | None = None,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """Check every target first, then write them."""
    wanted = [target for target in (targets.html, targets.png, targets.svg) if target is not None]
    paths = [check_new(target, overwrite=overwrite) for target in wanted]
    if targets.html is not None:
        write_page(page_view, targets.html, other=other, comparison=comparison)
    if targets.png is not None or targets.svg is not None:
        from memfit.show.figures.timeline import draw_timeline

        if targets.png is not None:
            draw_timeline(view, targets.png, kind="png")
        if targets.svg is not None:
            draw_timeline(view, targets.svg, kind="svg")
    return tuple(paths)
