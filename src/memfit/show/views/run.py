"""View of a run: plain data that every picture, page and `--json` shares.

Nothing is decided or measured here. Numbers stay `Figure`s, so each keeps its unit, its source and, where it is
unknown, its reason, all the way to the screen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.records.difference import NoiseInterval
from memfit.records.figure import Figure, measured, unknown
from memfit.records.prediction import Prediction
from memfit.records.run import EnergyReading, Environment, Outcome, RunHeader, RunRecord, Settings
from memfit.records.run_parts.ledger import Ledger
from memfit.show.views.curves import Curve, curves_of, imports_curve, predicted_curve
from memfit.show.views.ledger import LedgerView, import_bytes, ledger_view
from memfit.show.views.steps import (
    PhaseRow,
    PhaseSpan,
    StepsView,
    count_steps,
    peak_place,
    phase_rows,
    phase_spans,
    steps_view,
)
from memfit.show.wording import command_text

GOOD_ENDINGS = {"done", "detached", "still running"}
SMALL_JOB_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What a person looks at first."""

    title: str
    outcome: Outcome
    good: bool
    duration: Figure
    peak: Figure
    noise: NoiseInterval | None
    peak_seconds: float | None
    """When the peak was, as near as is known."""
    peak_step: int | None
    peak_first_step: int | None
    """Set where the peak is that of a group of short steps, of which `peak_step` is the last."""
    peak_phase: str
    limit_bytes: int | None
    """What the user allowed; not a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process of the tree."""

    index: int
    pid: int
    parent_pid: int
    command: str
    started_seconds: float
    ended_seconds: float | None
    peak: Figure
    anonymous: Figure
    file: Figure
    shared_memory: Figure
    proportional: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemView:
    """The whole machine beside the job."""

    total: Figure
    mean_used: Figure
    mean_job: Figure
    mean_background: Figure
    highest_percent: float
    lowest_available: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU over the run."""

    device: int
    name: str
    total: Figure
    device_peak: Figure
    job_peak: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyView:
    """Energy by domain, per step where steps are known, or the reason why there is none."""

    rows: tuple[EnergyReading, ...]
    per_step: Figure
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerView:
    """What measuring cost."""

    cpu_share: Figure
    resident: Figure
    mean_interval: Figure
    """The time between two looks, over the whole run: it changes with what the job does."""
    num_ticks: int
    num_late_ticks: int
    late_high: Figure
    num_failed_reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """Everything the pictures show of one run."""

    run_id: str
    kind: str
    created_at: str
    folder: str
    command: tuple[str, ...]
    working_folder: str
    settings: Settings
    environment: Environment
    headline: Headline
    curves: tuple[Curve, ...]
    num_hidden_processes: int
    """Processes too many to draw; they are in the table and in the tree."""
    phases: tuple[PhaseRow, ...]
    steps: StepsView
    spans: tuple[PhaseSpan, ...]
    """Times that belong to no step: evaluation, and phases the program named."""
    processes: tuple[ProcessRow, ...]
    system: SystemView | None
    gpus: tuple[GpuRow, ...]
    ledgers: tuple[LedgerView, ...]
    energy: EnergyView
    sampler: SamplerView | None
    notes: tuple[str, ...]


def build_view(
    run: RunRecord,
    *,
    ledgers: tuple[Ledger, ...] = (),
    noise: NoiseInterval | None = None,
    prediction: Prediction | None = None,
    max_rows: int = 1200,
    max_steps: int = 2000,
) -> RunView:
    """Put together what is drawn, with every curve at a resolution of at most `max_rows`."""
    curves, num_hidden = curves_of(run, max_rows=max_rows)
    if prediction is not None:
        curves = (*curves, predicted_curve(prediction, run, max_rows=max_rows))
    seen = tuple(ledger_view(ledger, run) for ledger in ledgers)
    if len(run.processes) == 1 and import_bytes(seen):
        curves = (*curves, *(imports_curve(curve, import_bytes(seen)) for curve in curves if curve.role == "tree"))
    header: RunHeader = run.header
    steps = steps_view(run.steps, max_steps=max_steps, ranks=_ranks(run))
    return RunView(
        run_id=header.run_id,
        kind=header.kind,
        created_at=header.created_at,
        folder=run.folder,
        command=header.command,
        working_folder=header.working_folder,
        settings=header.settings,
        environment=header.environment,
        headline=_headline(run, noise),
        curves=curves,
        num_hidden_processes=num_hidden,
        phases=phase_rows(run.steps),
        steps=steps,
        spans=phase_spans(run),
        processes=_process_rows(run),
        system=_system(run),
        gpus=_gpus(run),
        ledgers=seen,
        energy=_energy(run),
        sampler=_sampler(run),
        notes=run.notes,
    )


def _ranks(run: RunRecord) -> set[int]:
    return {process.index for process in run.processes if process.rank is not None}


def _headline(run: RunRecord, noise: NoiseInterval | None) -> Headline:
    place = peak_place(run)
    return Headline(
        title=command_text(run.header.command),
        outcome=run.outcome,
        good=run.outcome.kind in GOOD_ENDINGS,
        duration=measured(run.duration_seconds, "seconds", "monotonic clock"),
        peak=run.peak,
        noise=noise,
        peak_seconds=place.time_seconds,
        peak_step=place.step,
        peak_first_step=place.first_step,
        peak_phase=place.phase,
        limit_bytes=run.header.settings.limit_bytes,
    )


def _process_rows(run: RunRecord) -> tuple[ProcessRow, ...]:
    proportional = {part.process: part.share_bytes for reading in run.tree_readings for part in reading.processes}
    when_largest = "status, at the reading nearest its largest size"
    unread = "the process ended before it could be read in full"
    return tuple(
        ProcessRow(
            index=process.index,
            pid=process.pid,
            parent_pid=process.parent_pid,
            command=process.command,
            started_seconds=process.started_seconds,
            ended_seconds=process.ended_seconds,
            peak=process.peak,
            anonymous=_bytes(process.anonymous_bytes, when_largest, unread),
            file=_bytes(process.file_bytes, when_largest, unread),
            shared_memory=_bytes(process.shmem_bytes, when_largest, unread),
            proportional=_bytes(
                proportional.get(process.index),
                "proportional set size, last reading",
                "read only for trees of processes",
            ),
        )
        for process in run.processes
    )


def _bytes(num_bytes: int | None, method: str, reason: str) -> Figure:
    return unknown("bytes", reason) if num_bytes is None else measured(num_bytes, "bytes", method)


def _system(run: RunRecord) -> SystemView | None:
    summary = run.system_summary
    if summary is None:
        return None
    method = f"mean of {summary.num_readings} readings"
    low, high = summary.background_low_bytes, summary.background_high_bytes
    return SystemView(
        total=measured(run.system[0].total_bytes, "bytes", "meminfo"),
        mean_used=measured(summary.mean_used_bytes, "bytes", f"total - (free + buffers + cached), {method}"),
        mean_job=measured(summary.mean_job_bytes, "bytes", method),
        mean_background=measured(
            summary.mean_background_bytes, "bytes", f"system used minus this job, {method}", low=low, high=high
        ),
        highest_percent=max(reading.percent for reading in run.system),
        lowest_available=measured(min(r.available_bytes for r in run.system), "bytes", "lowest of the readings"),
    )


def _gpus(run: RunRecord) -> tuple[GpuRow, ...]:
    rows = []
    for device in sorted({reading.device for reading in run.gpus}):
        readings = [reading for reading in run.gpus if reading.device == device]
        own = [num_bytes for reading in readings if (num_bytes := reading.job_bytes) is not None]
        method = f"largest of {len(readings)} NVML readings"
        rows.append(
            GpuRow(
                device=device,
                name=readings[0].name,
                total=measured(readings[0].total_bytes, "bytes", "NVML"),
                device_peak=measured(
                    max(r.used_bytes for r in readings), "bytes", f"{method}, other programs included"
                ),
                job_peak=measured(max(own), "bytes", method)
                if own
                else unknown("bytes", "the driver named no process of this job (inside a container it cannot)"),
            )
        )
    return tuple(rows)


def _energy(run: RunRecord) -> EnergyView:
    known = [row.figure for row in run.energy if row.figure.value is not None]
    sources = {figure.source for figure in known}
    if known and len(run.steps) and len(sources) == 1:
        num_steps = count_steps(run.steps, _ranks(run))
        joules = sum(figure.value or 0.0 for figure in known) / num_steps
        method = f"{len(known)} domain{'s' * (len(known) > 1)} over the whole run, divided by {num_steps} steps"
        per_step = Figure(value=joules, unit="joules", source=known[0].source, method=method)
    else:
        why = run.energy_reason or ("no steps were marked" if known else "no energy was read")
        if len(sources) > 1:
            why = "measured and assumed energy are not added up"
        per_step = unknown("joules", why)
    return EnergyView(rows=run.energy, per_step=per_step, reason=run.energy_reason if not known else "")


def _sampler(run: RunRecord) -> SamplerView | None:
    report = run.sampler
    if report is None:
        return None
    share = (
        measured(
            (report.cpu_seconds - report.start_cpu_seconds) / report.wall_seconds,
            "ratio",
            "CPU time of the sampler process over wall time, its start-up apart",
        )
        if report.wall_seconds > SMALL_JOB_SECONDS
        else unknown("ratio", "the run was too short to tell")
    )
    return SamplerView(
        cpu_share=share,
        resident=measured(report.resident_bytes, "bytes", "resident size of the sampler process"),
        mean_interval=(
            measured(report.wall_seconds / report.num_ticks, "seconds", "wall time over the number of looks")
            if report.num_ticks
            else unknown("seconds", "the sampler never looked")
        ),
        num_ticks=report.num_ticks,
        num_late_ticks=report.num_late_ticks,
        late_high=measured(report.late_high_seconds, "seconds", "latest tick"),
        num_failed_reads=report.num_failed_reads,
    )


def highest_drawn_bytes(view: RunView) -> float:
    """The highest value any picture of the job has to make room for."""
    drawn = [curve for curve in view.curves if curve.role in ("tree", "process", "predicted") and len(curve.levels[0])]
    tops = [float(np.max(curve.levels[0].high)) for curve in drawn]
    step_tops = view.steps.peak_bytes[~np.isnan(view.steps.peak_bytes)]
    return max([*tops, *step_tops.tolist(), view.headline.peak.value or 0.0, 1.0])
