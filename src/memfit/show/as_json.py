"""JSON of what is drawn: stable keys, plain lists, null where a number is unknown."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from memfit.records.files.only_text import only_text


def plain(value: object) -> Any:
    """Turn arrays into lists and everything else into JSON's own types."""
    return msgspec.to_builtins(value, enc_hook=_array)


def to_json(value: object) -> bytes:
    """Encode; nan and infinity become null and bytes that are no text U+FFFD, so that every JSON reader takes it."""
    try:
        return msgspec.json.encode(value, enc_hook=_array)
    except UnicodeEncodeError:  # the folder of a run may be called by any bytes
        return msgspec.json.encode(only_text(plain(value)))


def _array(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")
