"""Data that an HTML page carries: small, and escaped to be safe inside HTML.

Curves travel as base64 of unsigned 32-bit numbers with a unit, about a third of their decimal text. The JSON is
escaped so that no text in it, whatever a command line holds, can end the element it stands in.
"""

from __future__ import annotations

import base64
from typing import Any, TypedDict

import numpy as np

from memfit.records.difference import Comparison
from memfit.show.as_json import plain, to_json
from memfit.show.views.curves import Curve
from memfit.show.views.decimate import DecimationLevel
from memfit.show.views.run import RunView
from memfit.show.views.steps import StepsView

MISSING = 0xFFFFFFFF
MAX_MODULES = 200
PAGE_ROWS = 24_576
PAGE_STEPS = 12_000
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page_json(view: RunView, other: RunView | None = None, comparison: Comparison | None = None) -> str:
    """The JSON of the page, safe to stand inside a script element."""
    payload = {
        "run": view_data(view),
        "other": None if other is None else view_data(other),
        "comparison": None if comparison is None else plain(comparison),
    }
    return inside_script(to_json(payload).decode())


def inside_script(text: str) -> str:
    """JSON that cannot end the script element it stands in, whatever its strings hold."""
    for letter, escape in _ESCAPES.items():
        text = text.replace(letter, escape)
    return text


def view_data(view: RunView) -> dict[str, Any]:
    """A view with its curves packed."""
    names = [name for name in view.__slots__ if name not in ("curves", "steps", "ledgers")]
    data = {name: plain(getattr(view, name)) for name in names}
    data["curves"] = [_curve_data(curve) for curve in view.curves]
    data["steps"] = _steps_data(view.steps)
    data["ledgers"] = [_trimmed(plain(ledger)) for ledger in view.ledgers]
    return data


def _curve_data(curve: Curve) -> dict[str, object]:
    levels = [_level_data(level) for level in curve.levels]
    return {"name": curve.name, "role": curve.role, "index": curve.index, "source": curve.source, "levels": levels}


def _level_data(level: DecimationLevel) -> dict[str, object]:
    data = {
        "samples_per_row": level.samples_per_row,
        "time_us": pack(level.time_seconds * 1e6),
        "low_bytes": pack(level.low),
    }
    if level.samples_per_row > 1:
        data["high_bytes"] = pack(level.high)
    return data


def _steps_data(steps: StepsView) -> dict[str, object]:
    data: dict[str, Any] = {}
    for name in steps.__slots__:
        value = getattr(steps, name)
        if not isinstance(value, np.ndarray):
            data[name] = plain(value)
        elif name.endswith("_seconds"):
            data[name.removesuffix("_seconds") + "_us"] = pack(value * 1e6)
        else:
            data[name] = pack(value)
    return data


def _trimmed(ledger: dict[str, Any]) -> dict[str, Any]:
    """Join the smallest modules of a category when there are very many."""
    for bar in ledger["bars"]:
        hidden = bar["parts"][MAX_MODULES:]
        if hidden:
            rest = {"num_bytes": sum(p["num_bytes"] for p in hidden), "share": sum(p["share"] for p in hidden)}
            name = f"{len(hidden)} smaller modules"
            bar["parts"] = [*bar["parts"][:MAX_MODULES], {**hidden[0], **rest, "name": name, "method": ""}]
    return ledger


class PackedNumbers(TypedDict):
    """Numbers as text: the bytes of `count` 32-bit multiples of `unit`."""

    unit: int
    count: int
    base64: str


def pack(values: np.ndarray) -> PackedNumbers:
    """Numbers above zero as 32-bit multiples of the smallest power of two that fits; missing ones are all ones."""
    values = np.asarray(values, dtype=np.float64)
    known = np.isfinite(values)
    largest = float(values[known].max()) if known.any() else 0.0
    unit = 1
    while largest / unit >= MISSING:
        unit *= 2
    scaled = np.full(len(values), MISSING, dtype="<u4")
    scaled[known] = np.round(np.maximum(values[known], 0) / unit).astype("<u4")
    return {"unit": unit, "count": len(values), "base64": base64.b64encode(scaled.tobytes()).decode()}


def unpack(packed: PackedNumbers) -> np.ndarray:
    """The inverse of `pack`, as the page does it."""
    raw = np.frombuffer(base64.b64decode(packed["base64"]), dtype="<u4")
    return np.where(raw == MISSING, np.nan, raw.astype(np.float64) * packed["unit"])
