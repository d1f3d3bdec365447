"""Finds a training whose size a search chose: models of several sizes are trained, then one of these sizes again.

Which of them a script trains again follows from results (`min(results)`, a sort by score), and results are guessed in a
prediction. Seen by where optimizers are made: those of a search are made at one place, the chosen one at another. Only
sizes of parameters are compared: a search over batch sizes is not found.
"""

from __future__ import annotations

import os
from types import FrameType

from memfit.predict.observe.later.lines_that_ran import is_own_file
from memfit.units import format_bytes

CHOSEN = (
    "the script trains models of {count} sizes, {least} to {most} of parameters, and then one of these sizes again: "
    "where results decide which, they are guessed, and it may be another one"
)
Place = tuple[tuple[str, int], ...]
"""The user's own lines that led somewhere, innermost first."""


class ChosenByResults:
    """Remembers the sizes of what optimizers train, by the place where they are made."""

    def __init__(self) -> None:
        self._sizes: dict[Place, set[int]] = {}
        self.text = self.line = ""
        """What there is to say, and where; empty where nothing was chosen."""

    def made(self, num_bytes: int, frame: FrameType | None) -> None:
        """An optimizer was made for parameters of this size."""
        place = _place_of(frame)
        for elsewhere, sizes in self._sizes.items():
            if elsewhere != place and len(sizes) > 1 and num_bytes in sizes and place:
                least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
                self.text = CHOSEN.format(count=len(sizes), least=least, most=most)
                self.line = f"{os.path.basename(place[-1][0])}:{place[-1][1]}"
        self._sizes.setdefault(place, set()).add(num_bytes)


def _place_of(frame: FrameType | None) -> Place:
    found: list[tuple[str, int]] = []
    while frame is not None:
        if is_own_file(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)
