"""Downsampling of long curves that loses no peak.

Consecutive samples are put into buckets of equal count, and each bucket keeps its lowest and its highest value.
Averaging, or picking every k-th sample, would cut the tops off; the highest value of any range of whole buckets
here is the true one. `pyramid` holds the same curve at several resolutions so that a page can zoom without holding
every sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class DecimationLevel:
    """One curve at one resolution; row i covers the samples from time_seconds[i] up to the next row."""

    time_seconds: np.ndarray
    low: np.ndarray
    high: np.ndarray
    samples_per_row: int

    def __len__(self) -> int:
        return len(self.time_seconds)


def decimate(time_seconds: np.ndarray, values: np.ndarray, max_rows: int) -> DecimationLevel:
    """Lowest and highest value of at most `max_rows` buckets."""
    if max_rows < 1:
        raise ValueError("a curve needs at least one row")
    level = DecimationLevel(time_seconds=time_seconds, low=values, high=values, samples_per_row=1)
    return coarsen(level, -(-len(values) // max_rows)) if len(values) > max_rows else level


def coarsen(level: DecimationLevel, factor: int) -> DecimationLevel:
    """Join every `factor` rows into one."""
    starts = np.arange(0, len(level), factor)
    if not len(starts):
        return level
    return DecimationLevel(
        time_seconds=level.time_seconds[starts],
        low=np.minimum.reduceat(level.low, starts),
        high=np.maximum.reduceat(level.high, starts),
        samples_per_row=level.samples_per_row * factor,
    )


def pyramid(
    time_seconds: np.ndarray, values: np.ndarray, *, max_rows: int, min_rows: int = 2048, factor: int = 8
) -> tuple[DecimationLevel, ...]:
    """The curve at its finest allowed resolution first, then `factor` times coarser until `min_rows` is reached."""
    levels = [decimate(time_seconds, values, max_rows)]
    while len(levels[-1]) > min_rows:
        levels.append(coarsen(levels[-1], factor))
    return tuple(levels)


def highest_rows(values: np.ndarray, max_rows: int) -> np.ndarray:
    """Rows with the highest value of each of at most `max_rows` groups of consecutive rows; nan counts as lowest."""
    if len(values) <= max_rows:
        return np.arange(len(values))
    size = -(-len(values) // max_rows)
    known = np.where(np.isnan(values), -np.inf, values)
    padded = np.full(-(-len(values) // size) * size, -np.inf)
    padded[: len(values)] = known
    groups = padded.reshape(-1, size)
    return np.minimum(groups.argmax(axis=1) + np.arange(len(groups)) * size, len(values) - 1)
