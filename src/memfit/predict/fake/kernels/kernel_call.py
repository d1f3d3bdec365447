"""A call of a GPU operator, and the requests that it makes of the allocator beside its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memfit.predict.gpu_rules.reduction import Processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What kernels ask of a GPU before they allocate."""

    capability: tuple[int, int] = (8, 0)
    processors: Processors = field(default_factory=Processors)


@dataclass(frozen=True, slots=True)
class Inside:
    """Requests within one call, after this many of its results: n > 0 allocates, -1 - k frees the k-th of them.

    What is not freed by a request is freed after `until` results, the last first; at once when there is no `until`.
    """

    num_before: int
    requests: tuple[int, ...]
    until: int | None = None


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of an operator on a GPU."""

    args: Sequence[Any]
    result: Any
    card: Card

    def of(self, *args: object) -> KernelCall:
        """The same with other arguments."""
        return replace(self, args=args)


Rule = Callable[[KernelCall], "list[Inside]"]


def behind(num_held: int, requests: Sequence[int]) -> list[int]:
    """The same requests, made while others are held."""
    return [request if request > 0 else request - num_held for request in requests]
