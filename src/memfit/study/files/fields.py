"""Reads the fields of a settings file one by one, and reports every mistake with its place.

Spelling is as free as NNI's: `trialCommand`, `trial_command` and `TrialCommand` are the same field; null means absent.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memfit.errors import UsageError
from memfit.records.study import Tool
from memfit.study.engine.registry import assessor_name, check_arguments, tuner_name
from memfit.study.space.field_errors import FieldPlace, expect

_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(d|h|min|m|s)\s*")
_SECONDS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}


def plain(name: str) -> str:
    """A field's name without case and underscores."""
    return name.lower().replace("_", "")


class Fields:
    """One object of a file; whatever is not taken in the end was not expected."""

    def __init__(self, written: object, place: FieldPlace, spelt: Mapping[str, str] | None = None) -> None:
        fields = expect(written, dict, "an object with fields", place)
        self.place = place
        self._spelt = {plain(name): spelling for name, spelling in (spelt or {}).items()}
        """How an older schema writes a field."""
        self._left: dict[str, tuple[str, Any]] = {}
        self._known: list[str] = []
        for name, value in fields.items():
            expect(name, str, "a field's name", place)
            if plain(name) in self._left:
                place.refuse("this field is given twice", found=name)
            self._left[plain(name)] = (name, value)

    def __contains__(self, name: str) -> bool:
        return self._left.get(plain(name), ("", None))[1] is not None

    def at(self, name: str) -> FieldPlace:
        """The place of a field, as the file spells it."""
        written = self._left.get(plain(name), (name, None))[0]
        return self.place.at(self._spelt.get(plain(name), written))

    def take(self, name: str, kind: type | tuple[type, ...] = object, expected: str = "", default: Any = None) -> Any:
        """The value of a field, checked; the default when it is absent."""
        self._known.append(name)
        place = self.at(name)
        value = self._left.pop(plain(name), (name, None))[1]
        return default if value is None else expect(value, kind, expected, place)

    def take_text(self, name: str, default: str = "") -> str:
        """A text."""
        return self.take(name, str, "a text", default)

    def take_flag(self, name: str, default: bool | None = False) -> Any:
        """True or false."""
        return self.take(name, bool, "true or false", default)

    def take_one_of(self, name: str, options: tuple[str, ...], default: str) -> Any:
        """One of several words."""
        place, value = self.at(name), self.take_text(name, default)
        if value not in options:
            place.refuse(f"expected one of {', '.join(options)}", found=value or None)
        return value

    def take_whole(self, name: str, default: int | None = None, *, least: int = 0) -> Any:
        """A whole number from `least` on."""
        place = self.at(name)
        value = self.take(name, int, f"a whole number of at least {least}", default)
        if value is not None and value is not default and value < least:
            place.refuse(f"expected a whole number of at least {least}", found=value)
        return value

    def take_seconds(self, name: str) -> float | None:
        """A duration: seconds, or a text such as 10m, 0.5h, 2d, 30s."""
        place = self.at(name)
        value = self.take(name, (int, float, str), "seconds, or a text such as 10m, 2h or 1d")
        if value is None:
            return None
        match = _TIME.fullmatch(value.lower()) if isinstance(value, str) else None
        if isinstance(value, str) and match is None:
            place.refuse("expected a duration such as 30s, 10m, 2h or 1d", found=value)
        seconds = float(match[1]) * _SECONDS[match[2]] if match else float(value)
        if not 0 < seconds < float("inf"):
            place.refuse("expected a duration above zero", found=value)
        return seconds

    def take_indices(self, name: str) -> tuple[int, ...] | None:
        """Indices of GPUs: one, a list, or '0,1'."""
        place = self.at(name)
        value = self.take(name, (int, list, str), "indices of GPUs: 0, [0, 1] or '0,1'")
        if value is None:
            return None
        entries = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
        try:
            indices = tuple(int(entry) for entry in entries)
        except (TypeError, ValueError):
            place.refuse("expected indices of GPUs: 0, [0, 1] or '0,1'", found=value)
        if len(set(indices)) < len(indices) or any(index < 0 for index in indices):
            place.refuse("expected different indices from 0 on", found=value)
        return indices

    def left(self) -> list[str]:
        """The names that were not read, as they were spelt; null ones do not count."""
        return [name for name, value in self._left.values() if value is not None]

    def refuse_rest(self) -> None:
        """Say which field is not known here, and which one was perhaps meant."""
        for name in self.left():
            near = difflib.get_close_matches(plain(name), [plain(known) for known in self._known], n=1)
            hint = next((known for known in self._known if near and plain(known) == near[0]), "")
            self.place.at(name).refuse(
                "there is no such field", hint=f"did you mean {hint}?" if hint else f"one of {', '.join(self._known)}"
            )


# How are a tuner, an assessor and a path taken from a study's file, whichever schema it has?


def resolve(path: str, folder: Path) -> str:
    """A path of the file, from the file's own folder."""
    return os.path.realpath(os.path.join(folder, os.path.expanduser(path)))


def built_in_tool(
    kind: str, name: str, arguments: Mapping[str, object], name_at: FieldPlace, arguments_at: FieldPlace
) -> Tool:
    """A built-in, looked up now, so that a mistake in its name or arguments is reported with its place."""
    is_assessor = kind == "assessor"
    place = name_at
    try:
        tool = Tool(name=assessor_name(name) if is_assessor else tuner_name(name), arguments=dict(arguments))
        place = arguments_at
        check_arguments(tool, is_assessor=is_assessor)
    except UsageError as error:
        raise UsageError(f"{place}: {error.what}", found=error.found, hint=error.hint) from None
    return tool


def custom_tool(class_name: str, code: str, arguments: Mapping[str, object], folder: Path, code_at: FieldPlace) -> Tool:
    """A class of the user's own."""
    path = resolve(code, folder)
    if not os.path.isdir(path):
        code_at.refuse("expected a folder", found=code)
    return Tool(class_name=class_name, code_folder=path, arguments=dict(arguments))
