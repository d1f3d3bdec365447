"""Writes whatever a trial reports as one line of JSON.

Numbers of numpy and torch are asked for their plain value; what JSON cannot hold is kept as text. NaN and Infinity are
written as Python writes them.
"""

from json import dumps as _dumps


def dumps(value):
    """One line of JSON."""
    if type(value) is float or type(value) is int:
        return _NAMES.get(repr(value)) or repr(value)
    try:
        return _dumps(value, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return _dumps(repr(value))


_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _plain(value):
    for name in ("item", "tolist"):
        method = getattr(value, name, None)
        if method is not None:
            try:
                return method()
            except Exception:
                continue
    return repr(value)
