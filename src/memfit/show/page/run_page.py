"""HTML page of a run: one self-contained file that works offline.

Everything is inside the file: data, style and script. A content security policy with the hashes of exactly that
style and script forbids everything else, the network included, so a hostile command line or module name stays text.

Report of a run: which pages and pictures are written, and where.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from memfit.records.difference import Comparison
from memfit.show.new_file import check_new, write_bytes
from memfit.show.page.data import page_json
from memfit.show.views.run import RunView

SCRIPTS = ("numbers.js", "chart.js", "timeline.js", "steps.js", "ledger.js", "tables.js", "main.js")
STYLE = "page.css"
FRAME = "page.html"


def page_html(view: RunView, *, other: RunView | None = None, comparison: Comparison | None = None) -> str:
    """The whole page as text."""
    style = _asset(STYLE)
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset(FRAME)).substitute(
        policy=policy,
        title=_escaped(f"{view.headline.title} - memfit"),
        style=style,
        data=page_json(view, other, comparison),
        script=script,
    )


def write_page(
    view: RunView, path: str | Path, *, other: RunView | None = None, comparison: Comparison | None = None
) -> Path:
    """Write the page to a file."""
    return write_bytes(Path(path), page_html(view, other=other, comparison=comparison).encode("utf-8", "replace"))


def _asset(name: str) -> str:
    return files("memfit.show.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escaped(text: str) -> str:
    for letter, escape in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(letter, escape)
    return text


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
