"""Noise of repeats of a run, and the difference of two runs."""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.figure import Figure, Source

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
