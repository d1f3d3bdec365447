"""View of the steps: peaks per step and phase, step times, and the place of the highest peak."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, fields

import numpy as np

from memfit.records.figure import Figure, measured, unknown
from memfit.records.run import NamedPhase, RunRecord
from memfit.records.run_parts.steps import SEVERAL_OPTIMIZERS, Steps
from memfit.show.views.decimate import highest_rows

PHASE_NAMES = ("data", "forward", "backward", "update")
_SAME_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """The exact peaks of one phase over all steps, and the time it takes."""

    phase: str
    median_peak: Figure
    highest_peak: Figure
    median_seconds: Figure
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsView:
    """The rows that are drawn: all of them, or of several consecutive ones the one with the highest peak."""

    num_steps: int
    """What a person calls the number of steps: of ranks that step together, those of the one with most."""
    num_ranks: int
    """Processes that step together; 0 where the program names no ranks."""
    words: str
    """The number of steps in words: '10 on each of 2 ranks', '24 (12 by each of 2 optimizers)'."""
    largest_group: int
    """The most short steps that share one exact peak; 1 where each has its own."""
    steps_per_row: int
    """Of how many rows of the record each is the highest."""
    median_seconds: Figure
    steps_per_second: Figure
    median_peak: Figure
    step: np.ndarray
    group_size: np.ndarray
    process: np.ndarray
    begin_seconds: np.ndarray
    forward_seconds: np.ndarray
    backward_seconds: np.ndarray
    update_seconds: np.ndarray
    end_seconds: np.ndarray
    peak_bytes: np.ndarray
    data_peak_bytes: np.ndarray
    forward_peak_bytes: np.ndarray
    backward_peak_bytes: np.ndarray
    update_peak_bytes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """A time in which a process was in a phase that belongs to no step."""

    name: str
    process: int
    begin_seconds: float
    end_seconds: float


_COLUMNS = tuple(f.name for f in fields(StepsView) if f.type == "np.ndarray")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakPlace:
    """Where the highest peak lay, as near as is known."""

    time_seconds: float | None
    step: int | None
    """The step, or the last one of the group it lay in."""
    phase: str
    first_step: int | None = None
    """The first step of that group; None where the step itself is known."""


def steps_view(steps: Steps, *, max_steps: int, ranks: Container[int] = ()) -> StepsView:
    """The table of steps to draw; `ranks` are the processes that train together."""
    rows = highest_rows(steps.peak_bytes, max_steps)
    rate, each = _pace(steps)
    counts = steps_by_process(steps)
    together = [number for process, number in counts.items() if process in ranks]
    return StepsView(
        num_steps=count_steps(steps, ranks),
        num_ranks=len(together),
        words=_words(steps, counts, together),
        largest_group=int(steps.group_size.max(initial=1)),
        steps_per_row=-(-len(steps) // max_steps) if len(steps) > max_steps else 1,
        median_seconds=each,
        steps_per_second=rate,
        median_peak=_statistic(steps.peak_bytes, np.median, "bytes", "median of the exact peaks", _noun(steps)),
        **{name: getattr(steps, name)[rows] for name in _COLUMNS},
    )


def _noun(steps: Steps) -> str:
    return "steps and groups of short steps" if steps.group_size.max(initial=1) > 1 else "steps"


def steps_by_process(steps: Steps) -> dict[int, int]:
    """How many steps each process made that made any."""
    return _sums(steps.process, steps.group_size)


def _sums(keys: np.ndarray, numbers: np.ndarray) -> dict[int, int]:
    """The numbers of equal keys added up."""
    found, row = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(found), dtype=np.int64)
    np.add.at(sums, row, numbers)
    return dict(zip(found.tolist(), sums.tolist(), strict=True))


def count_steps(steps: Steps, ranks: Container[int]) -> int:
    """Steps as a person counts them: ranks make the same step together, other processes each their own."""
    counts = steps_by_process(steps)
    together = [number for process, number in counts.items() if process in ranks]
    return max(together, default=0) + sum(counts.values()) - sum(together)


def _words(steps: Steps, counts: dict[int, int], together: list[int]) -> str:
    if len(counts) > 1:
        what = "ranks" if len(together) == len(counts) else "processes"
        if len(set(counts.values())) == 1:
            return f"{next(iter(counts.values())):,} on each of {len(counts)} {what}"
        return f"{min(counts.values()):,} to {max(counts.values()):,} on each of {len(counts)} {what}"
    by_optimizer = _sums(steps.optimizer, steps.group_size)
    if SEVERAL_OPTIMIZERS in by_optimizer:
        return f"{steps.total:,} (by several optimizers)"
    numbers = list(by_optimizer.values())
    if len(numbers) < 2:
        return f"{steps.total:,}"
    if len(set(numbers)) == 1:
        return f"{steps.total:,} ({numbers[0]:,} by each of {len(numbers)} optimizers)"
    return f"{steps.total:,} ({', '.join(f'{number:,}' for number in numbers[:4])} by {len(numbers)} optimizers)"


def phase_rows(steps: Steps) -> tuple[PhaseRow, ...]:
    """One row per phase that occurred."""
    edges = [
        steps.begin_seconds,
        steps.forward_seconds,
        steps.backward_seconds,
        steps.update_seconds,
        steps.end_seconds,
    ]
    rows = []
    for number, phase in enumerate(PHASE_NAMES):
        peaks = getattr(steps, f"{phase}_peak_bytes")
        lengths = np.where(steps.is_whole, np.nan, _next_known(edges[number + 1 :]) - edges[number])
        if not np.any(~np.isnan(peaks)) and not np.any(~np.isnan(lengths)):
            continue
        rows.append(
            PhaseRow(
                phase=phase,
                median_peak=_statistic(peaks, np.median, "bytes", "median of the exact peaks"),
                highest_peak=_statistic(peaks, np.max, "bytes", "highest exact peak"),
                median_seconds=_statistic(lengths, np.median, "seconds", "median between two marks"),
                num_steps=int(np.sum(~np.isnan(lengths))),
            )
        )
    return tuple(rows)


def _next_known(later_edges: list[np.ndarray]) -> np.ndarray:
    """The first later edge that exists, row by row: a phase that did not occur has no edge."""
    result = later_edges[-1].copy()
    for edge in reversed(later_edges[:-1]):
        result = np.where(np.isnan(edge), result, edge)
    return result


def _statistic(values: np.ndarray, function, unit: str, method: str, noun: str = "steps") -> Figure:
    known = values[~np.isnan(values)]
    if not len(known):
        return unknown(unit, "no step was marked, or the high-water mark could not be reset")
    return measured(float(function(known)), unit, f"{method} of {len(known)} {noun}")


def _pace(steps: Steps) -> tuple[Figure, Figure]:
    """(steps per second, seconds per step); the first step holds the start-up and is left out.

    The steps of a group are known by their mean alone.
    """
    if len(steps) < 2:
        reason = "no optimizer step was marked" if not len(steps) else "one step is too few for a pace"
        return unknown("count", reason), unknown("seconds", reason)
    later = np.ones(len(steps), dtype=bool)
    later[np.unique(steps.process, return_index=True)[1]] = False
    if not later.any():
        reason = "one step of each process is too few for a pace"
        return unknown("count", reason), unknown("seconds", reason)
    means = ", those of a group by their mean" if steps.group_size.max() > 1 else ""
    method = f"median of {int(steps.group_size[later].sum())} steps, the first left out{means}"
    each = measured(_weighted_median(steps.seconds_per_step[later], steps.group_size[later]), "seconds", method)
    counts = _sums(steps.process[later], steps.group_size[later])
    busiest = max(counts, key=lambda process: counts[process])
    ends = steps.end_seconds[steps.process == busiest]
    span = float(ends.max() - ends.min())
    if span <= 0:
        return unknown("count", "all steps ended at the same moment"), each
    of_one = " of one process" if len(np.unique(steps.process)) > 1 else ""
    rate = measured(counts[busiest] / span, "count", f"steps{of_one} over the time between the first and the last")
    return rate, each


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The median of values of which each stands as often as its weight says."""
    order = np.argsort(values, kind="stable")
    until = np.cumsum(weights[order])
    low, high = np.searchsorted(until, [(until[-1] - 1) // 2, until[-1] // 2], side="right")
    return float((values[order[low]] + values[order[high]]) / 2)


def peak_place(run: RunRecord) -> PeakPlace:
    """When the peak was: the step that carries it exactly, or the highest point of the curve."""
    if run.peak_process is not None:
        place = _place_in_process(run, run.peak_process)
        if place is not None:
            return place
    if not len(run.tree.time_seconds):
        return PeakPlace(time_seconds=None, step=None, phase="")
    at_seconds = float(run.tree.time_seconds[int(run.tree.tree_bytes.argmax())])
    row, phase = phase_at(run.steps, at_seconds)
    known = _steps_of(run.steps, row) if row is not None else {"step": None}
    return PeakPlace(time_seconds=at_seconds, phase=phase, **known)


def _steps_of(steps: Steps, row: int) -> dict[str, int | None]:
    """The step of a row, or the first and last one of its group."""
    is_group = steps.group_size[row] > 1
    return {"step": int(steps.step[row]), "first_step": int(steps.first_step[row]) if is_group else None}


def _place_in_process(run: RunRecord, process: int) -> PeakPlace | None:
    """The phase or step whose exact peak is that of the process; None where no mark tells."""
    steps = run.steps
    peak_bytes = next((own.peak.value for own in run.processes if own.index == process), None)
    if peak_bytes is None:
        return None
    phases = [phase for phase in run.named_phases if phase.process == process and phase.name not in PHASE_NAMES]
    named = max(phases, key=lambda phase: phase.peak_bytes or 0, default=None)
    if named is not None and (named.peak_bytes or 0) >= peak_bytes - _SAME_BYTES:
        return PeakPlace(time_seconds=_highest_seconds(run, named), step=None, phase=named.name)
    own_peaks = np.where(steps.process == process, steps.peak_bytes, np.nan)
    if np.all(np.isnan(own_peaks)):
        return None
    row = int(np.nanargmax(own_peaks))
    if own_peaks[row] < peak_bytes - _SAME_BYTES:
        return None
    phase = _highest_phase(steps, row)
    return PeakPlace(time_seconds=_inside(steps, row, phase, run), phase=phase, **_steps_of(steps, row))


def _highest_seconds(run: RunRecord, named: NamedPhase) -> float:
    """The highest sample of a phase that belongs to no step; its begin where there is none."""
    ends = [span.end_seconds for span in phase_spans(run) if span.begin_seconds == named.time_seconds]
    times = run.tree.time_seconds
    inside = np.flatnonzero((times >= named.time_seconds) & (times <= (ends[0] if ends else named.time_seconds)))
    return float(times[inside[run.tree.tree_bytes[inside].argmax()]]) if len(inside) else named.time_seconds


def _highest_phase(steps: Steps, row: int) -> str:
    """The phase with the highest peak; empty for a step that was measured as a whole."""
    if steps.is_whole[row]:
        return ""
    peaks = [float(getattr(steps, f"{phase}_peak_bytes")[row]) for phase in PHASE_NAMES]
    known = [(-1.0 if np.isnan(peak) else peak) for peak in peaks]
    return PHASE_NAMES[int(np.argmax(known))]


def _inside(steps: Steps, row: int, phase: str, run: RunRecord) -> float:
    """The highest sample within the phase, or the whole step; its middle when no sample fell into it."""
    names = ("begin", "forward", "backward", "update", "end") if phase else ("begin", "end")
    edges = [float(getattr(steps, f"{name}_seconds")[row]) for name in names]
    number = PHASE_NAMES.index(phase) if phase else 0
    begin = edges[number] if not np.isnan(edges[number]) else edges[0]
    end = next(edge for edge in edges[number + 1 :] if not np.isnan(edge))
    times = run.tree.time_seconds
    first, last = np.searchsorted(times, begin), np.searchsorted(times, end, side="right")
    if last <= first:
        return (begin + end) / 2
    return float(times[first + int(run.tree.tree_bytes[first:last].argmax())])


def phase_at(steps: Steps, at_seconds: float) -> tuple[int | None, str]:
    """(row, phase) of one moment; (None, '') between or outside of steps, no phase in a row measured as a whole."""
    rows = np.flatnonzero((steps.begin_seconds <= at_seconds) & (at_seconds < steps.end_seconds))
    if not len(rows):
        return None, ""
    row, phase = int(rows[0]), "data"
    if steps.is_whole[row]:
        return row, ""
    for name in PHASE_NAMES[1:]:
        if getattr(steps, f"{name}_seconds")[row] <= at_seconds:
            phase = name
    return row, phase


MAX_SPANS = 500


def phase_spans(run: RunRecord) -> tuple[PhaseSpan, ...]:
    """Evaluation and named phases: each lasts until the next one, the next forward pass, or the end."""
    spans: list[PhaseSpan] = []
    named = [phase for phase in run.named_phases if phase.name not in PHASE_NAMES]
    for process in sorted({phase.process for phase in named}):
        own = [phase for phase in named if phase.process == process]
        forward = run.steps.forward_seconds[run.steps.process == process]
        ends = np.sort(np.append(forward[~np.isnan(forward)], [*(p.time_seconds for p in own), run.duration_seconds]))
        for phase in own:
            after = ends[np.searchsorted(ends, phase.time_seconds, side="right") :]
            end = float(after[0]) if len(after) else phase.time_seconds
            spans.append(PhaseSpan(name=phase.name, process=process, begin_seconds=phase.time_seconds, end_seconds=end))
    return tuple(spans[:MAX_SPANS])
