"""Allocations and releases of one step, as the allocator itself reports them.

The allocator's own events as torch.profiler records them (read in torch 2.13): what kernels take inside is among
them, nothing is perturbed, and only this thread and its backward are seen. Marks are empty ranges in the same
record.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from memfit.profile.meter.events import AllocatorEvent, Mark, Record

PREFIX = "memfit mark "


def put_mark(name: str) -> None:
    """Name this moment in the record that is being made."""
    with record_function(PREFIX + name):
        pass


def record_events(run: Callable[[], object], device: torch.device) -> Record:
    """Run something and keep the allocator's events on one device."""
    with _quiet():
        stop = _start_recording()
        try:
            run()
        finally:
            results = stop()
        return _read(results.experimental_event_tree(), device)


class _Results(Protocol):
    """What torch's profiler returns."""

    def experimental_event_tree(self) -> object: ...


def _start_recording() -> Callable[[], _Results]:
    """Begin to record allocations and marks alone; what is returned ends it.

    torch.profiler would record every operator and every node of the backward as well, which costs several times as
    much and is not read. Private bindings, read in torch 2.13.
    """
    bindings: Any = torch._C
    calls, scopes = bindings._autograd, {bindings._profiler.RecordScope.USER_SCOPE}
    config = torch.autograd.profiler.profile(use_kineto=True, profile_memory=True).config(create_trace_id=True)
    calls._prepare_profiler(config, {ProfilerActivity.CPU})
    calls._enable_profiler(config, {ProfilerActivity.CPU}, scopes)
    return calls._disable_profiler


class WindowPeak(NamedTuple):
    """The most bytes that were alive at once in a window: two bounds, which are mostly one."""

    least_bytes: int
    most_bytes: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing went unseen."""
        return self.least_bytes == self.most_bytes


class Meter:
    """What a program takes in windows between moments of its own, all its tensors together.

    On CUDA the allocator keeps a peak of all that is alive (written for it, not run on a GPU); elsewhere its events are
    recorded. Those do not tell of the release of what was made before recording began: what went unseen in a window is
    known when it ends, and not when it happened.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peaks: list[WindowPeak | None] = []
        """Of the windows that ended, in order; where events are recorded, filled by `stop`."""
        self._before: list[int] = []
        self._profiler: Any = None

    def start(self) -> bool:
        """Begin; False where another profiler is at work in the program."""
        if self.device.type == "cuda":
            return True
        bindings: Any = torch._C
        if bindings._autograd._profiler_enabled():
            return False
        with _quiet():
            self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profiler.start()
        return True

    def begin_window(self, before_bytes: int) -> None:
        """A window begins, and the one before it ends; `before_bytes` is what all tensors take now."""
        if self.device.type == "cuda":
            if self._before:
                self._take_cuda_peak()
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            put_mark(f"window {len(self._before)}")
        self._before.append(before_bytes)

    def stop(self, after_bytes: int) -> list[WindowPeak | None]:
        """End the last window, when all tensors take `after_bytes`; None for one that was not recorded.

        Another profiler of the program, begun in the middle, ends this one.
        """
        if self.device.type == "cuda":
            if self._before:
                self._take_cuda_peak()
            return self.peaks
        with _quiet():
            self._profiler.stop()
        if not self._before:
            return self.peaks
        record = _read(self._profiler.profiler.kineto_results.experimental_event_tree(), self.device)
        marks = [record.at(f"window {number}") for number in range(len(self._before))]
        afterwards = [*self._before[1:], after_bytes]
        for before_bytes, then_bytes, start, end in zip(
            self._before, afterwards, marks, [*marks[1:], len(record.events)], strict=True
        ):
            if start is None or end is None:
                self.peaks.append(None)
                continue
            most_bytes = before_bytes + record.peak_between(start, end) - record.alive[start]
            unseen_bytes = before_bytes + record.alive[end] - record.alive[start] - then_bytes
            self.peaks.append(WindowPeak(most_bytes - max(0, unseen_bytes), most_bytes))
        return self.peaks

    def _take_cuda_peak(self) -> None:
        peak_bytes = torch.cuda.max_memory_allocated(self.device)
        self.peaks.append(WindowPeak(peak_bytes, peak_bytes))


def _read(roots: Any, device: torch.device) -> Record:
    bindings: Any = torch._C
    allocation = bindings._profiler._ExtraFields_Allocation
    found: list[tuple[int, Any]] = []
    waiting = list(reversed(roots))
    while waiting:
        event = waiting.pop()
        if children := event.children:
            waiting.extend(reversed(children))  # in order, which decides where two have the same nanosecond
        fields = event.extra_fields
        if type(fields) is allocation:
            if fields.device.type == device.type:
                found.append((event.start_time_ns, fields))
        elif (name := event.name).startswith(PREFIX):
            found.append((event.start_time_ns, name.removeprefix(PREFIX)))
    events: list[AllocatorEvent] = []
    marks: list[Mark] = []
    for nanoseconds, what in sorted(found, key=lambda pair: pair[0]):
        if isinstance(what, str):
            marks.append(Mark(what, len(events), nanoseconds / 1e9))
        else:
            events.append(AllocatorEvent(what.ptr, what.alloc_size))
    return Record(events, marks)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The profiler writes to the standard error of the process, not of Python."""
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
