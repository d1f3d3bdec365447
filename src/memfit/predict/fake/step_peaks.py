"""Compares the peaks of steps: where they differ and the highest came once, later steps may hold more.

A model that draws its path, batches made by a generator, tasks that take turns: each step holds something else, and a
run that is ended after some of them has not met the largest. A peak that came twice is taken for the largest there is;
a step that was passed over counts as the one that its calls look like. Compared is how far a step rises above what
lives before and after it: what steps leave behind is another question. A step behind an evaluation is not compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from memfit.units import format_bytes

SAME = 1e-3
"""Share of the job's peak by which steps may differ and still be the same."""
SETTLED_AFTER = 2
"""The first steps make the optimizer's state."""
LEAST_STEPS = 3
DIFFER = (
    "steps hold different amounts, {least} to {most} beside what stays, and the highest came once in {count} steps "
    "that were seen: others may hold more"
)


class StepPeaks:
    """Remembers how far each step rose above the live bytes before and after it."""

    def __init__(self) -> None:
        self._rises: list[int] = []
        self._of_calls: dict[Hashable, int] = {}

    def note(self, calls: Sequence[Hashable], rise_bytes: int | None) -> None:
        """A step was made; without a figure it was passed over, or an evaluation stood before it."""
        looks = tuple(calls)
        if rise_bytes is None:
            rise_bytes = self._of_calls.get(looks)
        else:
            self._of_calls[looks] = max(rise_bytes, self._of_calls.get(looks, 0))
        if rise_bytes is not None:
            self._rises.append(rise_bytes)

    def text(self, highest_bytes: int) -> str:
        """What there is to say where the run was ended; empty where the highest step came again."""
        rises = self._rises[SETTLED_AFTER:]
        if len(rises) < LEAST_STEPS:
            return ""
        least, most = min(rises), max(rises)
        times = sum(most - rise <= SAME * highest_bytes for rise in rises)
        if times > 1 or most - least <= SAME * highest_bytes:
            return ""
        return DIFFER.format(least=format_bytes(least), most=format_bytes(most), count=len(rises))
