"""Memory curve drawn with letters (sparkline), whose peak stays the highest letter."""

from __future__ import annotations

import numpy as np
from rich.text import Text

from memfit.show.views.decimate import DecimationLevel
from memfit.units import format_bytes, format_seconds

EIGHTHS = " ▁▂▃▄▅▆▇█"
HEIGHT = 4


def timeline_text(
    level: DecimationLevel, *, end_seconds: float, width: int, height: int = HEIGHT, top_bytes: float = 0.0
) -> Text:
    """Bars over time, with a scale beside and the time below; each column shows the highest value of its stretch."""
    top = max(float(level.high.max()), top_bytes)
    label = format_bytes(top)
    columns = max(width - len(label) - 4, 8)
    end_seconds = max(end_seconds, float(level.time_seconds[-1]), 1e-9)
    high = _columns(level.time_seconds, level.high, end_seconds, columns, np.maximum)
    low = _columns(level.time_seconds, level.low, end_seconds, columns, np.minimum)
    text = Text(no_wrap=True, overflow="crop")
    for row in range(height - 1, -1, -1):
        scale = label if row == height - 1 else ("0" if row == 0 else "")
        text.append(f"{scale:>{len(label)}} │", style="dim")
        for high_value, low_value in zip(high, low, strict=True):
            solid = low_value / top * height >= row + 0.5 if top else False
            text.append(_letter(high_value, top, row, height), style="cyan" if solid else "blue")
        text.append("\n")
    begin, end = "0 s", format_seconds(end_seconds)
    gap = max(columns - len(begin) - len(end), 1)
    text.append(" " * (len(label) + 2) + begin + " " * gap + end, style="dim")
    return text


def _letter(value: float, top: float, row: int, height: int) -> str:
    """The part of a bar that falls into one text row; any value above zero shows at least a sliver."""
    if not value > 0 or not top > 0:
        return " "
    eighths = round(value / top * height * 8) - row * 8
    return EIGHTHS[min(max(eighths, 1 if row == 0 else 0), 8)]


def _columns(times: np.ndarray, values: np.ndarray, end_seconds: float, columns: int, join: np.ufunc) -> np.ndarray:
    """Highest (or lowest) value per column; a column without a sample repeats the last one."""
    column = np.minimum((times / end_seconds * columns).astype(int), columns - 1)
    empty = -np.inf if join is np.maximum else np.inf
    joined = np.full(columns, empty)
    join.at(joined, column, values)
    held = np.nan
    for index in range(columns):
        held = joined[index] if np.isfinite(joined[index]) else held
        joined[index] = 0.0 if np.isnan(held) else held
    return joined
