"""Export to chrome://tracing and Perfetto: counters for memory, slices for steps and phases.

The trace event format: 'M' names a track, 'C' is a counter, 'X' a slice with a beginning and a length; times in
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from memfit.records.run import RunRecord
from memfit.show.as_json import to_json
from memfit.show.views.decimate import decimate
from memfit.show.views.steps import PHASE_NAMES
from memfit.show.wording import command_text, steps_text

JOB = 0
"""The track of what belongs to no single process."""
MAX_COUNTERS = 200_000
"""Per curve; above it each bucket gives its lowest and highest sample, so that peaks stay."""

Event = dict[str, Any]


def chrome_trace(run: RunRecord) -> bytes:
    """The whole trace as JSON."""
    trace = {
        "traceEvents": list(trace_events(run)),
        "displayTimeUnit": "ms",
        "otherData": {
            "tool": "memfit",
            "command": command_text(run.header.command),
            "run_id": run.header.run_id,
            "created_at": run.header.created_at,
            "outcome": run.outcome.kind,
            "peak_bytes": run.peak.value,
            "peak_source": run.peak.source,
        },
    }
    return to_json(trace)


def trace_events(run: RunRecord) -> Iterator[Event]:
    """Names of tracks, then counters, then slices."""
    yield _name(JOB, "whole job")
    yield from _counters(JOB, "memory of the tree", run.tree.time_seconds, run.tree.tree_bytes)
    pid_of = {process.index: process.pid for process in run.processes}
    for process in run.processes:
        yield _name(process.pid, process.command)
        own = run.samples.of_process(process.index)
        yield from _counters(process.pid, "resident memory", own.time_seconds, own.resident_bytes)
    if run.system:
        times = np.array([reading.time_seconds for reading in run.system])
        yield from _counters(JOB, "system used", times, np.array([r.used_bytes for r in run.system]))
        yield from _counters(JOB, "background", times, np.array([r.background_bytes for r in run.system]))
    for reading in run.gpus:
        yield _counter(JOB, f"GPU {reading.device} used", reading.time_seconds, reading.used_bytes)
    yield from _slices(run, pid_of)


def _name(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def _counter(pid: int, name: str, seconds: float, num_bytes: float) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": round(seconds * 1e6), "args": {"bytes": num_bytes}}


def _counters(pid: int, name: str, times: np.ndarray, values: np.ndarray) -> Iterator[Event]:
    level = decimate(times, values, MAX_COUNTERS)
    ends = np.append(level.time_seconds[1:], level.time_seconds[-1:])
    rows = zip(level.time_seconds.tolist(), ends.tolist(), level.low.tolist(), level.high.tolist(), strict=True)
    for begin, end, low, high in rows:
        yield _counter(pid, name, begin, high)
        if low != high:
            yield _counter(pid, name, (begin + end) / 2, low)


def _slices(run: RunRecord, pid_of: dict[int, int]) -> Iterator[Event]:
    """One slice per step, with its phases inside."""
    steps = run.steps
    names = ("begin", "forward", "backward", "update", "end")
    edges = np.column_stack([getattr(steps, f"{name}_seconds") for name in names]) if len(steps) else np.zeros((0, 5))
    peaks = [getattr(steps, f"{phase}_peak_bytes") for phase in PHASE_NAMES]
    for row, edge in enumerate(edges.tolist()):
        pid = pid_of.get(int(steps.process[row]), JOB)
        first = int(steps.first_step[row]) if steps.group_size[row] > 1 else None
        name = steps_text(first, int(steps.step[row]))
        yield _slice(pid, name, edge[0], edge[4], float(steps.peak_bytes[row]))
        for number, phase in enumerate(PHASE_NAMES):
            later = [value for value in edge[number + 1 :] if value == value]
            if edge[number] == edge[number] and later:
                yield _slice(pid, phase, edge[number], later[0], float(peaks[number][row]))


def _slice(pid: int, name: str, begin: float, end: float, peak_bytes: float) -> Event:
    known = {} if np.isnan(peak_bytes) else {"exact_peak_bytes": peak_bytes}
    begin_us, end_us = round(begin * 1e6), round(end * 1e6)
    return {"ph": "X", "name": name, "cat": "step" if name.startswith("step") else "phase", "pid": pid, "tid": 1,
            "ts": begin_us, "dur": end_us - begin_us, "args": known}  # fmt: skip
