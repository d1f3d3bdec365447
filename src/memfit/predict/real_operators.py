"""Operators that the user allowed to run for real (`--allow-real`), and how one is named; pure."""

from __future__ import annotations

import re

from memfit.errors import UsageError

_NAME = re.compile(r"(?P<library>[A-Za-z_]\w*)(::|\.)(?P<name>[A-Za-z_]\w*)(\.(?P<overload>\w+))?")


def operator_name(text: str) -> str:
    """'aten.topk.default' as torch prints it, as 'aten::topk', the way its declaration is written."""
    found = _NAME.fullmatch(text.strip())
    if found is None:
        return text
    overload = found["overload"]
    suffix = f".{overload}" if overload and overload != "default" else ""
    return f"{found['library']}::{found['name']}{suffix}"


def operator_names(texts: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Read the names a user gave; both spellings are understood."""
    for text in texts:
        if _NAME.fullmatch(text.strip()) is None:
            raise UsageError(
                "this is not the name of an operator",
                found=repr(text),
                hint="for example --allow-real mylib::mask_scan",
            )
    return tuple(operator_name(text) for text in texts)


def is_allowed(name: str, allowed: tuple[str, ...]) -> bool:
    """Whether 'aten::topk.values' was allowed by its own name or by that of all its overloads."""
    return name in allowed or name.partition(".")[0] in allowed
