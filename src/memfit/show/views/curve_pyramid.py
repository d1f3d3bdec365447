"""Window into long curves: a stretch of time at a number of rows, from a pyramid that holds every peak; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from memfit.show.views.curves import Curve
from memfit.show.views.decimate import DecimationLevel, coarsen


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveWindow:
    """One curve between two moments; row i covers the samples from its time up to the next row."""

    name: str
    role: str
    index: int
    source: str
    rows: DecimationLevel


def window_of(curves: Iterable[Curve], begin_seconds: float, end_seconds: float, num_rows: int) -> list[CurveWindow]:
    """Every curve in a stretch of time, in at most twice `num_rows` rows; lowest and highest are the true ones."""
    return [
        CurveWindow(
            name=curve.name,
            role=curve.role,
            index=curve.index,
            source=curve.source,
            rows=_stretch(curve.levels, begin_seconds, end_seconds, max(num_rows, 1)),
        )
        for curve in curves
    ]


def _stretch(
    levels: tuple[DecimationLevel, ...], begin_seconds: float, end_seconds: float, num_rows: int
) -> DecimationLevel:
    """The coarsest level that has enough rows in the stretch, or the finest; with the row before and the one behind."""
    best, place = levels[0], _rows(levels[0], begin_seconds, end_seconds)
    for level in levels[1:]:
        first, last = _rows(level, begin_seconds, end_seconds)
        if last - first >= num_rows:
            best, place = level, (first, last)
    first, last = place
    rows = DecimationLevel(
        time_seconds=best.time_seconds[first:last],
        low=best.low[first:last],
        high=best.high[first:last],
        samples_per_row=best.samples_per_row,
    )
    return coarsen(rows, -(-len(rows) // (2 * num_rows))) if len(rows) > 2 * num_rows else rows


def _rows(level: DecimationLevel, begin_seconds: float, end_seconds: float) -> tuple[int, int]:
    first = int(np.searchsorted(level.time_seconds, begin_seconds, side="right")) - 1
    last = int(np.searchsorted(level.time_seconds, end_seconds, side="right")) + 1
    return max(first, 0), min(last, len(level))
