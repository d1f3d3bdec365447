"""The plan of repeated runs of two commands: repeats.json, written before the first run, read to go on later."""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.run import Settings

PLAN_FILE = "repeats.json"
PLAN_FORMAT = "memfit-repeats"
PLAN_VERSION = 1

Label = Literal["A", "B"]


class RepeatedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One side: what is run, where, and how it is measured."""

    command: tuple[str, ...]
    working_folder: str
    settings: Settings


class RepeatPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides and the order in which they are run."""

    format: str = PLAN_FORMAT
    format_version: int = PLAN_VERSION
    first: RepeatedCommand
    second: RepeatedCommand
    order: tuple[Label, ...]

    def side(self, label: Label) -> RepeatedCommand:
        """The command with this label."""
        return self.first if label == "A" else self.second

    @property
    def names(self) -> tuple[str, ...]:
        """The folder of every run, in order: 'a1', 'b1', 'b2', 'a2'."""
        counts = {"A": 0, "B": 0}
        names = []
        for label in self.order:
            counts[label] += 1
            names.append(f"{label.lower()}{counts[label]}")
        return tuple(names)


class RepeatProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a series of repeats is."""

    num_done: int
    num_runs: int
    label: Label
    """The side that is running, or has just ended."""
    seconds: float
    seconds_left: float | None
    """None until a run has ended."""
    peak_bytes: float | None = None
    """Of the run that has just ended; of one that is running, what its tree holds."""
