"""How do the raw events of a run folder become one record with the figures a person asks for?

Rules for the peak, in one place:
  - one process: the kernel's high-water mark. It is exact when it was read to the end: by the job's own exit mark, or by what the
    kernel told the parent at the end (`ru_maxrss`, valid above the parent's own size, which it starts from).
  - a tree: the largest value of the tree curve, with the summed resident sizes as its upper and the largest process as its lower bound.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memfit.records.figure import Figure, measured, unknown
from memfit.records.ledger import LedgerFacts
from memfit.records.marks_file import MarksFile, read_marks
from memfit.records.run import (
    EnergyReading,
    GpuProcess,
    GpuReading,
    MapsReading,
    Outcome,
    ProcessRecord,
    RunHeader,
    RunRecord,
    SamplerReport,
    SharedReading,
    SystemReading,
    SystemSummary,
    TreeReading,
)  # fmt: skip
from memfit.records.samples import Samples, TreeCurve
from memfit.records.steps import join_steps
from memfit.records.tree_curve import tree_curve
from memfit.units import format_bytes

Event = dict[str, Any]
_EXACT_SLACK_BYTES = 512 * 1024
"""Below this, two resident counters of the kernel count as equal (they are batched per thread)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """A run folder, parsed but not yet understood."""

    folder: str
    header: RunHeader
    samples: Samples
    events: list[Event]
    marks_paths: tuple[Path, ...]
    ledger_facts: tuple[LedgerFacts, ...]
    notes: list[str]


def assemble_run(raw: RawRun) -> RunRecord:
    """Put one record together."""
    by_kind: dict[str, list[Event]] = {}
    for event in raw.events:
        by_kind.setdefault(event["kind"], []).append(event)
    notes = list(raw.notes) + [str(event.get("message", "")) for event in by_kind.get("note", ())]
    marks = _read_all_marks(raw, by_kind.get("process_started", []), notes)
    tree_readings = tuple(_tree_reading(event) for event in by_kind.get("tree", ()))
    curve = tree_curve(raw.samples, tree_readings)
    processes = _processes(raw, by_kind, marks)
    system = tuple(_system_reading(event) for event in by_kind.get("system", ()))
    return RunRecord(
        folder=raw.folder,
        header=raw.header,
        outcome=_outcome(by_kind, marks),
        duration_seconds=_duration_seconds(raw),
        peak=_headline(processes, curve, tree_readings),
        processes=processes,
        samples=raw.samples,
        tree=curve,
        tree_readings=tree_readings,
        maps=tuple(_maps_reading(event) for event in by_kind.get("maps", ())),
        system=system,
        system_summary=_system_summary(system),
        steps=join_steps([m.steps for m in marks.values()]),
        gpus=tuple(_gpu_reading(event) for event in by_kind.get("gpu", ())),
        energy=tuple(_energy_reading(event) for event in by_kind.get("energy", ())),
        energy_reason=next((str(e.get("reason", "")) for e in by_kind.get("energy_unavailable", ())), ""),
        ledger_facts=raw.ledger_facts,
        sampler=next((_sampler_report(event) for event in by_kind.get("sampler", ())), None),
        notes=tuple(dict.fromkeys(note for note in notes if note)),
    )


def _seconds(event: Event) -> float:
    return event.get("time_us", 0) / 1e6


def _duration_seconds(raw: RawRun) -> float:
    last_sample = float(raw.samples.time_seconds[-1]) if len(raw.samples) else 0.0
    ended = [_seconds(event) for event in raw.events if event["kind"] == "job_ended"]
    return ended[-1] if ended else max([last_sample, *(_seconds(event) for event in raw.events)], default=0.0)


def _read_all_marks(raw: RawRun, started: list[Event], notes: list[str]) -> dict[int, MarksFile]:
    """Marks files by process index; a process the sampler never saw gets a note."""
    index_of_pid = {event.get("pid"): event.get("process", 0) for event in started}
    marks: dict[int, MarksFile] = {}
    for path in raw.marks_paths:
        pid_text = path.stem.partition("-")[2]
        index = index_of_pid.get(int(pid_text)) if pid_text.isdigit() else None
        if index is None:
            notes.append(f"{path.name} belongs to no process of the record and was left out")
            continue
        read = read_marks(path, process=index, clock_start_ns=raw.header.clock_start_ns)
        if read is not None:
            marks[index] = read
            notes.extend(read.notes)
    return marks


# ---- processes and peaks ----------------------------------------------------------------------------------------------


def _processes(raw: RawRun, by_kind: dict[str, list[Event]], marks: dict[int, MarksFile]) -> tuple[ProcessRecord, ...]:
    started = by_kind.get("process_started", [])
    ended = {event.get("process"): _seconds(event) for event in by_kind.get("process_ended", ())}
    counters: dict[int, list[Event]] = {}
    for event in by_kind.get("counters", ()):
        counters.setdefault(event.get("process", 0), []).append(event)
    final = by_kind.get("job_ended", [{}])[-1]
    sampled = {
        int(i): int(raw.samples.resident_bytes[raw.samples.process == i].max()) for i in np.unique(raw.samples.process)
    }
    records = []
    for event in started:
        index = event.get("process", 0)
        own = counters.get(index, [])
        largest = max(own, key=lambda e: e.get("resident_bytes", 0), default={})
        peak = _process_peak(
            polled_bytes=max((e.get("high_water_bytes", 0) for e in own), default=0),
            sampled_bytes=sampled.get(index, 0),
            marks=marks.get(index),
            final=final if index == 0 else {},
            has_children=len(started) > 1,
        )
        records.append(
            ProcessRecord(
                index=index,
                pid=event.get("pid", 0),
                parent_pid=event.get("parent_pid", 0),
                command=str(event.get("command", "")),
                started_seconds=_seconds(event),
                ended_seconds=ended.get(index),
                peak=peak,
                anonymous_bytes=largest.get("anonymous_bytes"),
                file_bytes=largest.get("file_bytes"),
                shmem_bytes=largest.get("shmem_bytes"),
            )
        )
    return tuple(records)


def _process_peak(
    *, polled_bytes: int, sampled_bytes: int, marks: MarksFile | None, final: Event, has_children: bool
) -> Figure:
    """The high-water mark of one process, and whether it is exact."""
    seen_bytes = max(polled_bytes, sampled_bytes)
    marked_bytes = (marks.peak_bytes or 0) if marks else 0
    kernel_bytes, floor_bytes = final.get("max_resident_bytes") or 0, final.get("floor_bytes") or 0
    if marks and marks.last_phase == "exit" and marked_bytes:
        return measured(
            max(marked_bytes, polled_bytes), "bytes", "kernel high-water mark, every reset kept, read at exit"
        )
    if kernel_bytes and not has_children:
        if kernel_bytes > floor_bytes:
            best = max(kernel_bytes, marked_bytes, polled_bytes)
            return measured(best, "bytes", "kernel high-water mark, read at the end")
        best = max(seen_bytes, marked_bytes)
        method = f"at most {format_bytes(floor_bytes)}, the size of the process that started it; largest value seen"
        return measured(best, "bytes", method, low=best, high=kernel_bytes)
    best = max(seen_bytes, marked_bytes)
    if not best:
        return unknown("bytes", "the process ended before it could be read; a shorter --interval may catch it")
    return measured(best, "bytes", "kernel high-water mark, last read shortly before the end", low=best)


def _headline(processes: tuple[ProcessRecord, ...], curve: TreeCurve, readings: tuple[TreeReading, ...]) -> Figure:
    """The peak of the job: of its one process, or of its tree."""
    if not processes:
        return unknown("bytes", "no process was seen before the record ended")
    if len(processes) == 1 or not len(curve.time_seconds):
        return processes[0].peak
    largest_process = max((p.peak.value or 0) for p in processes)
    largest_reading = max((r.proportional_bytes for r in readings), default=0)
    value = max(float(curve.tree_bytes.max()), largest_process, largest_reading)
    upper = max(float(curve.summed_resident_bytes.max()), value)
    if value == largest_process and upper - value < _EXACT_SLACK_BYTES:
        return max((p.peak for p in processes), key=lambda figure: figure.value or 0)
    method = f"proportional set size of the tree at {len(readings)} moments, resident sizes in between"
    return measured(value, "bytes", method, low=largest_process, high=upper)


# ---- outcome ----------------------------------------------------------------------------------------------------------


def _outcome(by_kind: dict[str, list[Event]], marks: dict[int, MarksFile]) -> Outcome:
    root = marks.get(0)
    where = (
        {"step": root.last_step + 1 if root.last_phase != "exit" else root.last_step, "phase": root.last_phase}
        if root
        else {}
    )
    if not by_kind.get("job_ended"):
        message = "the record ends without the job's end: the sampler was killed, or is still measuring"
        return Outcome(kind="lost", message=message, **where)
    final = by_kind["job_ended"][-1]
    exit_code, number = final.get("exit_code"), final.get("signal")
    ended: dict[str, Any] = {"exit_code": exit_code, "signal": number}
    if by_kind.get("limit"):
        limit = by_kind["limit"][-1]
        where |= {key: limit[key] for key in ("step", "phase") if limit.get(key) is not None}
        took, most = format_bytes(limit.get("tree_bytes", 0)), format_bytes(limit.get("limit_bytes", 0))
        return Outcome(
            kind="over the limit", message=f"ended by memfit at {took}; the limit is {most}", **ended, **where
        )
    exception = next((m.exception for m in marks.values() if m.exception and m.exception.get("out_of_memory")), None)
    if exception:
        return Outcome(
            kind="out of memory", message=f"{exception.get('type')}: {exception.get('message')}", **ended, **where
        )
    if number == signal.SIGKILL and final.get("num_oom_kills"):
        return Outcome(kind="out of memory", message="the kernel's out-of-memory killer ended it", **ended, **where)
    if final.get("detached"):
        return Outcome(kind="detached", message="memfit let go of the process while it was running", **ended)
    if number is not None:
        name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
        kind = "interrupted" if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) else "killed"
        return Outcome(kind=kind, message=f"ended by signal {number} ({name})", **ended, **where)
    if exit_code is None:
        return Outcome(kind="done", message="it ended; its exit code is only told to its parent")
    return Outcome(
        kind="done" if exit_code == 0 else "failed",
        message=f"exit code {exit_code}",
        **ended,
        **(where if exit_code else {}),
    )


# ---- one event each ---------------------------------------------------------------------------------------------------


def _tree_reading(event: Event) -> TreeReading:
    parts = tuple(
        SharedReading(process=row[0], resident_bytes=row[1], proportional_bytes=row[2], unique_bytes=row[3])
        for row in event.get("processes", ())
    )
    return TreeReading(
        time_seconds=_seconds(event),
        reason=str(event.get("reason", "")),
        cost_seconds=event.get("cost_us", 0) / 1e6,
        processes=parts,
    )


def _maps_reading(event: Event) -> MapsReading:
    names = ("library_file_bytes", "library_data_bytes", "heap_bytes", "anonymous_bytes", "stack_bytes", "shmem_bytes")
    return MapsReading(
        time_seconds=_seconds(event),
        process=event.get("process", 0),
        **{name: int(event.get(name, 0)) for name in names},
    )


def _system_reading(event: Event) -> SystemReading:
    total, available = event["total_bytes"], event["available_bytes"]
    used = total - (event["free_bytes"] + event["buffers_bytes"] + event["cached_bytes"])
    return SystemReading(
        time_seconds=_seconds(event),
        total_bytes=total,
        available_bytes=available,
        percent=round(100 * (total - available) / total, 2),
        used_bytes=used,
        active_bytes=event["active_bytes"],
        free_bytes=event["free_bytes"],
        buffers_bytes=event["buffers_bytes"],
        cached_bytes=event["cached_bytes"],
        job_bytes=event["job_bytes"],
        background_bytes=used - event["job_bytes"],
    )


def _system_summary(system: tuple[SystemReading, ...]) -> SystemSummary | None:
    if not system:
        return None
    background = [reading.background_bytes for reading in system]
    return SystemSummary(
        num_readings=len(system),
        mean_used_bytes=float(np.mean([reading.used_bytes for reading in system])),
        mean_background_bytes=float(np.mean(background)),
        background_low_bytes=min(background),
        background_high_bytes=max(background),
        mean_job_bytes=float(np.mean([reading.job_bytes for reading in system])),
    )


def _gpu_reading(event: Event) -> GpuReading:
    return GpuReading(
        time_seconds=_seconds(event),
        device=event.get("device", 0),
        name=str(event.get("name", "")),
        total_bytes=event.get("total_bytes", 0),
        used_bytes=event.get("used_bytes", 0),
        processes=tuple(GpuProcess(pid=pid, num_bytes=num_bytes) for pid, num_bytes in event.get("processes", ())),
    )


def _energy_reading(event: Event) -> EnergyReading:
    joules, source, method = event.get("joules"), event.get("source", "measured"), str(event.get("method", ""))
    figure = (
        Figure(value=joules, unit="joules", source=source, method=method)
        if joules is not None
        else unknown("joules", str(event.get("reason") or "no reading at both ends"))
    )
    return EnergyReading(
        domain=str(event.get("domain", "")),
        figure=figure,
        scope=str(event.get("scope", "")),
        window_seconds=event.get("window_seconds", 0.0),
    )


def _sampler_report(event: Event) -> SamplerReport:
    return SamplerReport(
        cpu_seconds=event["cpu_seconds"],
        wall_seconds=event["wall_seconds"],
        resident_bytes=event["resident_bytes"],
        num_ticks=event["num_ticks"],
        num_late_ticks=event["num_late_ticks"],
        late_high_seconds=event["late_high_us"] / 1e6,
        num_failed_reads=event["num_failed_reads"],
    )
