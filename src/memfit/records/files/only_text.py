"""Text that every JSON reader takes: file names with bytes that are no UTF-8 are escaped."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

NO_TEXT = "\ufffd"
"""What stands in a record for bytes that are no text."""
_OTHER_VALUE = re.compile(r"\s*|none|null|true|false|nan|[+-]?(inf|infinity|\d[\d.e+-]*)", re.IGNORECASE)
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


def quoted_if_unclear(text: str) -> str:
    """The text, in quotes where it reads like a number, a truth value or nothing, or has more than one line."""
    is_clear = text.isprintable() and not _OTHER_VALUE.fullmatch(text)
    return text if is_clear else json.dumps(only_text(text), ensure_ascii=False)


def decode_lenient(raw: bytes | str) -> object:
    """JSON with lone surrogates, as Python's `json` writes them; raises ValueError or RecursionError."""
    return only_text(json.loads(raw, parse_constant=_refuse))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
