"""How does what is drawn become JSON: stable keys, plain lists, null where a number is unknown?"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np


def plain(value: Any) -> Any:
    """Turn arrays into lists and everything else into JSON's own types."""
    return msgspec.to_builtins(value, enc_hook=_array)


def to_json(value: Any) -> bytes:
    """Encode; nan and infinity become null, so that every JSON reader takes it."""
    return msgspec.json.encode(value, enc_hook=_array)


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")
