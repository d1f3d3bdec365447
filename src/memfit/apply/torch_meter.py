"""Which bytes does a step allocate and release, as the allocator itself sees it?

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

from memfit.apply.events import Event, Mark, Record

PREFIX = "memfit mark "


def put_mark(name: str) -> None:
    """Name this moment in the record that is being made."""
    with record_function(PREFIX + name):
        pass


def record_events(run: Callable[[], Any], device: torch.device) -> Record:
    """Run something and keep the allocator's events on one device."""
    with _quiet():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            run()
        assert profiler.profiler is not None
        results: Any = profiler.profiler.kineto_results
        return _read(results.experimental_event_tree(), device)


def _read(roots: Any, device: torch.device) -> Record:
    found: list[tuple[int, Any]] = []
    waiting = list(roots)
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        fields = event.extra_fields
        if hasattr(fields, "alloc_size"):
            if fields.device.type == device.type:
                found.append((event.start_time_ns, fields))
        elif event.name.startswith(PREFIX):
            found.append((event.start_time_ns, event.name.removeprefix(PREFIX)))
    events: list[Event] = []
    marks: list[Mark] = []
    for _, what in sorted(found, key=lambda pair: pair[0]):
        if isinstance(what, str):
            marks.append(Mark(what, len(events)))
        else:
            events.append(Event(what.ptr, what.alloc_size))
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
