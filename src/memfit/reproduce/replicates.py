"""The mean of replicates with its spread; one replicate has none."""

from __future__ import annotations

from collections.abc import Iterable

from memfit.records.figure import Figure, measured, unknown


def mean_of(values: Iterable[float | None], what: str, *, reason: str = "") -> Figure:
    """The mean of replicates, with the smallest and the largest; of one replicate the spread is unknown."""
    known = [value for value in values if value is not None]
    if not known:
        return unknown("bytes", reason or "no replicate was measured")
    if len(known) == 1:
        return measured(known[0], "bytes", f"{what} of one replicate; its spread is unknown")
    method = f"mean {what} of {len(known)} replicates"
    return measured(sum(known) / len(known), "bytes", method, low=min(known), high=max(known))
