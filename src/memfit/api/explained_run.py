"""A run that was looked at once: its ledgers and the noise of its peak, for every view, page and comparison of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.records.difference import NoiseInterval
    from memfit.records.ledger import Ledger
    from memfit.records.run import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRun:
    """A run with what was found by looking at it: who held its peak, and how far the peak varies by itself."""

    record: RunRecord
    ledgers: tuple[Ledger, ...]
    noise: NoiseInterval | None
    """None when the peak itself is unknown."""


def explain_run(record: RunRecord | ExplainedRun) -> ExplainedRun:
    """Look at a run once; what was looked at already is returned as it is.

    >>> explained = explain_run(memfit.read_run("runs/first"))  # doctest: +SKIP
    >>> explained.ledgers[0].num_bytes  # doctest: +SKIP
    """
    from memfit.explain.run.ledger import explain_peak
    from memfit.explain.run.noise import noise_interval

    if isinstance(record, ExplainedRun):
        return record
    return ExplainedRun(record=record, ledgers=explain_peak(record), noise=noise_interval(record))
