"""Values that a program read from the phantom GPU and that are unknown: answers given, and `--unknown-is`.

Pure: places are texts like 'train.py:33', answers are numbers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from memfit.errors import UsageError
from memfit.records.prediction import Assumption

VARIABLE = "MEMFIT_ANSWERS"
WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
EVERYWHERE = "*"


def parse_answers(text: str) -> dict[str, float]:
    """Read 'train.py:33=0.5, masking.py:12=true'; the place '*' means every place without an answer of its own."""
    answers: dict[str, float] = {}
    for part in text.replace(";", ",").split(","):
        if not part.strip():
            continue
        place, equals, value = (piece.strip() for piece in part.rpartition("="))
        if not equals or not _is_place(place):
            raise UsageError(
                "this answer has no place", found=repr(part.strip()), hint="FILE:LINE=VALUE, train.py:33=1"
            )
        answers[place] = _number(value)
    return answers


def answers_of_environment(environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """What MEMFIT_ANSWERS says."""
    return parse_answers((os.environ if environment is None else environment).get(VARIABLE, ""))


def _is_place(text: str) -> bool:
    file, colon, line = text.rpartition(":")
    return text == EVERYWHERE or bool(file and colon and line.isdecimal())


def _number(text: str) -> float:
    try:
        return WORDS[text.lower()] if text.lower() in WORDS else float(text)
    except ValueError:
        raise UsageError("this answer is no number", found=repr(text), hint="a number, true or false") from None


@dataclass(slots=True)
class ReadLog:
    """Gives answers, and remembers what was asked."""

    answers: Mapping[str, float] = field(default_factory=dict)
    _seen: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _used: set[str] = field(default_factory=set)

    def answer(self, asked_in: str, line: str) -> float | None:
        """What the user wants to be said at this place; None where nothing was asked for."""
        for place in (asked_in, line, EVERYWHERE):
            if place and place in self.answers:
                self._used.add(place)
                return self.answers[place]
        return None

    def add(self, what: str, asked_in: str, line: str) -> None:
        """Remember a read; `asked_in` is the line that asked, `line` the user's own behind it."""
        self._seen[what, asked_in, line] += 1

    def assumptions(self) -> Iterator[Assumption]:
        """One for each place, in the order they were first reached."""
        for (what, asked_in, line), count in self._seen.items():
            through = f" (asked by {asked_in})" if asked_in and asked_in != line else ""
            yield Assumption(kind="value read", text=f"{what}{through}", line=line or asked_in, count=count)
        for place in sorted(set(self.answers) - self._used):
            yield Assumption(kind="value read", text=f"nothing was read at {place}: its answer was not used")
