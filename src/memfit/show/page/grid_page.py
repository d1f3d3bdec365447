"""Page of a grid: the table of peaks with what binds each cell, the budget's answer and the figures, in one HTML file.

Everything a grid holds is text here, never markup: names of optimizers and reasons come from users' jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from memfit.records.grid import Grid, GridCell
from memfit.show.terminal.grid import budget_lines, cell_text, grid_title, reason_lines, technique_lines
from memfit.units import format_bytes

STYLE = """
:root { color-scheme: light dark; --ink: #20262e; --soft: #6b7480; --line: #d9dde2; --paper: #fff;
  --saves: #d5ede2; --costs: #f6dcd2; --same: #f4ecc9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa3ad; --line: #3a4149; --paper: #15191e;
  --saves: #17402f; --costs: #51271a; --same: #453c14; } figure { background: #fff; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
td.saves { background: var(--saves); } td.costs { background: var(--costs); } td.same { background: var(--same); }
td small { display: block; color: var(--soft); } td.none { color: var(--soft); }
figure { margin: 1.5rem 0; padding: .5rem; border-radius: 6px; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; } pre { white-space: pre-wrap; }
"""
CLASSES = {"saves": "saves", "costs": "costs", "useless here": "same"}
SIGNS = {"saves": "\N{MINUS SIGN}", "costs": "+"}


def grid_page(grid: Grid, figures: Sequence[Path] = ()) -> str:
    """The whole page; `figures` are SVG files of our own, put into it."""
    title = escape(grid_title(grid))
    parts = [
        f"<h1>{title}</h1>",
        f'<div class="wide">{_table(grid)}</div>',
        "<p>Green saves, red costs, yellow leaves the peak where it was; point at a cell for the reason.</p>",
        _section("What a technique does", technique_lines(grid)),
        _section("Into the budget", [] if grid.budget is None else budget_lines(grid.budget, grid)),
        _section("Not in the table", reason_lines(grid)),
        *(_figure(path) for path in figures),
        _section("How exact", grid.notes),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    guard = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    top = f'<!doctype html><html lang="en"><head>{head}{guard}<style>{STYLE}</style></head>'
    return f"{top}<body>{''.join(parts)}</body></html>"


def _table(grid: Grid) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("optimizer", *grid.techniques))
    rows = "".join(
        f"<tr><td>{escape(optimizer)}</td>"
        + "".join(_cell(grid.cell(optimizer, technique)) for technique in grid.techniques)
        + "</tr>"
        for optimizer in grid.optimizers
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(cell: GridCell | None) -> str:
    if cell is None or cell.figures is None:
        why = "" if cell is None else cell.reason
        return f'<td class="none" title="{escape(why)}">{escape("-" if cell is None else cell_text(cell))}</td>'
    saved = ""
    if cell.saved_bytes and cell.value in SIGNS:
        saved = f"<small>{SIGNS[cell.value]}{format_bytes(abs(cell.saved_bytes))}</small>"
    return f'<td class="{CLASSES.get(cell.value, "")}" title="{escape(cell.why)}">{escape(cell_text(cell))}{saved}</td>'


def _section(title: str, lines: Iterable[str]) -> str:
    text = "\n".join(escape(line) for line in lines)
    return f"<h2>{escape(title)}</h2><pre>{text}</pre>" if text else ""


def _figure(path: Path) -> str:
    """An SVG of our own, from its root element on."""
    text = path.read_text(encoding="utf-8")
    return f"<figure>{text[text.index('<svg') :]}</figure>"
