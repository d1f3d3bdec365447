"""Very many lines as one picture of how dense they are: the time to draw it hardly depends on the drawing library.

Every line is one pixel wide. A pixel is the more opaque the more lines cross it, and has the colour of their mean
value, so that no line hides another. Stroking ten thousand lines takes seconds; counting them takes a tenth of that:
lines that cross equally many pixels are one matrix.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

MOST_STROKED = 1500
"""As many lines are stroked one by one; more are counted."""
_PIXELS_PER_INCH = 100
_AT_ONCE, _WAITING = 20_000, 1_000_000
"""Samples that are worked out at a time, so few that they stay in the processor's cache; and that are then counted."""


def draw_density(
    panel: Axes, segments: np.ndarray, shades: np.ndarray, colors: Colormap, *, inches: tuple[float, float],
    opacity: float, zorder: float = 1.0,
) -> None:  # fmt: skip
    """Draw segments, rows of (x0, y0, x1, y1) as shares of a panel of that size, each with a shade from 0 to 1."""
    height, width = (max(2, round(inch * _PIXELS_PER_INCH)) for inch in reversed(inches))
    counts, sums = counted(segments * np.array([width, height, width, height]), shades, (height, width))
    image = np.asarray(colors(sums / np.maximum(counts, 1), bytes=True))
    image[..., 3] = np.rint(255 * (1 - (1 - opacity) ** counts))
    panel.imshow(
        image, extent=(0, 1, 0, 1), transform=panel.transAxes, origin="lower", aspect="auto",
        interpolation="antialiased", zorder=zorder,
    )  # fmt: skip


def counted(pixels: np.ndarray, shades: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """How many lines cross each pixel, and the sum of their shades (in 1024 steps); what lies outside is left out."""
    pixels, kept = _clipped(pixels, shape[0])
    lengths = np.abs(pixels[:, 2:] - pixels[:, :2]).max(axis=1, initial=0)
    num_samples = np.maximum(np.ceil(lengths), 1).astype(np.int64)
    order = np.argsort(num_samples, kind="stable")
    pixels, num_samples, shades = pixels[order].astype(np.float32), num_samples[order], shades[kept][order]
    tally = _Tally(shape[0] * shape[1], most_at_once=max(_AT_ONCE, int(num_samples.max(initial=1))))
    borders = [0, *(np.flatnonzero(np.diff(num_samples)) + 1).tolist(), len(num_samples)]
    for first, end in pairwise(borders):
        at_once = max(1, _AT_ONCE // int(num_samples[first : first + 1].max(initial=1)))
        for begin in range(first, end, at_once):
            some = slice(begin, min(end, begin + at_once))
            tally.add(_crossed(pixels[some], int(num_samples[begin]), shape), shades[some])
    counts, sums = tally.counts_and_sums()
    return counts.reshape(shape), sums.reshape(shape)


class _Tally:
    """Adds up lines and their shades by pixel, in one number for both: exact up to two million lines a pixel."""

    _ONE_LINE = 2.0**31
    _MOST_SHADE = 1024.0

    def __init__(self, num_pixels: int, most_at_once: int) -> None:
        self._totals = np.zeros(num_pixels)
        self._pixels = np.empty(_WAITING + most_at_once, dtype=np.int64)
        self._weights = np.empty(len(self._pixels))
        self._num_waiting = 0

    def add(self, pixels: np.ndarray, shades: np.ndarray) -> None:
        """The pixels that each line crosses, a row per line, and a shade for each."""
        waiting = slice(self._num_waiting, self._num_waiting + pixels.size)
        self._pixels[waiting].reshape(pixels.shape)[...] = pixels
        self._weights[waiting].reshape(pixels.shape)[...] = self._ONE_LINE + np.rint(self._MOST_SHADE * shades)[:, None]
        self._num_waiting = waiting.stop
        if self._num_waiting >= _WAITING:
            self._settle()

    def _settle(self) -> None:
        waiting = slice(0, self._num_waiting)
        self._totals += np.bincount(self._pixels[waiting], self._weights[waiting], minlength=len(self._totals))
        self._num_waiting = 0

    def counts_and_sums(self) -> tuple[np.ndarray, np.ndarray]:
        """For every pixel the number of lines, and the sum of their shades."""
        self._settle()
        counts = np.floor(self._totals / self._ONE_LINE)
        return counts, (self._totals - counts * self._ONE_LINE) / self._MOST_SHADE


def _clipped(pixels: np.ndarray, height: int) -> tuple[np.ndarray, np.ndarray]:
    """The parts of segments between bottom and top, and which segments they are of: one value may be a billion."""
    x0, y0, x1, y1 = pixels.T
    rise = np.where(y1 == y0, 1.0, y1 - y0)
    crossings = np.sort(np.stack([-y0 / rise, (height - y0) / rise]), axis=0)
    is_flat = y1 == y0
    begin = np.where(is_flat, 0.0, np.maximum(crossings[0], 0))
    end = np.where(is_flat, 1.0, np.minimum(crossings[1], 1))
    kept = np.isfinite(pixels).all(axis=1) & (begin <= end) & ~(is_flat & ((y0 < 0) | (y0 > height)))
    parts = np.stack([x0 + begin * (x1 - x0), y0 + begin * (y1 - y0), x0 + end * (x1 - x0), y0 + end * (y1 - y0)], 1)
    return parts[kept], kept


def _crossed(pixels: np.ndarray, num_samples: int, shape: tuple[int, int]) -> np.ndarray:
    """The pixels under samples in the middle of so many equal steps along each segment: (segments, samples)."""
    share = ((np.arange(num_samples) + 0.5) / num_samples).astype(np.float32)
    column, row = (
        np.minimum(pixels[:, k, None] + (pixels[:, k + 2] - pixels[:, k])[:, None] * share, most).astype(np.int32)
        for k, most in enumerate((shape[1] - 1, shape[0] - 1))
    )
    return row * np.int32(shape[1]) + column
