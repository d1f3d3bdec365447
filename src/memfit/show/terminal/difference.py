"""Two compared runs in the terminal: the answer first, then one row per quantity."""

from __future__ import annotations

from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.records.difference import Comparison, Difference, Side
from memfit.show.text_output import render, table
from memfit.show.wording import command_text, cut, short_text, value_text
from memfit.units import format_ratio

_STYLE = {"larger than the noise": "bold", "within the noise": "dim", "cannot tell": "yellow"}
_SHORT = {"larger than the noise": "larger", "within the noise": "within", "cannot tell": "cannot tell"}


def comparison_text(comparison: Comparison, *, width: int = 80, color: bool = False) -> str:
    """The comparison as text."""
    parts = [_sides(comparison, width), _answer(comparison), _rows(comparison, width), _reasons(comparison)]
    if comparison.notes:
        parts.append(_notes(comparison))
    return render(Group(*(Padding(part, (0, 0, 1, 0)) for part in parts)), width, color)


def _sides(comparison: Comparison, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for side in (comparison.first, comparison.second):
        grid.add_row(Text(side.label, style="bold"), _side_text(side, width))
    return grid


def _side_text(side: Side, width: int) -> str:
    folders = side.folders[0] if side.num_runs == 1 else _many(side)
    return f"{cut(command_text(side.command), max(width - 6, 20))}\n{folders}"


def _many(side: Side) -> str:
    """'4 runs: out/a1, a2, a3, a4' where they lie in one folder."""
    parents = {str(PurePath(folder).parent) for folder in side.folders}
    names = side.folders if len(parents) > 1 else (side.folders[0], *(PurePath(f).name for f in side.folders[1:]))
    return f"{side.num_runs} runs: {', '.join(names)}"


def _answer(comparison: Comparison) -> RenderableType:
    """One sentence on the peak."""
    peak = next((d for d in comparison.differences if d.name == "peak"), None)
    if peak is None or peak.change.value is None:
        return Text("Peak: cannot be compared", style="yellow")
    delta = peak.change.value
    ratio = f" ({format_ratio(abs(delta) / peak.first.value)})" if peak.first.value else ""
    text = Text()
    if peak.verdict == "cannot tell":
        text.append("Whether the peaks differ is unknown", style="yellow")
        text.append(f": {peak.reason}")
        return text
    if delta == 0:
        text.append("The peaks are equal")
    else:
        text.append(
            f"B's peak is {value_text(abs(delta), 'bytes')}{ratio} {'higher' if delta > 0 else 'lower'} than A's"
        )
    text.append(f": {peak.verdict}", style=_STYLE[peak.verdict] if peak.verdict != "within the noise" else "")
    text.append(f" (± {value_text(peak.noise or 0.0, 'bytes')})")
    if peak.resolves is not None:
        text.append(f"; a true difference above {_share(peak.resolves, peak)} would have been seen")
    return text


def _share(value: float, difference: Difference) -> str:
    """In percent of A where A is not zero."""
    base = difference.first.value
    return format_ratio(value / abs(base)) if base else value_text(value, difference.change.unit)


def _rows(comparison: Comparison, width: int) -> RenderableType:
    repeated = any(difference.resolves is not None for difference in comparison.differences)
    columns = (">noise", ">seen from") if repeated else (">noise",)
    rows = table("quantity", ">A", ">B", ">change", *columns, "verdict")
    group = ""
    room = max(width - (70 if repeated else 59), 20)
    for difference in comparison.differences:
        if difference.group != group and group:
            rows.add_row("")
        group = difference.group
        rows.add_row(
            cut(difference.name, room),
            short_text(difference.first),
            short_text(difference.second),
            _change(difference),
            "-" if difference.noise is None else f"± {value_text(difference.noise, difference.change.unit)}",
            *([_seen_from(difference)] if repeated else []),
            Text(_SHORT[difference.verdict], style=_STYLE[difference.verdict]),
        )
    return rows


def _seen_from(difference: Difference) -> str:
    return "-" if difference.resolves is None else _share(difference.resolves, difference)


def _change(difference: Difference) -> str:
    value = difference.change.value
    if value is None:
        return "-"
    return f"{'+' if value > 0 else ''}{value_text(value, difference.change.unit)}"


def _reasons(comparison: Comparison) -> RenderableType:
    """What the noise of each row rests on, each reason once."""
    reasons: dict[str, list[str]] = {}
    for difference in comparison.differences:
        reasons.setdefault(difference.reason, []).append(difference.name)
    grid = Table.grid(padding=(0, 1))
    for reason, names in reasons.items():
        whose = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        grid.add_row(Text("•", style="dim"), Text.assemble((whose, "bold"), f": {reason}"))
    return Group(Text("Noise", style="bold"), Padding(grid, (0, 0, 0, 2)))


def _notes(comparison: Comparison) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for note in comparison.notes:
        grid.add_row(Text("•", style="yellow"), note)
    return Group(Text("Also", style="bold"), Padding(grid, (0, 0, 0, 2)))
