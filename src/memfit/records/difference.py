"""Noise of repeats of a run, and the difference of two runs.

The plan of repeated runs of two commands: repeats.json, written before the first run, read to go on later.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.figure import Figure, Source
from memfit.records.run import Settings

Verdict = Literal["larger than the noise", "within the noise", "cannot tell"]
Group = Literal["memory", "phases", "time", "energy", "processes", "ledger"]


class NoiseSource(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a repeat of the same run would give another number."""

    name: str
    """'allocator', 'counter', 'steps', 'tree', 'machine', 'repeats'."""
    half_width: float
    """In the unit of the figure it belongs to."""
    source: Source
    reason: str


class NoiseInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Where a repeat of the same run may land."""

    unit: str
    low: float
    high: float
    half_width: float
    """The largest of the sources: they overlap, so they are not added up."""
    sources: tuple[NoiseSource, ...]

    @property
    def decisive(self) -> NoiseSource | None:
        """The source that sets the width; None when a repeat gives the same number."""
        return max(self.sources, key=lambda source: source.half_width, default=None)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity on both sides, and whether the sides differ by more than repeats would."""

    group: Group
    name: str
    first: Figure
    second: Figure
    change: Figure
    """second - first, with the noise interval around it as low and high."""
    noise: float | None
    """Differences up to this are no evidence; None when it is not known."""
    verdict: Verdict
    reason: str
    """Why this verdict: the source that set the noise, or what is missing."""
    resolves: float | None = None
    """A true difference of this size is seen in nine of ten such comparisons; None without enough repeats."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The runs on one side of a comparison."""

    label: str
    folders: tuple[str, ...]
    command: tuple[str, ...]
    num_runs: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs, or two groups of repeats, beside each other."""

    first: Side
    second: Side
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    """What else differs between the sides, and what the noise rests on."""
    order: tuple[str, ...] = ()
    """In which order the runs were made, 'A' and 'B', where they were made for this comparison."""


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
