"""Answer of a probe."""

from __future__ import annotations

from typing import NamedTuple

from memfit.records.machine.doctor import Answer


class Seen(NamedTuple):
    """What was seen when one thing was tried; its name and group stand in the list of probes."""

    answer: Answer
    found: str
    hint: str = ""
    cost_seconds: float | None = None
