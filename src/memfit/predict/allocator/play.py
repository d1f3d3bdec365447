"""Plays allocation requests through the simulated CUDA allocator: peaks, fragmentation, failure, least memory.

A sequence is a list of whole numbers: `n > 0` allocates n bytes, and the allocation's number is how many there were
before it; `-1 - k` frees the k-th allocation; 0 empties the cache. So [4096, 512, -1, -2] allocates twice and frees
in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from memfit.predict.allocator.caching import CachingAllocator, OutOfDeviceMemory
from memfit.predict.allocator.driver import DeviceMemory
from memfit.predict.allocator.expandable import ExpandableAllocator
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.allocator.statistics import allocated_after_each_event, reserved_after_each_event
from memfit.records.cuda.allocator import AllocationCurve, AllocatorRun, OutOfMemory, pool_shares
from memfit.records.timeline import Timeline
from memfit.units import MIB

DEVICE_STEP_BYTES = 2 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """An allocator after it was fed events, and where it failed."""

    allocator: CachingAllocator
    num_events: int
    failed: OutOfMemory | None


def make_allocator(
    settings: AllocatorSettings | None = None, device_bytes: int | None = None, driver: DeviceMemory | None = None
) -> CachingAllocator:
    """The allocator these settings ask for."""
    settings = settings or AllocatorSettings()
    kind = ExpandableAllocator if settings.expandable_segments else CachingAllocator
    return kind(settings, device_bytes, driver)


def events_of(timeline: Timeline, device: str) -> list[int]:
    """The requests of a timeline to one device's allocator; storages without bytes ask for nothing."""
    return [request for _, request in placed_events_of(timeline, device)]


def placed_events_of(timeline: Timeline, device: str) -> list[tuple[int, int]]:
    """The same, each with its place in the timeline."""
    spans = [span for span in timeline.spans if span.device == device and span.num_bytes > 0]
    spans.sort(key=lambda span: span.start)
    order = [(span.start, 0, span.num_bytes) for span in spans]
    order += [(span.end, 1, -1 - number) for number, span in enumerate(spans) if span.end is not None]
    return [(place, request) for place, _, request in sorted(order)]


def streams_of(timeline: Timeline, device: str) -> list[int] | None:
    """The stream of each of these allocations; None where all are on the default one."""
    spans = [span for span in timeline.spans if span.device == device and span.num_bytes > 0]
    spans.sort(key=lambda span: span.start)
    return [span.stream for span in spans] if any(span.stream for span in spans) else None


def play(
    events: Sequence[int], allocator: CachingAllocator, streams: Sequence[int] | None = None, stop_at: int | None = None
) -> Played:
    """Feed events to an allocator until they end, or until one does not fit."""
    handles: list[int] = []
    allocate, free, done = allocator.allocate, allocator.free, handles.append
    given = events if stop_at is None else events[:stop_at]
    number = -1
    try:
        for number, event in enumerate(given):  # noqa: B007, the last one is needed when an event fails
            if event > 0:
                done(allocate(event, streams[len(handles)]) if streams else allocate(event))
            elif event < 0:
                free(handles[-1 - event])
            else:
                allocator.empty_cache()
    except OutOfDeviceMemory as error:
        return Played(allocator=allocator, num_events=number, failed=error.report)
    return Played(allocator=allocator, num_events=len(given), failed=None)


def simulate(
    events: Sequence[int],
    settings: AllocatorSettings | None = None,
    device_bytes: int | None = None,
    *,
    streams: Sequence[int] | None = None,
    text: str = "",
    smallest: bool = False,
    max_points: int | None = None,
    keep_segments: bool = True,
) -> AllocatorRun:
    """Run events through an allocator; `smallest` also looks for the least memory on which they still run."""
    settings = settings or AllocatorSettings()
    played = play(events, make_allocator(settings, device_bytes), streams)
    run = summarize(played, text=text, max_points=max_points)
    if run.peak_reserved_bytes:
        again = play(events, make_allocator(settings, device_bytes), streams, stop_at=run.peak_reserved_event + 1)
        run = with_state_at_peak(run, again.allocator, keep_segments)
    least = smallest_device_bytes(events, settings, run, streams) if smallest and run.failed is None else None
    return msgspec.structs.replace(run, smallest_device_bytes=least)


def summarize(played: Played, *, text: str = "", max_points: int | None = None) -> AllocatorRun:
    """The record of an allocator that was fed events."""
    allocator, log = played.allocator, played.allocator.log
    stats = allocator.stats
    allocated, reserved = allocated_after_each_event(log), reserved_after_each_event(log)
    return AllocatorRun(
        settings=text,
        device_bytes=allocator.driver.total_bytes,
        num_events=played.num_events,
        peak_requested_bytes=stats["requested_bytes.all.peak"],
        peak_allocated_bytes=stats["allocated_bytes.all.peak"],
        peak_active_bytes=stats["active_bytes.all.peak"],
        peak_reserved_bytes=stats["reserved_bytes.all.peak"],
        peak_allocated_event=int(allocated.argmax()) if len(allocated) else 0,
        peak_reserved_event=int(reserved.argmax()) if len(reserved) else 0,
        final_allocated_bytes=stats["allocated_bytes.all.current"],
        final_reserved_bytes=stats["reserved_bytes.all.current"],
        num_segments=stats["segment.all.peak"],
        num_alloc_retries=log.num_alloc_retries,
        num_driver_calls=log.num_device_allocs + log.num_device_frees,
        curve=thin_curve(allocated, reserved, max_points),
        failed=played.failed and msgspec.structs.replace(played.failed, event=played.num_events),
    )


def with_state_at_peak(run: AllocatorRun, allocator: CachingAllocator, keep_segments: bool = True) -> AllocatorRun:
    """Put in what an allocator that was stopped at the peak looks like."""
    segments = allocator.segments()
    num_segments = run.num_segments or len(segments)
    run = msgspec.structs.replace(run, pools_at_peak=pool_shares(segments), num_segments=num_segments)
    return msgspec.structs.replace(run, segments_at_peak=segments) if keep_segments else run


def smallest_device_bytes(
    events: Sequence[int], settings: AllocatorSettings, run: AllocatorRun, streams: Sequence[int] | None = None
) -> int:
    """The least memory, by bisection in steps of 2 MiB, on which the events still run.

    Above the peak of reserved bytes nothing ever fails; below the peak of allocated bytes nothing can help. In
    between, a larger device is taken to be no worse than a smaller one.
    """
    low = run.peak_allocated_bytes // DEVICE_STEP_BYTES - 1
    high = -(-run.peak_reserved_bytes // DEVICE_STEP_BYTES)
    while not _runs_on(events, settings, high * DEVICE_STEP_BYTES, streams):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _runs_on(events, settings, middle * DEVICE_STEP_BYTES, streams):
            high = middle
        else:
            low = middle
    return high * DEVICE_STEP_BYTES


def _runs_on(
    events: Sequence[int], settings: AllocatorSettings, device_bytes: int, streams: Sequence[int] | None
) -> bool:
    return play(events, make_allocator(settings, device_bytes), streams).failed is None


def thin_curve(allocated: np.ndarray, reserved: np.ndarray, max_points: int | None) -> AllocationCurve:
    """Both curves, each stretch of equal length replaced by its largest value when there are too many points."""
    num_events = len(allocated)
    starts = np.arange(num_events)
    if max_points is not None and num_events > max_points:
        starts = np.unique(np.linspace(0, num_events, max_points, endpoint=False).astype(np.int64))
        allocated = np.maximum.reduceat(allocated, starts)
        reserved = np.maximum.reduceat(reserved, starts)
    return AllocationCurve(
        events=tuple(starts.tolist()),
        allocated_bytes=tuple(allocated.tolist()),
        reserved_bytes=tuple(reserved.tolist()),
    )
