"""Bytes and seconds: parsed from a user's text, and formatted for people.

GiB is 2^30 bytes and GB is 10^9, in both directions; the screen always shows binary units.
"""

from __future__ import annotations

import math
import re

from memfit.errors import BadQuantity

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_BYTE_UNITS = {
    "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": KIB, "m": MIB, "g": GIB, "t": TIB,
}  # fmt: skip
_SECOND_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Read a positive size such as '2GiB', '512 MiB' or '8e9B'; a unit is required."""
    number, unit = _split(text, "a size", "write a number with a unit, for example 2GiB or 512MiB")
    factor = _BYTE_UNITS.get(unit.lower())
    if factor is None and number:
        found = f"{text!r}" + ("" if unit else ", which has no unit")
        raise BadQuantity("this is not a size", found=found, hint="use B, KiB, MiB, GiB or TiB, for example 2GiB")
    size_bytes = number * (factor or 0)
    if not math.isfinite(size_bytes) or size_bytes < 1:
        raise BadQuantity("a size must be at least one byte", found=repr(text), hint="for example 2GiB")
    if size_bytes >= 1 << 62:
        raise BadQuantity("this is more than any computer can address", found=repr(text), hint="for example 2GiB")
    return round(size_bytes)


def parse_seconds(text: str) -> float:
    """Read a positive duration such as '10ms', '0.5s', '1h'; a bare number means seconds."""
    number, unit = _split(text, "a duration", "write a number with a unit, for example 10ms or 1s")
    factor = _SECOND_UNITS.get(unit.lower() or "s")
    if factor is None:
        raise BadQuantity("this is not a duration", found=repr(text), hint="use us, ms, s, min or h, for example 10ms")
    seconds = number * factor
    if not math.isfinite(seconds) or seconds <= 0:
        raise BadQuantity("a duration must be above zero", found=repr(text), hint="for example 10ms")
    return seconds


def parse_speed(text: str) -> float:
    """Read bytes per second from a positive speed such as '12GB/s' or '100Gbit/s'."""
    bits = re.fullmatch(r"\s*(.*?)\s*([kKmMgGtT]?)bit/s\s*", text)
    if bits:
        return parse_bytes(f"{bits[1]}{bits[2]}B") / 8
    if not text.strip().endswith("/s"):
        raise BadQuantity("this is not a speed", found=repr(text), hint="for example 12GB/s or 100Gbit/s")
    return float(parse_bytes(text.strip().removesuffix("/s")))


def _split(text: str, kind: str, hint: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise BadQuantity(f"this is not {kind}", found=repr(text), hint=hint)
    return float(match.group(1)), match.group(2)


def format_bytes(num_bytes: float) -> str:
    """Write a size for the eye in binary units: '461.2 MiB'."""
    sign = "-" if num_bytes < 0 else ""
    size = abs(num_bytes)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor * 0.99995:
            return f"{sign}{_three_digits(size / factor)} {unit}"
    return f"{sign}{size:.0f} B"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def bytes_rounded_up(num_bytes: int) -> int:
    """The least size, from this one on, that is written for the eye without loss: what is read back is enough."""
    for factor in (TIB, GIB, MIB, KIB):
        if num_bytes >= factor * 0.99995:
            digit = 100 if num_bytes < 10 * factor else 10
            return math.ceil(math.ceil(num_bytes * digit / factor) * factor / digit)
    return num_bytes


def format_seconds(seconds: float) -> str:
    """Write a duration for the eye: '35 us', '2.50 ms', '1.20 s', '3 min 05 s', '2 h 10 min'."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 60:
        return f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_ratio(ratio: float) -> str:
    """Write a share of one as a percentage: '7.5 %'."""
    return f"{ratio * 100:.1f} %"
