"""Answers about classes, remembered for as long as the class lives.

A class may belong to one object alone and close over it: `torch.nn.utils.parametrize` makes such a class for every
module that it changes. Who keeps the class keeps the module with all its parameters, so that a cache of `functools`
would hold every model that was ever fitted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def memo_by_class(answer: Callable[[type], Answer]) -> Callable[[type], Answer]:
    """Remember a function's answers by class; an answer must not hold the class, or what belongs to it."""
    known: weakref.WeakKeyDictionary[type, Answer] = weakref.WeakKeyDictionary()

    @functools.wraps(answer)
    def remembered(kind: type) -> Answer:
        try:
            return known[kind]
        except KeyError:
            return known.setdefault(kind, answer(kind))
        except TypeError:  # a metaclass that is not hashable or has an equality of its own
            return answer(kind)

    return remembered
