"""Text in figures: how wide it is, names on several lines, and a white rim that keeps it readable over lines."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from memfit.show.wording import cut

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.text import Text

POINTS_PER_INCH = 72
MOST_LINES_OF_A_NAME = 6


@lru_cache(maxsize=4096)
def text_inches(text: str, points: float) -> float:
    """The width of one line in the font of the figures."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=points), ismath=False)
    return width / POINTS_PER_INCH


def fitted(text: str, inches: float, points: float) -> str:
    """The text, cut in its middle where it is wider than so many inches."""
    letters = len(text)
    while letters > 2 and text_inches(cut(text, letters), points) > inches:
        letters -= 1
    return cut(text, letters)


def wrapped(name: str, inches: float, points: float) -> str:
    """A name on lines no wider than so many inches, broken behind its separators, and anywhere if it has none."""
    lines = [""]
    for piece in re.split(r"(?<=[/_ .-])", name):
        if lines[-1] and text_inches((lines[-1] + piece).rstrip(), points) > inches:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1]) > 1 and text_inches(lines[-1].rstrip(), points) > inches:
            keep = _letters_within(lines[-1], inches, points)
            lines[-1:] = [lines[-1][:keep], lines[-1][keep:]]
    lines = [line.rstrip() for line in lines]
    if len(lines) > MOST_LINES_OF_A_NAME:
        lines = [*lines[: MOST_LINES_OF_A_NAME - 1], "…" + lines[-1]]
    return "\n".join(lines)


def _letters_within(line: str, inches: float, points: float) -> int:
    letters = len(line) - 1
    while letters > 1 and text_inches(line[:letters], points) > inches:
        letters -= 1
    return letters


def with_rim(text: Text, width: float = 2.4) -> Text:
    """The same text with a white rim around its letters, for places that lines run through."""
    from matplotlib.patheffects import withStroke

    text.set_path_effects([withStroke(linewidth=width, foreground="white", alpha=0.9)])
    return text


def number_words(value: float, place: int | None = None) -> str:
    """A number at a tick: '25,000', '1.5 million', '1e-05'; never in mathematical type, which names of users forbid."""
    if abs(value) >= 1e6:
        scale, word = (1e9, "billion") if abs(value) >= 1e9 else (1e6, "million")
        return f"{value / scale:,.3g} {word}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def plain_ticks(axis: Axis, ends: tuple[float, float]) -> None:
    """Ticks of an axis in plain words, also on a logarithmic scale; between powers of ten only where it has few."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    low, high = sorted(abs(end) for end in ends)
    is_short = axis.get_scale() == "log" and low > 0 and high / low < 30
    axis.set_major_formatter(FuncFormatter(number_words))
    axis.set_minor_formatter(FuncFormatter(number_words) if is_short else NullFormatter())
