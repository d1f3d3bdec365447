"""Trace of torch.profiler with the memory of the run beside its operators: counters on the profiler's own clock.

The profiler writes microseconds since a moment of its own (`baseTimeNanoseconds`); a run knows when it began to the
millisecond. Both are put on the profiler's clock, so counters may stand off by a millisecond or two. A process of the
run has the same number in both, and its counters appear below its operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from memfit.errors import UsageError
from memfit.records.run import RunRecord
from memfit.show.as_json import to_json
from memfit.show.export.traces.chrome_trace import Event, trace_events

_SINCE_1970_US = 1e15
"""Microseconds above this are since 1970: traces of a torch that writes no base."""
_LEEWAY_US = 1e6


def profiler_trace_with_memory(run: RunRecord, trace: Mapping[str, object]) -> bytes:
    """The profiler's trace, whole, with the counters and steps of the run added."""
    theirs = trace.get("traceEvents")
    if not isinstance(theirs, list):
        raise UsageError("this is no trace of torch.profiler", found="no list of traceEvents")
    times = [float(event["ts"]) for event in theirs if _is_timed(event)]
    shift_us = _shift_us(run, trace, times)
    ours = [_shifted(event, shift_us) for event in trace_events(run)]
    if min(times) > shift_us + run.duration_seconds * 1e6 + _LEEWAY_US or max(times) < shift_us - _LEEWAY_US:
        raise UsageError(
            "the trace and the run are of different times",
            found=f"the trace begins {(min(times) - shift_us) / 1e6:+.1f} s from the beginning of the run",
            hint="give the trace that was written while this run was measured",
        )
    named = {event.get("pid") for event in theirs if isinstance(event, dict) and event.get("name") == "process_name"}
    added = [event for event in ours if event["ph"] != "M" or event["pid"] not in named]
    return to_json({**trace, "traceEvents": [*theirs, *added]})


def _is_timed(event: object) -> bool:
    return isinstance(event, dict) and event.get("ph") == "X" and isinstance(event.get("ts"), (int, float))


def _shift_us(run: RunRecord, trace: Mapping[str, object], times: list[float]) -> float:
    """When the run began, on the clock of the trace."""
    base_ns = trace.get("baseTimeNanoseconds")
    is_known = isinstance(base_ns, (int, float)) or (times and min(times) > _SINCE_1970_US)
    if not times or not is_known:
        found = "no baseTimeNanoseconds" if times else "nothing that took time"
        raise UsageError(
            "the clock of this trace is unknown", found=found, hint="a trace of torch.profiler, torch 2.3 or newer"
        )
    began_us = datetime.fromisoformat(run.header.created_at).timestamp() * 1e6
    return began_us - (float(base_ns) / 1e3 if isinstance(base_ns, (int, float)) else 0.0)


def _shifted(event: Event, shift_us: float) -> Event:
    return {**event, "ts": event["ts"] + shift_us} if "ts" in event else event
