"""Metrics of a served folder for Prometheus: the numbers of its records, each read again only when it has changed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from memfit.errors import MemfitError
from memfit.serve.catalogue import FolderContents, RecordEntry, signature
from memfit.show.export.openmetrics import MetricRecord, MetricSample, metric_samples, metrics_text

MOST_RECORDS = 500
"""The newest ones; how many are left out is a metric as well."""
ReadRecord = Callable[[Path, Path], MetricRecord]
"""Called with the path of a record and the folder that is served."""


class FolderMetrics:
    """The OpenMetrics text of a folder; safe to ask from several threads."""

    def __init__(self, root: Path, readers: Mapping[str, ReadRecord]) -> None:
        self.root = root
        self.readers = readers
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, tuple[MetricSample, ...] | None]] = {}
        """By the name of a record: what it was read from, and its samples; None where it cannot be read."""

    def text(self, contents: FolderContents) -> str:
        """The text of these records; a kind without numbers is only counted."""
        read = [entry for entry in contents.entries if entry.kind in self.readers]
        shown, counts = read[:MOST_RECORDS], Counter[tuple[str, str]]()
        counts.update((entry.kind, "left out") for entry in read[MOST_RECORDS:])
        counts.update((entry.kind, "without numbers") for entry in contents.entries if entry.kind not in self.readers)
        samples: list[MetricSample] = []
        with self._lock:
            self._known = {entry.id: self._known[entry.id] for entry in shown if entry.id in self._known}
            for entry in shown:
                found = self._samples(entry)
                counts[entry.kind, "shown" if found is not None else "not readable"] += 1
                samples += found or ()
        return metrics_text([*_counted(counts), *samples])

    def _samples(self, entry: RecordEntry) -> tuple[MetricSample, ...] | None:
        version, known = signature(entry.path), self._known.get(entry.id)
        if known is None or known[0] != version:
            try:
                samples = tuple(metric_samples(self.readers[entry.kind](entry.path, self.root)))
            except (MemfitError, OSError):  # removed or damaged meanwhile: it is counted as such
                samples = None
            known = self._known[entry.id] = (version, samples)
        return known[1]


def _counted(counts: Counter[tuple[str, str]]) -> list[MetricSample]:
    return [
        MetricSample(family="memfit_records", labels={"kind": kind, "state": state}, value=count)
        for (kind, state), count in sorted(counts.items())
    ]
