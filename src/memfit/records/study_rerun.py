"""What came of running published trials again: their numbers beside ours, and whether capped trials say enough?"""

from __future__ import annotations

from typing import Any

import msgspec

from memfit.records.figure import Figure


class RerunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One published trial, and its replicates here."""

    row: int
    """From 1, as in the published table."""
    parameters: dict[str, Any]
    published: Figure
    """The system's used memory, as published."""
    peak: Figure
    """Of the job alone: the mean over the replicates, the smallest and largest as low and high."""
    average: Figure
    background: Figure
    system: Figure
    """Job and background together, the quantity that was published."""
    num_done: int
    num_trials: int


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether memory changes after the second step: the exact peaks of later steps against the second one's."""

    num_trials: int
    """Trials with at least three steps."""
    num_steps: int
    """The fewest steps of any of them."""
    growth: Figure
    """The largest growth of any trial after its second step, in bytes."""
    share: Figure
    """The same as a part of that trial's peak."""


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """A published table and its re-run."""

    title: str
    source: str
    rows: tuple[RerunRow, ...]
    evidence: StepEvidence
    steps: int | None = None
    """The cap, when there was one."""
    notes: tuple[str, ...] = ()
