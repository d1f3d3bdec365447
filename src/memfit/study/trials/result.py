"""Result of a trial from its measured run and its reports; pure.

A trial that dies is a result. A final result counts when the program ended well, as in NNI: the first one that was
reported, whatever came after it; a value that is no number leaves the trial without a metric and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec

from memfit.records.figure import Figure, measured, unknown
from memfit.records.run import RunRecord
from memfit.records.study import Intermediate, TrialOutcome, TrialOutcomeKind, TrialRecord
from memfit.study.trials.files import Report, final_of, intermediates_of

_SAME: frozenset[str] = frozenset({"done", "failed", "out of memory", "over the limit"})


class TrialEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why memfit itself ended a trial."""

    kind: TrialOutcomeKind
    reason: str


def conclude(
    trial: TrialRecord,
    run: RunRecord,
    reports: Sequence[Report],
    *,
    ending: TrialEnd | None = None,
    last_words: str = "",
    notes: Sequence[str] = (),
) -> TrialRecord:
    """The record of a trial whose run has ended."""
    outcome = outcome_of(run, ending, last_words)
    started = datetime.fromisoformat(run.header.created_at)
    intermediates = intermediates_of(list(reports), started.timestamp())
    return msgspec.structs.replace(
        trial,
        outcome=outcome,
        intermediates=intermediates,
        peak=run.peak,
        average=average_of(run),
        gpu_peak=gpu_peak_of(run),
        background=background_of(run),
        duration=measured(run.duration_seconds, "seconds", "from the start of the job to its end"),
        epoch_time=epoch_time(intermediates),
        energy=energy_of(run),
        started_at=run.header.created_at,
        ended_at=(started + timedelta(seconds=run.duration_seconds)).isoformat(timespec="milliseconds"),
        notes=tuple(dict.fromkeys([*trial.notes, *notes, *gpu_notes(run), *report_notes(reports), *run.notes])),
        **metric_of(outcome, reports),
    )


def outcome_of(run: RunRecord, ending: TrialEnd | None, last_words: str) -> TrialOutcome:
    """How it ended: memory first, then what memfit did, then what the program did."""
    outcome = run.outcome
    facts: dict[str, Any] = {"exit_code": outcome.exit_code, "signal": outcome.signal}
    if ending is not None and outcome.kind not in ("done", "out of memory", "over the limit"):
        return TrialOutcome(kind=ending.kind, message=ending.reason, **facts)
    if outcome.kind in _SAME:
        message = outcome.message + (f": {last_words}" if outcome.kind == "failed" and last_words else "")
        return TrialOutcome(kind=outcome.kind, message=message, **facts)  # pyright: ignore[reportArgumentType]
    return TrialOutcome(kind="failed", message=outcome.message, **facts)


def metric_of(outcome: TrialOutcome, reports: Sequence[Report]) -> dict[str, object]:
    """The fields of a record that hold the final result."""
    final = final_of(list(reports))
    if outcome.kind != "done":
        return {"metric": None, "metric_reason": f"the trial did not end well: {outcome.kind}"}
    if final is None:
        return {"metric": None, "metric_reason": "the trial reported no final result"}
    reason = "" if final.value is not None else f"the final result is no usable number: {final.reason}"
    return {"metric": final.value, "metric_reason": reason, "others": final.others}


def report_notes(reports: Sequence[Report]) -> list[str]:
    """What is odd in the reports, one sentence each."""
    notes = []
    num_finals = sum(report.is_final for report in reports)
    if num_finals > 1:
        notes.append(f"it reported {num_finals} final results; the first one counts")
    places = [index for index, report in enumerate(reports) if report.is_final]
    num_late = sum(not report.is_final for report in reports[places[0] :]) if places else 0
    if num_late:
        notes.append(f"{num_late} intermediate results came after the final one")
    bad = [report for report in reports if report.value is None and not report.is_final]
    if bad:
        notes.append(f"{len(bad)} intermediate results are no usable number; the first: {bad[0].reason}")
    return notes


def average_of(run: RunRecord) -> Figure:
    """The mean of the job's memory over time."""
    mean_bytes = run.tree.mean_bytes()
    if mean_bytes is None:
        return unknown("bytes", "the job ended before it was sampled twice")
    return measured(mean_bytes, "bytes", f"mean over time of {len(run.tree.time_seconds)} samples")


def gpu_peak_of(run: RunRecord) -> Figure:
    """The most that the job held on one GPU, of what NVML said while it ran."""
    if not run.gpus:
        return unknown("bytes", "no GPU was read while the job ran")
    known = [held for reading in run.gpus if (held := reading.job_bytes) is not None]
    if not known:
        return unknown("bytes", "the driver named no process of this job (inside a container it cannot)")
    return measured(max(known), "bytes", f"largest of {len(known)} NVML readings of one GPU")


def gpu_notes(run: RunRecord) -> list[str]:
    """A job that used a GPU has two kinds of memory, and a limit is on the host's."""
    used = any(reading.job_bytes for reading in run.gpus)
    return ["it used a GPU: its peak is the memory of the host, and gpu_peak that of the GPU"] if used else []


def background_of(run: RunRecord) -> Figure:
    """What other programs held meanwhile."""
    summary = run.system_summary
    if summary is None:
        return unknown("bytes", "the system's memory was not read while the job ran")
    method = f"system memory used minus the job, mean of {summary.num_readings} readings"
    low, high = summary.background_low_bytes, summary.background_high_bytes
    return measured(summary.mean_background_bytes, "bytes", method, low=low, high=high)


def epoch_time(intermediates: Sequence[Intermediate]) -> Figure:
    """The usual time between two intermediate results, which trials report once per epoch."""
    times = [report.time_seconds for report in intermediates if report.time_seconds is not None]
    gaps = [after - before for before, after in pairwise(times) if after >= before]
    if not gaps:
        return unknown("seconds", "fewer than two intermediate results were reported")
    method = f"median time between {len(times)} intermediate results"
    return measured(median(gaps), "seconds", method, low=min(gaps), high=max(gaps))


def energy_of(run: RunRecord) -> Figure:
    """The energy of all domains together; unknown when one of them is."""
    figures = [reading.figure for reading in run.energy]
    known = [figure.value for figure in figures if figure.value is not None]
    if not figures or len(known) < len(figures):
        reason = run.energy_reason or next((figure.reason for figure in figures if figure.reason), "no energy counter")
        return unknown("joules", reason)
    source = "assumed" if any(figure.source == "assumed" for figure in figures) else "measured"
    domains = ", ".join(reading.domain for reading in run.energy)
    return Figure(value=sum(known), unit="joules", source=source, method=f"of {domains}, other programs included")
