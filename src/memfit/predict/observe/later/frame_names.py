"""Names of a running function and what they stand for, read without leaving a trace in the job.

Up to Python 3.12, asking a function's frame for its locals fills a dictionary that stays in the frame, and that the job
itself may hold (`config = locals()`): tensors of that moment would live on. It is put back as it was.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections import ChainMap
from collections.abc import Mapping
from types import FrameType

_WORDS = 8
"""Words of an interpreter's frame among which its names are looked for (Python 3.11 and 3.12)."""


def names_of(frame: FrameType) -> Mapping[str, object]:
    """Local names first, then global ones."""
    return ChainMap(_locals_of(frame), frame.f_globals)


def _locals_of(frame: FrameType) -> dict[str, object]:
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED or sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    held = _dictionary_in(frame)
    before = dict(held) if held is not None else {}
    kept = frame.f_locals
    found = dict(kept)
    if held is kept or held is None:
        kept.clear()
        kept.update(before)
    return found


def _dictionary_in(frame: FrameType) -> dict[str, object] | None:
    """The dictionary that a frame has from an earlier question, None where there is none.

    In the interpreter's frame it stands behind those of the global names and of the builtins.
    """
    inner = ctypes.c_void_p.from_address(id(frame) + 3 * ctypes.sizeof(ctypes.c_void_p)).value
    if sys.version_info < (3, 11) or inner is None:
        return None
    words = [ctypes.c_void_p.from_address(inner + 8 * k).value for k in range(_WORDS)]
    for first, second, third in zip(words, words[1:], words[2:], strict=False):
        if first == id(frame.f_globals) and second == id(frame.f_builtins):
            found = ctypes.cast(third, ctypes.py_object).value if third else None
            return found if isinstance(found, dict) else None
    return None
