"""Text that every JSON reader takes: file names with bytes that are no UTF-8 are escaped."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

NO_TEXT = "\ufffd"
"""What stands in a record for bytes that are no text."""
_SURROGATES = re.compile("[\ud800-\udfff]")


def only_text(value: Any) -> Any:
    """The same with every lone surrogate in it replaced."""
    if isinstance(value, str):
        return _SURROGATES.sub(NO_TEXT, value)
    if isinstance(value, dict):
        return {only_text(key): only_text(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [only_text(each) for each in value]
    return value


def decode_lenient(raw: bytes | str) -> object:
    """JSON with lone surrogates, as Python's `json` writes them; raises ValueError or RecursionError."""
    return only_text(json.loads(raw, parse_constant=_refuse))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
