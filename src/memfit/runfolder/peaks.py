"""Peaks of each process and of the whole job, and whether they are exact.

One process: the kernel's high-water mark. It is exact when it was read to the end:
  - by the job's own exit mark, which keeps the peak of every reset;
  - by what the kernel reported to the parent at the end (`ru_maxrss`). That is the largest process among the job's
    first one and every descendant that was waited for, so it belongs to the one process whose own readings agree with
    it, where no other comes near. It counts from the size of the process that started the job, and says nothing below
    that.

A tree: the largest value of the tree curve, between the largest process and the summed resident sizes. It is exact as
well where the peak of the largest process is exact and
  - nothing beside it was ever large enough to matter (a shim that became the program: helpers came and went before), or
  - only wrappers stood beside it: ancestors running another program, whose size never changed. What they add was read
    by page walks, and all of these agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memfit.records.figure import Figure, measured, unknown
from memfit.records.run import ProcessRecord, TreeReading
from memfit.records.run_parts.samples import Samples, TreeCurve
from memfit.runfolder.events import JobEnded
from memfit.units import format_bytes

SAME_BYTES = 512 * 1024
"""Below this, two resident counters of the kernel count as equal (they are batched per thread)."""

AT_LEAST = "kernel high-water mark, last read shortly before the end; the last moments may have been higher"
REPORTED = "kernel high-water mark, read at the end"
LOWERED = "kernel high-water mark, which an unknown process has lowered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The largest values that were read of one process, by where they came from; 0 where nothing was."""

    polled_bytes: int = 0
    sampled_bytes: int = 0
    marked_bytes: int = 0
    is_marked_to_the_end: bool = False

    @property
    def kept_bytes(self) -> int:
        """High-water marks: what no reading between two samples can exceed until they were read."""
        return max(self.marked_bytes, self.polled_bytes)

    @property
    def best_bytes(self) -> int:
        """The largest value of all."""
        return max(self.kept_bytes, self.sampled_bytes)


# ---- one process -----------------------------------------------------------------------------------------------------


def process_peaks(
    readings: Mapping[int, Readings], final: JobEnded | None, *, are_marks_whole: bool = True
) -> dict[int, Figure]:
    """The peak of every process; `final` is the job's end by its exit status.

    Without all of the marks the end value proves nothing: whoever wrote them has reset the mark it was read from.
    """
    found = _all_peaks(readings, final)
    if are_marks_whole:
        return found
    return {index: figure if figure.method != REPORTED else _at_least(figure) for index, figure in found.items()}


def _at_least(figure: Figure) -> Figure:
    return measured(figure.value or 0, "bytes", LOWERED, low=figure.value)


def _all_peaks(readings: Mapping[int, Readings], final: JobEnded | None) -> dict[int, Figure]:
    first, second = heapq.nlargest(2, [*(own.best_bytes for own in readings.values()), 0, 0])
    alone = len(readings) == 1
    return {
        index: _process_peak(index, own, second if own.best_bytes == first else first, final, alone=alone)
        for index, own in readings.items()
    }


def _process_peak(index: int, own: Readings, others_bytes: int, final: JobEnded | None, *, alone: bool) -> Figure:
    """The peak of one process; `others_bytes` is the largest value that was read of any other."""
    if own.is_marked_to_the_end and own.marked_bytes:
        method = "kernel high-water mark, every reset kept, read at exit"
        return measured(own.best_bytes, "bytes", method)
    reported_bytes = reported_above_floor(final)
    if reported_bytes and _is_of(index, own, others_bytes, reported_bytes, alone=alone):
        return measured(max(reported_bytes, own.best_bytes), "bytes", REPORTED)
    if final and final.max_resident_bytes and not reported_bytes and alone:
        return _peak_below_the_floor(final, own)
    if not own.best_bytes:
        return unknown("bytes", "the process ended before it could be read; a shorter --interval may catch it")
    return measured(own.best_bytes, "bytes", AT_LEAST, low=own.best_bytes)


def reported_above_floor(final: JobEnded | None) -> int:
    """What the kernel reported of the largest process; 0 where it only reports the size of whoever started the job."""
    reported_bytes = (final.max_resident_bytes or 0) if final else 0
    return reported_bytes if final and reported_bytes > (final.floor_bytes or 0) else 0


def _is_of(index: int, own: Readings, others_bytes: int, reported_bytes: int, *, alone: bool) -> bool:
    """Whether the kernel's end value says how large this process was."""
    if alone or (index == 0 and own.kept_bytes >= reported_bytes):
        return True
    return abs(reported_bytes - own.best_bytes) <= SAME_BYTES and others_bytes < reported_bytes - SAME_BYTES


def _peak_below_the_floor(final: JobEnded, own: Readings) -> Figure:
    """A small program: the kernel's end value is an upper bound, and exact where a reading of its own agrees."""
    reported_bytes, floor_bytes = final.max_resident_bytes or 0, final.floor_bytes or 0
    bound = f"at most {format_bytes(max(reported_bytes, own.best_bytes))}, the size of the process that started it"
    if not own.best_bytes:
        bound = f"at most {format_bytes(floor_bytes)}, the size of the process that started it"
        return Figure(value=None, unit="bytes", high=floor_bytes, reason=f"it ended before it could be read; {bound}")
    if own.best_bytes >= reported_bytes - SAME_BYTES:
        return measured(max(own.best_bytes, reported_bytes), "bytes", REPORTED)
    return measured(own.best_bytes, "bytes", f"{bound}; largest value seen", low=own.best_bytes, high=reported_bytes)


# ---- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakFacts:
    """The peak of the job, and the process whose own peak it is (None where several make it up)."""

    peak: Figure
    process: int | None


def headline(
    processes: Sequence[ProcessRecord],
    samples: Samples,
    curve: TreeCurve,
    readings: Sequence[TreeReading],
    final: JobEnded | None,
) -> PeakFacts:
    """The peak of the job: of its one process, or of its tree."""
    if not processes:
        return PeakFacts(peak=unknown("bytes", "no process was seen before the record ended"), process=None)
    largest = max(processes, key=lambda process: process.peak.value or 0)
    if len(processes) == 1 or (largest.peak.value is None and not len(curve.time_seconds)):
        return PeakFacts(peak=processes[0].peak, process=processes[0].index)
    if _is_exact(largest.peak):
        found = _exact_headline(processes, largest, samples, curve, readings)
        if found is not None:
            return found
    low = max(largest.peak.value or 0, reported_above_floor(final))
    num_unread = sum(process.peak.value is None for process in processes)
    return PeakFacts(peak=_tree_peak(low, curve, readings, num_unread), process=None)


def _is_exact(figure: Figure) -> bool:
    return figure.value is not None and figure.low is None and figure.high is None


def _tree_peak(low: float, curve: TreeCurve, readings: Sequence[TreeReading], num_unread: int) -> Figure:
    """The highest estimate of the tree, between its largest process and the summed resident sizes.

    Processes that came and went between two looks are in neither: beside one of them there is no upper bound.
    """
    summed_bytes = float(curve.summed_resident_bytes.max(initial=0))
    value = max(_seen_tree_bytes(curve, readings), low)
    times = f"{len(readings)} moment" + ("s" if len(readings) != 1 else "")
    method = f"proportional set size of the tree at {times}, resident sizes in between"
    if not num_unread:
        return measured(value, "bytes", method, low=low, high=max(summed_bytes, value))
    unread = "a process that ended before it" if num_unread == 1 else f"{num_unread} processes that ended before they"
    return measured(value, "bytes", f"{method}; without {unread} could be read", low=low)


def _seen_tree_bytes(curve: TreeCurve, readings: Sequence[TreeReading]) -> float:
    largest_reading = max((reading.tree_bytes for reading in readings), default=0)
    return max(float(curve.tree_bytes.max(initial=0)), largest_reading)


def _exact_headline(
    processes: Sequence[ProcessRecord],
    largest: ProcessRecord,
    samples: Samples,
    curve: TreeCurve,
    readings: Sequence[TreeReading],
) -> PeakFacts | None:
    """The exact peak of the largest process with what its wrappers add; None where others take part in the peak."""
    own_bytes, seen_bytes = largest.peak.value or 0, _seen_tree_bytes(curve, readings)
    if max(float(curve.summed_resident_bytes.max(initial=0)), seen_bytes) <= own_bytes + SAME_BYTES:
        return PeakFacts(peak=_raised(largest.peak, seen_bytes), process=largest.index)
    beside = _companions(largest, samples)
    wrappers = _ancestors(processes, largest)
    if not beside or not all(index in wrappers and _is_constant(samples, index) for index in beside):
        return None
    low, high = _added_bytes(largest.index, beside, samples, readings)
    if seen_bytes > own_bytes + high + SAME_BYTES:
        return None
    whose = wrappers[beside[0]].command if len(beside) == 1 else f"{len(beside)} wrappers"
    method = f"{largest.peak.method}; {format_bytes(high)} of it is {_short(whose)}, which started it and waits"
    value = max(own_bytes + high, seen_bytes)
    if high - low <= SAME_BYTES:
        return PeakFacts(peak=measured(value, "bytes", method), process=largest.index)
    peak = measured(value, "bytes", f"{method}, shared pages included", low=own_bytes + low, high=value)
    return PeakFacts(peak=peak, process=largest.index)


def _raised(figure: Figure, least_bytes: float) -> Figure:
    """The same figure, no lower than what was seen (counters of the kernel differ by a few pages)."""
    return measured(max(figure.value or 0, least_bytes), "bytes", figure.method)


def _short(text: str, width: int = 40) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _companions(largest: ProcessRecord, samples: Samples) -> list[int]:
    """The processes that were read at the same moments as the largest."""
    times = samples.time_seconds[samples.process == largest.index]
    together = np.isin(samples.time_seconds, times)
    return [int(index) for index in np.unique(samples.process[together]) if index != largest.index]


def _ancestors(processes: Sequence[ProcessRecord], child: ProcessRecord) -> dict[int, ProcessRecord]:
    """The processes above this one that run another program, by index; a fork without exec shares too much to tell."""
    by_pid = {process.pid: process for process in processes}
    found: dict[int, ProcessRecord] = {}
    parent = by_pid.get(child.parent_pid)
    while parent is not None and parent.index not in found and parent.index != child.index:
        if parent.command == child.command:
            return {}
        found[parent.index] = parent
        parent = by_pid.get(parent.parent_pid)
    return found


def _is_constant(samples: Samples, index: int) -> bool:
    sizes = samples.resident_bytes[samples.process == index]
    return int(np.ptp(sizes)) <= SAME_BYTES


def _added_bytes(largest: int, beside: list[int], samples: Samples, readings: Sequence[TreeReading]) -> tuple[int, int]:
    """The least and the most that the processes beside the largest add to it, by page walks or by their sizes."""
    most = sum(int(samples.resident_bytes[samples.process == index].max()) for index in beside)
    added = []
    for reading in readings:
        sizes = {part.process: part.resident_bytes for part in reading.processes}
        if largest in sizes and set(beside) <= sizes.keys():
            added.append(min(max(reading.tree_bytes - sizes[largest], 0), most))
    return (min(added), max(added)) if added else (0, most)
