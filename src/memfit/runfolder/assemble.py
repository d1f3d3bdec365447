"""Assembles the raw events of a run folder into one RunRecord.

The rules for peaks are in `runfolder.peaks`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from memfit.records.figure import Figure, unknown
from memfit.records.run import (
    EnergyReading,
    GpuProcess,
    GpuReading,
    MapsReading,
    NamedPhase,
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
from memfit.records.run_parts.ledger import LedgerFacts
from memfit.records.run_parts.samples import Samples
from memfit.records.run_parts.steps import join_steps
from memfit.runfolder import events as ev
from memfit.runfolder.marks import MarksFile, MarksText, parse_marks
from memfit.runfolder.peaks import Readings, headline, process_peaks
from memfit.runfolder.tree_curve import FaultReading, tree_curve
from memfit.units import format_bytes

ILLEGAL_INSTRUCTION = "the processor forbids an instruction that it announces: memfit doctor names what to set"
MOST_NOTES, MOST_LETTERS = 40, 1000
E = TypeVar("E", bound=ev.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """A run folder, parsed but not yet understood."""

    folder: str
    header: RunHeader
    samples: Samples
    events: list[ev.Event]
    marks: tuple[MarksText, ...]
    ledger_facts: tuple[LedgerFacts, ...]
    notes: list[str]

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]


def assemble_run(raw: RawRun) -> RunRecord:
    """Put one record together."""
    notes = list(raw.notes) + [note.message for note in raw.of(ev.Note)]
    if raw.samples.num_failed:
        notes.append(f"{raw.samples.num_failed} samples could not be read, or are damaged, and were left out")
    marks = _read_all_marks(raw, notes)
    notes += _marks_cut_short(raw, marks)
    tree_readings = tuple(sorted(map(_tree_reading, raw.of(ev.Tree)), key=lambda reading: reading.time_seconds))
    faults = sorted(map(_fault_reading, raw.of(ev.Faults)), key=lambda reading: reading[0])
    curve = tree_curve(raw.samples, tree_readings, faults)
    processes = _processes(raw, marks)
    found = headline(processes, raw.samples, curve, tree_readings, _final(raw))
    system = tuple(_system_reading(event) for event in raw.of(ev.System))
    return RunRecord(
        folder=raw.folder,
        header=raw.header,
        outcome=_outcome(raw, marks),
        duration_seconds=_duration_seconds(raw),
        peak=found.peak,
        peak_process=found.process,
        processes=processes,
        samples=raw.samples,
        tree=curve,
        tree_readings=tree_readings,
        maps=tuple(_maps_reading(event) for event in raw.of(ev.Maps)),
        system=system,
        system_summary=_system_summary(system),
        steps=join_steps([m.steps for m in marks.values()]),
        named_phases=_named_phases(marks),
        gpus=tuple(_gpu_reading(event) for event in raw.of(ev.Gpu)),
        energy=tuple(_energy_reading(event) for event in raw.of(ev.Energy)),
        energy_reason=next((event.reason for event in raw.of(ev.EnergyUnavailable)), ""),
        ledger_facts=raw.ledger_facts,
        sampler=next((_sampler_report(event) for event in raw.of(ev.SamplerEnded)), None),
        notes=_few(dict.fromkeys(note for note in notes if note)),
    )


def _few(notes: Iterable[str]) -> tuple[str, ...]:
    """As many notes as a person reads, each of a length that fits; the rest are counted."""
    kept = [note if len(note) <= MOST_LETTERS else note[: MOST_LETTERS - 1] + "…" for note in notes]
    if len(kept) > MOST_NOTES:
        kept[MOST_NOTES - 1 :] = [f"{len(kept) - MOST_NOTES + 1} more notes were left out"]
    return tuple(kept)


def _duration_seconds(raw: RawRun) -> float:
    ended = raw.of(ev.JobEnded)
    if ended:
        return ended[-1].time_seconds
    last_sample = float(raw.samples.time_seconds[-1]) if len(raw.samples) else 0.0
    return max([last_sample, *(event.time_seconds for event in raw.events)])


def _read_all_marks(raw: RawRun, notes: list[str]) -> dict[int, MarksFile]:
    """Marks files by process index; a process the sampler never saw gets a note."""
    index_of = {event.inner_name or str(event.pid): event.process for event in raw.of(ev.ProcessStarted)}
    marks: dict[int, MarksFile] = {}
    for text in raw.marks:
        index = index_of.get(text.writer)
        if index is None:
            notes.append(f"{text.name} belongs to no process of the record and was left out")
            continue
        read = parse_marks(text, process=index, clock_start_ns=raw.header.clock_start_ns)
        if read is not None:
            marks[index] = read
            notes.extend(read.notes)
    return marks


def _marks_cut_short(raw: RawRun, marks: dict[int, MarksFile]) -> list[str]:
    """A job that ended by itself, without a last mark: what it did after the one before is not in its steps."""
    final, first = _final(raw), marks.get(0)
    if final is None or final.exit_code is None or first is None or first.exited:
        return []
    why = "it closed memfit's files, left by os._exit, or became another program"
    return [f"the marks of the job end before it did ({why}): steps after the last mark are not counted"]


def _named_phases(marks: dict[int, MarksFile]) -> tuple[NamedPhase, ...]:
    phases = [
        NamedPhase(process=index, time_seconds=seconds, name=name, peak_bytes=peak_bytes)
        for index, read in marks.items()
        for seconds, name, peak_bytes in read.named_phases
    ]
    return tuple(sorted(phases, key=lambda phase: phase.time_seconds))


# ---- processes and peaks ---------------------------------------------------------------------------------------------


def _processes(raw: RawRun, marks: dict[int, MarksFile]) -> tuple[ProcessRecord, ...]:
    started = {event.process: event for event in raw.of(ev.ProcessStarted)}
    sampled, first_seconds = _sampled(raw.samples)
    for index in sorted(sampled.keys() - started.keys()):
        started[index] = _missing_start(index, first_seconds[index])
    names = {event.process: event.command for event in raw.of(ev.ProcessRenamed)}
    ended = {event.process: event.time_seconds for event in raw.of(ev.ProcessEnded)}
    largest, polled = _largest_counters(raw.of(ev.Counters))
    readings = {index: _readings(polled.get(index, 0), sampled.get(index, 0), marks.get(index)) for index in started}
    peaks = process_peaks(readings, _final(raw), are_marks_whole=len(marks) == len(raw.marks))
    return tuple(
        ProcessRecord(
            index=index,
            pid=event.pid,
            parent_pid=event.parent_pid,
            command=names.get(index) or event.command,
            started_seconds=event.time_seconds,
            ended_seconds=ended.get(index),
            peak=peaks[index],
            rank=marks[index].rank if index in marks else None,
            **_parts(largest.get(index)),
        )
        for index, event in started.items()
    )


def _final(raw: RawRun) -> ev.JobEnded | None:
    return next(reversed(raw.of(ev.JobEnded)), None)


def _sampled(samples: Samples) -> tuple[dict[int, int], dict[int, float]]:
    """Of every process that was sampled: its largest resident size, and when it was first read."""
    indices, first, row = np.unique(samples.process, return_index=True, return_inverse=True)
    highest = np.zeros(len(indices), dtype=np.int64)
    np.maximum.at(highest, row, samples.resident_bytes)
    keys = indices.tolist()
    first_seconds = samples.time_seconds[first].tolist()
    return dict(zip(keys, highest.tolist(), strict=True)), dict(zip(keys, first_seconds, strict=True))


def _missing_start(index: int, first_seconds: float) -> ev.ProcessStarted:
    """A process that was sampled, though the line that announced it is lost."""
    command = "(the line that names it is missing)"
    return ev.ProcessStarted(time_us=int(first_seconds * 1e6), process=index, pid=0, parent_pid=0, command=command)


def _largest_counters(readings: list[ev.Counters]) -> tuple[dict[int, ev.Counters], dict[int, int]]:
    """Of every process: the reading at its largest resident size, and the highest high-water mark."""
    largest: dict[int, ev.Counters] = {}
    polled: dict[int, int] = {}
    for reading in readings:
        best = largest.get(reading.process)
        if best is None or reading.resident_bytes > best.resident_bytes:
            largest[reading.process] = reading
        highest = max(reading.high_water_bytes, reading.resident_bytes)
        polled[reading.process] = max(polled.get(reading.process, 0), highest)
    return largest, polled


def _readings(polled_bytes: int, sampled_bytes: int, marks: MarksFile | None) -> Readings:
    return Readings(
        polled_bytes=polled_bytes,
        sampled_bytes=sampled_bytes,
        marked_bytes=(marks.peak_bytes or 0) if marks else 0,
        is_marked_to_the_end=marks is not None and marks.exited,
    )


def _parts(reading: ev.Counters | None) -> dict[str, int | None]:
    names = ("anonymous_bytes", "file_bytes", "shmem_bytes")
    return {name: getattr(reading, name) if reading is not None else None for name in names}


# ---- outcome ---------------------------------------------------------------------------------------------------------


def _outcome(raw: RawRun, marks: dict[int, MarksFile]) -> Outcome:
    """How the job ended: memfit's own doing first, then memory, then signals, then the exit code."""
    ended, limits = raw.of(ev.JobEnded), raw.of(ev.Limit)
    where = _where(marks.get(0))
    if not ended:
        message = "the record ends without the job's end: the sampler was killed, or is still measuring"
        return Outcome(kind="lost", message=message, **where)
    final = ended[-1]
    status: dict[str, Any] = {"exit_code": final.exit_code, "signal": final.signal}
    if limits:
        took, most = format_bytes(limits[-1].tree_bytes), format_bytes(limits[-1].limit_bytes)
        where |= {"step": limits[-1].step, "phase": limits[-1].phase} if limits[-1].step is not None else {}
        message = f"ended by memfit at {took}; the limit is {most}"
        return Outcome(kind="over the limit", message=message, **status, **where)
    out_of_memory = _out_of_memory(final, marks)
    if out_of_memory:
        return Outcome(kind="out of memory", message=out_of_memory, **status, **where)
    if final.detached:
        return Outcome(kind="detached", message="memfit detached from the process while it was running")
    if final.signal is not None:
        return _ended_by_signal(final.signal, status | where)
    if final.exit_code is None:
        return Outcome(kind="done", message="it ended; only its parent gets its exit code")
    kind = "done" if final.exit_code == 0 else "failed"
    return Outcome(kind=kind, message=f"exit code {final.exit_code}", **status, **(where if final.exit_code else {}))


def _where(marks: MarksFile | None) -> dict[str, Any]:
    if marks is None:
        return {}
    return {"step": marks.last_step + 1, "phase": marks.last_phase}


def _out_of_memory(final: ev.JobEnded, marks: dict[int, MarksFile]) -> str:
    """The evidence that memory ran out; empty when there is none."""
    for read in marks.values():
        if read.exception and read.exception.get("out_of_memory"):
            return f"{read.exception.get('type')}: {read.exception.get('message')}"
    if final.signal == signal.SIGKILL and final.num_oom_kills:
        return "the kernel's out-of-memory killer was at work while it ran, and it was killed"
    return ""


def _ended_by_signal(number: int, facts: dict[str, Any]) -> Outcome:
    name = signal.Signals(number).name if number in signal.valid_signals() else "unknown"
    kind = "interrupted" if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) else "killed"
    advice = f"; {ILLEGAL_INSTRUCTION}" if number == signal.SIGILL else ""
    return Outcome(kind=kind, message=f"ended by signal {number} ({name}){advice}", **facts)


# ---- one event each --------------------------------------------------------------------------------------------------


def _tree_reading(event: ev.Tree) -> TreeReading:
    parts = tuple(
        SharedReading(
            process=process,
            resident_bytes=resident,
            proportional_bytes=proportional,
            unique_bytes=unique,
            share_bytes=share,
        )
        for process, resident, proportional, unique, share in event.processes
    )
    return TreeReading(
        time_seconds=event.time_seconds, reason=event.reason, cost_seconds=event.cost_us / 1e6, processes=parts
    )


def _fault_reading(event: ev.Faults) -> FaultReading:
    return event.time_seconds, dict(event.processes)


def _facts(event: ev.Event) -> dict[str, Any]:
    """The fields of an event under the same names, without its clock."""
    facts = msgspec.structs.asdict(event)
    del facts["time_us"]
    return facts


def _maps_reading(event: ev.Maps) -> MapsReading:
    return MapsReading(time_seconds=event.time_seconds, **_facts(event))


def _system_reading(event: ev.System) -> SystemReading:
    used_bytes = event.total_bytes - (event.free_bytes + event.buffers_bytes + event.cached_bytes)
    return SystemReading(
        time_seconds=event.time_seconds,
        percent=round(100 * (event.total_bytes - event.available_bytes) / max(event.total_bytes, 1), 2),
        used_bytes=used_bytes,
        background_bytes=used_bytes - event.job_bytes,
        **_facts(event),
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


def _gpu_reading(event: ev.Gpu) -> GpuReading:
    processes = tuple(GpuProcess(pid=pid, num_bytes=num_bytes) for pid, num_bytes in event.processes)
    facts = _facts(event)
    del facts["processes"]
    return GpuReading(time_seconds=event.time_seconds, processes=processes, **facts)


def _energy_reading(event: ev.Energy) -> EnergyReading:
    if event.joules is None:
        figure = unknown("joules", event.reason or "no reading at both ends")
    else:
        figure = Figure(value=event.joules, unit="joules", source=event.source or "measured", method=event.method)
    return EnergyReading(domain=event.domain, figure=figure, scope=event.scope, window_seconds=event.window_seconds)


def _sampler_report(event: ev.SamplerEnded) -> SamplerReport:
    facts = _facts(event)
    return SamplerReport(late_high_seconds=facts.pop("late_high_us") / 1e6, **facts)
