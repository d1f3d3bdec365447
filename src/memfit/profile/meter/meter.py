"""Allocations and releases of one step, as the allocator itself reports them.

The allocator's own events as torch.profiler records them (read in torch 2.13): what kernels take inside is among
them, nothing is perturbed, and only this thread and its backward are seen. Marks are empty ranges in the same
record.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

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
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            run()
        assert profiler.profiler is not None
        results: Any = profiler.profiler.kineto_results
        return _read(results.experimental_event_tree(), device)


class Meter:
    """What a program takes in windows between moments of its own, all its tensors together.

    On CUDA the allocator keeps a peak of all that is alive (written for it, not run on a GPU); elsewhere its events are
    recorded. Those do not tell of the release of what was made before recording began, so that the first window of a
    recording may come out too high.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peaks: list[int | None] = []
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
                self.peaks.append(torch.cuda.max_memory_allocated(self.device))
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            put_mark(f"window {len(self._before)}")
        self._before.append(before_bytes)

    def stop(self) -> list[int | None]:
        """End the last window; the most bytes that were alive at once in each, None where it was not recorded.

        Another profiler of the program, begun in the middle, ends this one.
        """
        if self.device.type == "cuda":
            self.peaks += [torch.cuda.max_memory_allocated(self.device)] if self._before else []
            return self.peaks
        with _quiet():
            self._profiler.stop()
        if not self._before:
            return self.peaks
        record = _read(self._profiler.profiler.kineto_results.experimental_event_tree(), self.device)
        marks = [record.at(f"window {number}") for number in range(len(self._before))]
        for before_bytes, start, end in zip(self._before, marks, [*marks[1:], len(record.events)], strict=True):
            if start is None or end is None:
                self.peaks.append(None)
            else:
                self.peaks.append(before_bytes + record.peak_between(start, end) - record.alive[start])
        return self.peaks


def _read(roots: Any, device: torch.device) -> Record:
    found: list[tuple[int, Any]] = []
    waiting = list(reversed(roots))
    while waiting:
        event = waiting.pop()
        waiting.extend(reversed(event.children))  # in order, which decides where two have the same nanosecond
        fields = event.extra_fields
        if hasattr(fields, "alloc_size"):
            if fields.device.type == device.type:
                found.append((event.start_time_ns, fields))
        elif event.name.startswith(PREFIX):
            found.append((event.start_time_ns, event.name.removeprefix(PREFIX)))
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
