"""Very many lines as one picture of how dense they are: the time to draw it hardly depends on the drawing library.

Every line is one pixel wide. A pixel is the more opaque the more lines cross it, and has the colour of their mean
value, so that no line hides another. Stroking ten thousand lines takes seconds; counting them takes a tenth of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

MOST_STROKED = 1500
"""As many lines are stroked one by one; more are counted."""
_PIXELS_PER_INCH = 100
_AT_ONCE = 500_000
"""Samples that are in memory at a time."""


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
    """How many lines cross each pixel, and the sum of their shades; what lies outside is left out."""
    counts, sums = np.zeros(shape[0] * shape[1]), np.zeros(shape[0] * shape[1])
    pixels, kept = _clipped(pixels, shape[0])
    shades = shades[kept]
    num_samples = np.maximum(np.ceil(np.abs(pixels[:, 2:] - pixels[:, :2]).max(axis=1, initial=0)), 1).astype(np.int64)
    at_once = max(1, _AT_ONCE // int(num_samples.max(initial=1)))
    for first in range(0, len(pixels), at_once):
        some = slice(first, first + at_once)
        _count_some(pixels[some], shades[some], num_samples[some], shape, counts, sums)
    return counts.reshape(shape), sums.reshape(shape)


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


def _count_some(
    pixels: np.ndarray, shades: np.ndarray, num_samples: np.ndarray, shape: tuple[int, int],
    counts: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Add samples in the middle of equal steps along each segment, one for each pixel that it crosses."""
    first = np.cumsum(num_samples) - num_samples
    slopes = (pixels[:, 2:] - pixels[:, :2]) / num_samples[:, None]
    origins = pixels[:, :2] + (0.5 - first[:, None]) * slopes
    place = np.arange(num_samples.sum(), dtype=float)
    column, row = (
        np.minimum(np.repeat(origins[:, k], num_samples) + place * np.repeat(slopes[:, k], num_samples), most)
        for k, most in enumerate((shape[1] - 1, shape[0] - 1))
    )
    index = row.astype(np.int64) * shape[1] + column.astype(np.int64)
    counts += np.bincount(index, minlength=len(counts))
    sums += np.bincount(index, weights=np.repeat(shades, num_samples), minlength=len(sums))
