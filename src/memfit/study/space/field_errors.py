"""Error message for a mistake in a study's file: file, field, what was found, what was expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeVar, cast

from memfit.errors import UsageError

_Kind = TypeVar("_Kind")

_LONGEST = 80


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """Where in which file we are: 'config.yml: tuner.name'."""

    file: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.field}" if self.field else self.file

    def at(self, *names: str | int) -> FieldPlace:
        """A place further inside."""
        field = self.field
        for name in names:
            field += f"[{name}]" if isinstance(name, int) else f"{'.' if field else ''}{name}"
        return FieldPlace(self.file, field)

    def refuse(self, problem: str, *, found: object = None, saw: str = "", hint: str = "") -> NoReturn:
        """Say that this place is wrong; `found` is the value that stands there, `saw` describes it in words."""
        raise UsageError(f"{self}: {problem}", found=saw or ("" if found is None else _shown(found)), hint=hint)


def _shown(value: object) -> str:
    """A value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def expect(value: object, kind: type[_Kind] | tuple[type[_Kind], ...], expected: str, place: FieldPlace) -> _Kind:
    """The value, when it is of that kind (True and False are no numbers)."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not {bool, object} & set(kinds)):
        place.refuse(f"expected {expected}", found=value)
    return cast("_Kind", value)


def expect_number(value: object, place: FieldPlace) -> float:
    """A finite number."""
    number = float(expect(value, (int, float), "a number", place))
    if number != number or number in (float("inf"), float("-inf")):
        place.refuse("expected a finite number", found=value)
    return number
