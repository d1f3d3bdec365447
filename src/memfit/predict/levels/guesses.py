"""Values guessed during a prediction, and which of them may have led to a failure; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

EVERYWHERE = "*"
MOST_NAMED = 3
BOOLEAN, INTEGER, EQUALITY = "a boolean", "an integer", "whether two tensors are equal"
INTEGERS = "a list of integers"
CHECKED = "a value that the job checks, with an error behind it,"
"""A question whose answer is the one without the error: a training that works gives no other."""
DECIDES, MAY_DECIDE = (BOOLEAN, EQUALITY), (INTEGER, INTEGERS)
"""Questions whose answers decide a branch, and those that may decide a size; mostly they count what was right."""
DRAWN = "drawn at random"
"""Why a value is an assumption: a run of its own would draw another one."""
EARLIER = "labels of an earlier batch"
"""Another one: the samples of this batch were not loaded."""
OF_SEEN = "integers of the batches that were seen"
"""Another one, where a data loader gave only some of its batches: others may hold larger ones."""
AS_SET = ", as set"
"""How the text of an answer ends that the user gave."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One answer whose true value is unknown."""

    line: str
    text: str

    def with_flag(self) -> str:
        """The guess, and the option that changes it."""
        return f"{self.line}: {self.text}; --answer {self.line}=VALUE changes it"


@dataclass(slots=True)
class Guesses:
    """The user's answers by place, and all guesses in the order in which they were last made."""

    answers: Mapping[str, float] = field(default_factory=dict)
    _made: dict[Guess, None] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def answer(self, line: str) -> float | None:
        """What the user wants to be said at this place; None where nothing was asked for."""
        for place in (line, EVERYWHERE):
            if place in self.answers:
                self._used.add(place)
                return self.answers[place]
        return None

    def add(self, line: str, text: str) -> None:
        """Remember a guess; the latest stands last."""
        guess = Guess(line, text)
        self._made.pop(guess, None)
        self._made[guess] = None

    def nearest(self, line: str) -> list[Guess]:
        """The guesses nearest to a failing line: those of the same file by distance, then the latest ones."""
        order = {guess: place for place, guess in enumerate(reversed(self._made))}
        return sorted(order, key=lambda guess: (_distance(guess.line, line), order[guess]))[:MOST_NAMED]

    def unused(self) -> list[str]:
        """Places with an answer that nothing asked for."""
        return sorted(set(self.answers) - self._used)


def _distance(first: str, second: str) -> float:
    """Lines between two places of one file."""
    (file, _, line), (other_file, _, other_line) = first.rpartition(":"), second.rpartition(":")
    if file != other_file or not (line.isdecimal() and other_line.isdecimal()):
        return float("inf")
    return abs(int(line) - int(other_line))
