"""Difference of two runs, compared with how far repeats of the same run differ.

Every quantity known on a side becomes a row with its own noise (explain/run/noise.py). A difference above the noise is
called larger; below it, within; and where a run was cut short, a number is missing or its bounds overlap, the
answer is that we cannot tell. With four repeats or more on both sides the noise comes from the repeats
(explain/run/repeats.py) and nothing is assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memfit.explain.run import noise, repeats
from memfit.records.difference import Comparison, Difference, Group, NoiseSource, Side, Verdict
from memfit.records.figure import Figure, measured, unknown
from memfit.records.run import RunRecord, Settings
from memfit.records.run_parts.ledger import Ledger

CUT_SHORT = {"killed", "out of memory", "over the limit", "interrupted", "still running", "lost", "failed"}
_PHASES = ("data", "forward", "backward", "update")
_FIXED_LINES = {"interpreter", "imports", "library files"}
_ONE_RUN = "one run each cannot tell {}; repeat both: --repeat 4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run with the ledgers that explain it."""

    run: RunRecord
    ledgers: tuple[Ledger, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    """One number of one run, and what moves it from repeat to repeat."""

    group: Group
    name: str
    figure: Figure
    noise: tuple[NoiseSource, ...] = ()
    noise_unknown: str = ""
    """Why the noise is not known; then only repeats can tell."""
    grows: bool = False
    """A run that was cut short would have made it larger."""


def diff_runs(first: RunRecord, second: RunRecord) -> Comparison:
    """Compare two single runs."""
    return compare_groups([Subject(run=first)], [Subject(run=second)])


def compare_groups(first: Sequence[Subject], second: Sequence[Subject]) -> Comparison:
    """Compare two sides of one or more runs each."""
    sides = [[_quantities(subject) for subject in side] for side in (first, second)]
    names = list(dict.fromkeys(name for side in sides for run in side for name in run))
    rows = [(_of_side(name, first, sides[0]), _of_side(name, second, sides[1])) for name in names]
    confidence = repeats.confidence_for(sum(_varies(a, b) for a, b in rows))
    differences = [_difference(a, b, confidence) for a, b in rows]
    return Comparison(
        first=_side("A", first),
        second=_side("B", second),
        differences=tuple(difference for difference in differences if difference is not None),
        notes=_notes(first, second),
    )


def _side(label: str, subjects: Sequence[Subject]) -> Side:
    folders = tuple(subject.run.folder for subject in subjects)
    return Side(label=label, folders=folders, command=subjects[0].run.header.command, num_runs=len(subjects))


# ---- the quantities of one run ---------------------------------------------------------------------------------------


def _quantities(subject: Subject) -> dict[str, _Quantity]:
    run = subject.run
    rows = [*_memory(run), *_phases(run), *_time(run), *_energy(run), *_processes(run)]
    for ledger in subject.ledgers:
        rows += _ledger(ledger, run)
    return {f"{row.group}/{row.name}": row for row in rows}


def _memory(run: RunRecord) -> list[_Quantity]:
    rows = [_Quantity(group="memory", name="peak", figure=run.peak, noise=noise.peak_noise(run), grows=True)]
    mean_bytes = run.tree.mean_bytes()
    if mean_bytes is not None:
        mean = measured(mean_bytes, "bytes", f"mean over time of {len(run.tree.tree_bytes)} samples")
        rows.append(_single_run_row("memory", "mean", mean, "how far the mean over time repeats"))
    for device in sorted({reading.device for reading in run.gpus}):
        read = [reading.job_bytes for reading in run.gpus if reading.device == device]
        used = [num_bytes for num_bytes in read if num_bytes is not None]
        figure = unknown("bytes", "the driver named no process of this job (inside a container it cannot)")
        if used:
            figure = measured(max(used), "bytes", f"largest of {len(used)} NVML readings")
        reason = "device: its allocator takes memory in blocks of 2 MiB"
        grain = NoiseSource(name="device", half_width=2 * 1024**2, source="assumed", reason=reason)
        rows.append(_Quantity(group="memory", name=f"GPU {device} peak", figure=figure, noise=(grain,), grows=True))
    return rows


def _resident_noise(run: RunRecord, num_bytes: float) -> tuple[NoiseSource, ...]:
    if run.header.kind == "predicted":
        return ()
    return noise.allocator_noise(run.header, num_bytes), noise.counter_noise()


def _phases(run: RunRecord) -> list[_Quantity]:
    rows = []
    for phase in ("step", *_PHASES):
        peaks = run.steps.peak_bytes if phase == "step" else getattr(run.steps, f"{phase}_peak_bytes")
        if np.any(~np.isnan(peaks)):
            row = _median_row(run, "phases", f"median {phase} peak", peaks, "bytes")
            rows.append(row)
    return rows


def _time(run: RunRecord) -> list[_Quantity]:
    steps = run.steps
    rows = []
    if len(steps):
        rows.append(_median_row(run, "time", "median step time", steps.seconds_per_step, "seconds"))
    duration = measured(run.duration_seconds, "seconds", "monotonic clock")
    rows.append(_single_run_row("time", "duration", duration, _PACE, grows=True))
    return rows


_PACE = "how much the machine changes the pace of a repeat"


def _single_run_row(group: Group, name: str, figure: Figure, what: str, *, grows: bool = False) -> _Quantity:
    """A quantity of which one run does not show how far it repeats."""
    return _Quantity(group=group, name=name, figure=figure, noise_unknown=_ONE_RUN.format(what), grows=grows)


def _median_row(run: RunRecord, group: Group, name: str, values: np.ndarray, unit: str) -> _Quantity:
    """The median over steady steps, with the scatter of the steps and the floor of its unit."""
    steady = values[noise.steady_rows(run.steps)]
    steady = steady[~np.isnan(steady)]
    scatter = noise.median_noise(steady)
    if scatter is None:
        reason = f"{len(steady)} steady steps; at least {noise.MIN_STEADY_STEPS} are needed"
        return _Quantity(group=group, name=name, figure=unknown(unit, reason), noise_unknown=reason)
    middle = float(np.median(steady))
    noun = "steady steps" if run.steps.group_size.max() == 1 else "steady steps and groups of short steps"
    figure = measured(middle, unit, f"median of {len(steady)} {noun}")
    if unit == "seconds":
        return _single_run_row(group, name, figure, _PACE)
    return _Quantity(group=group, name=name, figure=figure, noise=(scatter, *_resident_noise(run, middle)))


def _energy(run: RunRecord) -> list[_Quantity]:
    """Joules per domain, divided by the steps where there are any."""
    rows = []
    for reading in run.energy:
        figure, name = reading.figure, f"energy, {reading.domain}"
        if figure.value is not None and len(run.steps):
            name += ", per step"
            each = figure.value / run.steps.total
            figure = Figure(
                value=each, unit="joules", source=figure.source, method=f"{figure.method}, divided by steps"
            )
        rows.append(_single_run_row("energy", name, figure, "how far energy repeats"))
    return rows


def _processes(run: RunRecord) -> list[_Quantity]:
    """Peaks by command; processes of the same command are numbered in the order they started."""
    if len(run.processes) < 2:
        return []
    seen: Counter[str] = Counter()
    rows = []
    for process in run.processes:
        seen[process.command] += 1
        name = process.command + (f" ({seen[process.command]})" if seen[process.command] > 1 else "")
        sources = _resident_noise(run, process.peak.value or 0.0)
        rows.append(_Quantity(group="processes", name=name, figure=process.peak, noise=sources, grows=True))
    return rows


def _ledger(ledger: Ledger, run: RunRecord) -> list[_Quantity]:
    rows, num_workers = [], 0
    for line in ledger.lines:
        name = line.kind if line.name in ("", line.kind) else f"{line.kind}: {line.name}"
        if line.kind == "worker":  # process numbers differ from run to run
            num_workers += 1
            name = f"worker {num_workers}"
        if ledger.device != "host":
            name = f"{ledger.device} {name}"
        if ledger.process:
            name = f"process {ledger.process} {name}"
        figure = Figure(value=line.num_bytes, unit="bytes", source=line.source, method=line.method)
        if line.kind == "tensors" and line.measured_bytes is None:
            sources: tuple[NoiseSource, ...] = ()
        elif line.kind in _FIXED_LINES:
            sources = (noise.counter_noise(),)
        else:
            sources = _resident_noise(run, ledger.peak_bytes)
        rows.append(_Quantity(group="ledger", name=name, figure=figure, noise=sources))
    return rows


# ---- one row of the comparison ---------------------------------------------------------------------------------------

_Rows = list[dict[str, _Quantity]]


def _difference(a: _SideOfRow, b: _SideOfRow, confidence: float) -> Difference | None:
    """Compare one quantity; None when neither side knows it."""
    sample = (*a.quantities, *b.quantities)[0]
    if not a.known and not b.known:
        return None
    figures = [_mean_figure(side, sample.figure.unit) for side in (a, b)]
    if not a.known or not b.known:
        change = unknown(sample.figure.unit, "known on one side only")
        reason = "; ".join(f"{label}: {side.missing}" for label, side in (("A", a), ("B", b)) if not side.known)
        return Difference(
            group=sample.group, name=sample.name, first=figures[0], second=figures[1], change=change, noise=None,
            verdict="cannot tell", reason=reason,
        )  # fmt: skip
    delta = (figures[1].value or 0.0) - (figures[0].value or 0.0)
    width = _noise_of(a, b, confidence)
    verdict, reason = _verdict(delta, width.half, width.reason, a, b)
    source = "measured" if {figures[0].source, figures[1].source} == {"measured"} else "assumed"
    low, high = (None, None) if width.half is None else (delta - width.half, delta + width.half)
    change = Figure(value=delta, unit=sample.figure.unit, source=source, method="B - A", low=low, high=high)
    return Difference(
        group=sample.group, name=sample.name, first=figures[0], second=figures[1], change=change, noise=width.half,
        resolves=width.resolves, verdict=verdict, reason=reason,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _SideOfRow:
    """One quantity over the runs of a side."""

    quantities: tuple[_Quantity, ...]
    values: np.ndarray
    missing: str
    cut_short: str
    """How a run of this side ended early; empty when all ran to their end, or the quantity does not grow."""

    @property
    def known(self) -> bool:
        return not self.missing


def _of_side(key: str, subjects: Sequence[Subject], rows: _Rows) -> _SideOfRow:
    quantities = [row[key] for row in rows if key in row]
    if key.startswith("ledger/") and len(quantities) < len(rows) and all(subject.ledgers for subject in subjects):
        quantities += [_absent_line(key)] * (len(rows) - len(quantities))
    missing = "" if len(quantities) == len(rows) else "not recorded"
    for quantity in quantities:
        missing = missing or (quantity.figure.reason if quantity.figure.value is None else "")
    endings = [s.run.outcome.kind for s in subjects if s.run.outcome.kind in CUT_SHORT]
    grows = any(quantity.grows for quantity in quantities)
    values = np.array([q.figure.value for q in quantities if q.figure.value is not None], dtype=float)
    return _SideOfRow(
        quantities=tuple(quantities), values=values, missing=missing, cut_short=endings[0] if endings and grows else ""
    )


def _absent_line(key: str) -> _Quantity:
    figure = measured(0, "bytes", "no such line in this ledger")
    return _Quantity(group="ledger", name=key.partition("/")[2], figure=figure)


def _mean_figure(side: _SideOfRow, unit: str) -> Figure:
    if not side.known:
        return unknown(unit, side.missing)
    if len(side.quantities) == 1:
        return side.quantities[0].figure
    sample = side.quantities[0].figure
    low, high = float(side.values.min()), float(side.values.max())
    method = f"mean of {len(side.values)} runs"
    return Figure(
        value=float(side.values.mean()), unit=sample.unit, source=sample.source, method=method, low=low, high=high
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Width:
    """How large a difference is no evidence, and why."""

    half: float | None
    reason: str
    resolves: float | None = None


def _is_repeated(a: _SideOfRow, b: _SideOfRow) -> bool:
    return a.known and b.known and min(len(a.values), len(b.values)) >= repeats.MIN_REPEATS


def _varies(a: _SideOfRow, b: _SideOfRow) -> bool:
    """Whether a row of enough repeats can differ by chance; what is always counted the same cannot."""
    return _is_repeated(a, b) and (np.ptp(a.values) > 0 or np.ptp(b.values) > 0)


def _noise_of(a: _SideOfRow, b: _SideOfRow, confidence: float) -> _Width:
    """From the repeats when there are enough, else the larger of their spread and of what is assumed."""
    if _is_repeated(a, b):
        return _repeated_noise(a, b, confidence)
    half, why = _single_noise(a, b)
    spread = max(float(np.ptp(a.values)), float(np.ptp(b.values)))
    if half is not None and spread > half:
        return _Width(half=spread, reason="repeats: runs of one side differ by this much")
    return _Width(half=half, reason=why)


def _repeated_noise(a: _SideOfRow, b: _SideOfRow, confidence: float) -> _Width:
    found = repeats.compare_means(a.values, b.values, confidence)
    grains = [s for q in (*a.quantities, *b.quantities) for s in q.noise if s.name in ("counter", "device")]
    grain = max(grains, key=lambda source: source.half_width, default=None)
    if grain is not None and grain.half_width > found.half_width:
        resolves = grain.half_width + found.resolves - found.half_width
        return _Width(half=grain.half_width, reason=grain.reason, resolves=resolves)
    if found.half_width == 0:
        return _Width(half=0.0, reason="all repeats of a side gave the same number", resolves=0.0)
    runs = f"{len(a.values)} + {len(b.values)} runs"
    reason = f"repeats: Welch's t over {runs}; all rows share a false-alarm rate of about 5 %"
    return _Width(half=found.half_width, reason=reason, resolves=found.resolves)


def _single_noise(a: _SideOfRow, b: _SideOfRow) -> tuple[float | None, str]:
    unknown_why = next((q.noise_unknown for q in (*a.quantities, *b.quantities) if q.noise_unknown), "")
    if unknown_why:
        return None, unknown_why
    widths: dict[str, tuple[float, str]] = {}
    for side in (a, b):
        for source in (source for quantity in side.quantities[:1] for source in quantity.noise):
            before, _ = widths.get(source.name, (0.0, ""))
            joined = (
                float(np.hypot(before, source.half_width)) if source.name == "steps" else max(before, source.half_width)
            )
            reason = source.reason if source.half_width >= before else widths[source.name][1]
            widths[source.name] = (joined, reason)
    if not widths:
        return 0.0, "counted exactly: repeats give the same number"
    return max(widths.values())


def _verdict(delta: float, half: float | None, why: str, a: _SideOfRow, b: _SideOfRow) -> tuple[Verdict, str]:
    smaller, larger, label = (a, b, "A") if delta > 0 else (b, a, "B")
    if half is None:
        return "cannot tell", why
    if smaller.cut_short:
        return "cannot tell", f"{label} was cut short ({smaller.cut_short}); a whole run may have taken more"
    if abs(delta) <= half:
        return "within the noise", why
    if len(a.values) == len(b.values) == 1 and _bounds_overlap(smaller.quantities[0], larger.quantities[0]):
        return "cannot tell", "the bounds of the two figures overlap"
    return "larger than the noise", why


def _bounds_overlap(smaller: _Quantity, larger: _Quantity) -> bool:
    """Whether the smaller may in truth be the larger; a tree with readings of shared pages has a noise of its own."""
    if any(source.name == "tree" for source in (*smaller.noise, *larger.noise)):
        return False
    top, bottom = smaller.figure.high, larger.figure.low
    top = smaller.figure.value if top is None else top
    bottom = larger.figure.value if bottom is None else bottom
    return (top or 0.0) >= (bottom or 0.0)


# ---- what else differs -----------------------------------------------------------------------------------------------


def _notes(first: Sequence[Subject], second: Sequence[Subject]) -> tuple[str, ...]:
    notes = []
    for name, values in _conditions(first, second).items():
        if values[0] != values[1]:
            notes.append(f"{name}: A {values[0]}; B {values[1]}")
    for label, side in (("A", first), ("B", second)):
        notes.extend(
            f"{label} {subject.run.outcome.kind}: {subject.run.outcome.message}"
            for subject in side
            if subject.run.outcome.kind in CUT_SHORT
        )
    fewest = min(len(first), len(second))
    if fewest < repeats.MIN_REPEATS:
        notes.append(
            f"with fewer than {repeats.MIN_REPEATS} runs per side the noise rests on assumptions; "
            f"`memfit diff --repeat {repeats.MIN_REPEATS} A B` measures both again and again"
        )
    return tuple(notes)


def _interval_text(settings: Settings) -> str:
    eased = settings.eased_interval_seconds
    return f"{settings.interval_seconds}" + (f", {eased} beside short steps" if eased else "")


def _conditions(first: Sequence[Subject], second: Sequence[Subject]) -> dict[str, tuple[str, str]]:
    """What should be equal on both sides for a fair comparison."""

    def described(subjects: Sequence[Subject]) -> dict[str, str]:
        header = subjects[0].run.header
        environment = header.environment
        return {
            "kind": header.kind,
            "command": " ".join(header.command),
            "sampling interval (seconds)": _interval_text(header.settings),
            "stable": "on" if header.settings.stable else "off",
            "marks": "on" if header.settings.marks else "off",
            "python": environment.python,
            "system": environment.system,
            "processor": environment.cpu,
            "libc": environment.libc,
            "variables": ", ".join(f"{k}={v}" for k, v in sorted(environment.variables.items())) or "none",
        }

    a, b = described(first), described(second)
    return {name: (a[name], b[name]) for name in a}
