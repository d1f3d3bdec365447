"""What is known of a machine's ability to measure: one row for each thing memfit would like to read."""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.run import Environment

Answer = Literal["yes", "partly", "no"]
GROUPS = ("memory", "processes", "GPU and energy", "machine", "software")


class MachineCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried."""

    name: str
    """What it gives, in the words of a user: 'exact peak of each step'."""
    group: str
    answer: Answer
    found: str
    """What was seen when it was tried."""
    hint: str = ""
    """What to try where the answer is not yes."""
    cost_seconds: float | None = None
    """What one reading took here; None where nothing was timed."""


class MachineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was tried on one machine."""

    format: str = "memfit-doctor"
    format_version: int = 1
    environment: Environment
    checks: tuple[MachineCheck, ...]

    def check(self, name: str) -> MachineCheck:
        """The row of that name."""
        return next(check for check in self.checks if check.name == name)
