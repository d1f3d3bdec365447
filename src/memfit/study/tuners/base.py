"""Base class of tuners, and what one may answer when it is asked for a point.

A tuner is a function of the history. `Wait` means: nothing before a running trial ends; `Thinking`: not yet; `NoMore`:
never again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from memfit.errors import UsageError
from memfit.records.study import Proposal, SearchSpace
from memfit.study.engine.history import History
from memfit.study.space.space import Draws, parameters_of


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to try before a running trial ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoMore:
    """Nothing to try ever again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """No answer yet: the same question is to be asked again."""

    reason: str


Answer = Proposal | Wait | Thinking | NoMore


class Tuner(Protocol):
    """Chooses the next point from the trials so far; the same history, number and seed give the same answer."""

    def propose(self, history: History, number: int) -> Answer:
        """The point for this trial number."""
        ...


def proposal_for(
    space: SearchSpace,
    number: int,
    draws: Draws,
    *,
    extra: dict[str, Any] | None = None,
    memo: dict[str, Any] | None = None,
) -> Proposal:
    """A proposal with what the trial gets for these draws, and what the tuner adds to it."""
    return Proposal(
        number=number, parameters=parameters_of(space, draws) | (extra or {}), draws=dict(draws), memo=memo or {}
    )


def take_argument(arguments: dict[str, Any], name: str, default: Any, *, low: float, high: float, tool: str) -> Any:
    """Read one number of a tuner's or assessor's arguments, of the default's type and between two ends."""
    value = arguments.get(name, default)
    if value is None:
        return default
    whole = isinstance(default, int)
    fits = isinstance(value, int) if whole else isinstance(value, (int, float))
    if isinstance(value, bool) or not fits or not low <= value <= high:
        expected = f"a {'whole ' if whole else ''}number from {low:g} to {high:g}"
        raise UsageError(f"{tool}: {name} is not {expected}", found=repr(value), hint=f"{name}: {default}")
    return value
