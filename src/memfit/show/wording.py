"""Figures in words: value, bounds, where it came from, or why it is unknown."""

from __future__ import annotations

import shlex

from memfit.records.figure import Figure
from memfit.units import format_bytes, format_ratio, format_seconds

MARK_OF_SOURCE = {"measured": "", "predicted": " (predicted)", "assumed": " (assumed)", None: ""}


def command_text(command: tuple[str, ...]) -> str:
    """The command as it would be typed."""
    return shlex.join(command) or "(no command recorded)"


def value_text(value: float, unit: str) -> str:
    """A number with its unit for the eye."""
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "ratio":
        return format_ratio(value)
    if unit == "joules":
        return f"{value / 1000:.2f} kJ" if abs(value) >= 1000 else f"{value:.2f} J"
    return f"{value:.1f} W" if unit == "watts" else f"{value:,.0f}"


def figure_text(figure: Figure) -> str:
    """The value, marked when it was not measured; an unknown figure gives its reason."""
    if figure.value is None:
        return f"unknown: {figure.reason}"
    return value_text(figure.value, figure.unit) + MARK_OF_SOURCE[figure.source]


def short_text(figure: Figure, missing: str = "-") -> str:
    """The value for a table cell; the reason of an unknown one is shown elsewhere."""
    return missing if figure.value is None else value_text(figure.value, figure.unit) + MARK_OF_SOURCE[figure.source]


def bounds_text(figure: Figure) -> str:
    """How far off the value may be: 'exact', 'at least', 'between a and b', 'exact to the digits shown'."""
    if figure.value is None:
        return ""
    if figure.low is None and figure.high is None:
        return "exact" if figure.source == "measured" and "high-water" in figure.method else ""
    if figure.high is None:
        return "at least"
    low = value_text(figure.value if figure.low is None else figure.low, figure.unit)
    high = value_text(figure.high, figure.unit)
    return f"between {low} and {high}" if low != high else "exact to the digits shown"


def steps_text(first: int | None, last: int | None) -> str:
    """'step 48', or 'steps 41 to 48' for a group of short steps that share one peak; empty where no step is known."""
    if last is None:
        return ""
    return f"step {last}" if first is None else f"steps {first} to {last}"


def cut(text: str, width: int) -> str:
    """Shorten to `width` characters, keeping both ends."""
    if len(text) <= width:
        return text
    keep = max(width - 1, 1)
    head = keep * 2 // 3
    return text[:head] + "…" + (text[-(keep - head) :] if keep - head else "")
