"""Measurement of the cells of a grid here: a measured run of each, and its tensors under the allocator's log.

Two processes per cell, one after the other: the training as a measured job (resident peak, steps, seconds, energy),
and two steps of it under torch's own record of allocations, which sees what kernels take inside.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from memfit.compare.cells.predicted_figures import MOST_POINTS, epoch_time
from memfit.compare.rows_and_columns import CellPlan, job_for
from memfit.errors import MemfitError
from memfit.job.description import JobDescription
from memfit.job.recipes.recipe import techniques_text
from memfit.measure.session import run_command
from memfit.records.figure import Figure, measured, unknown
from memfit.records.grid import CellFigures, CurvePoint, PeakMoment
from memfit.records.prediction import LevelName
from memfit.records.run import RunRecord, settings_for
from memfit.runfolder.reader import read_run

TENSOR_PEAK = [sys.executable, "-m", "memfit.compare.cells.torch_tensor_peak"]
SECONDS_FOR_TENSORS = 900
OUTPUT_TAIL_CHARACTERS = 600


class CellFailed(MemfitError):
    """A cell could not be measured; `is_memory` says whether memory ran out."""

    def __init__(self, what: str, *, is_memory: bool = False, found: str = "", hint: str = "") -> None:
        super().__init__(what, found=found, hint=hint)
        self.is_memory = is_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """How cells are measured."""

    num_steps: int
    epoch_steps: float | None
    """Of the cell that is measured."""
    folder: Path


def measure_cell(job: JobDescription, plan: CellPlan, options: MeasureOptions) -> CellFigures:
    """Train a cell for some steps in a process of its own, and say what it took; a run that is there is read."""
    described = job_for(job, plan)
    folder = options.folder / _folder_name(plan)
    tensors, curve, num_skipped = _tensors(described)
    run = _finished_run(folder)
    if run is None:
        output = folder.with_suffix(".txt")
        folder.parent.mkdir(parents=True, exist_ok=True)
        settings = settings_for(None, stable=plan.recipe.has("pinned-malloc"))
        command = _command(described, plan, options.num_steps + num_skipped)
        ended = run_command(command, folder, settings, overwrite=True, output_file=output)
        if ended.interrupted_by is not None:
            raise KeyboardInterrupt  # the signal went to the cell's job; it was meant for the whole grid
        run = read_run(folder)
        _refuse_failed(run, output)
    found = figures_of_run(run, tensors, tensors, "tensors", options.epoch_steps)
    return msgspec.structs.replace(found, curve=curve) if curve else found


def _finished_run(folder: Path) -> RunRecord | None:
    """The run of an earlier, interrupted grid, where it came to its end."""
    try:
        run = read_run(folder)
    except MemfitError:
        return None
    return run if run.outcome.kind == "done" else None


def _folder_name(plan: CellPlan) -> str:
    text = f"{plan.optimizer}-{plan.technique}"
    return "".join(letter if letter.isalnum() or letter in "-_=+" else "_" for letter in text)


def _command(job: JobDescription, plan: CellPlan, num_steps: int) -> list[str]:
    if job.kind == "script":
        return [sys.executable, job.path, *job.arguments]
    settings = [word for name, value in job.settings.items() for word in ("--set", f"{name}={value}")]
    recipe = ["--technique", techniques_text([c for c in plan.choices if c.name not in ("batch", "pinned-malloc")])]
    if plan.recipe.optimizer:
        recipe += ["--optimizer", plan.recipe.optimizer]
    return [sys.executable, "-m", "memfit.job.run", job.target, *settings, *recipe, "--steps", str(num_steps), "-q"]


def _refuse_failed(run: RunRecord, output: Path) -> None:
    outcome = run.outcome
    if outcome.kind == "done":
        return
    tail = output.read_bytes()[-OUTPUT_TAIL_CHARACTERS:].decode(errors="replace").strip() if output.is_file() else ""
    last = tail.splitlines()[-1] if tail else outcome.message
    is_memory = outcome.kind == "out of memory"
    raise CellFailed(f"the run ended: {outcome.kind}", is_memory=is_memory, found=last, hint=f"see {output}")


# ---- figures ---------------------------------------------------------------------------------------------------------


def figures_of_run(
    run: RunRecord, tensors: Figure, peak: Figure, level: LevelName, epoch_steps: float | None
) -> CellFigures:
    """What a measured run says of one cell; `peak` is its headline."""
    step_time = _step_time(run)
    moments = _moments(run)
    return CellFigures(
        tensors=tensors,
        peak=peak,
        level=level,
        needed=run.peak,
        first_step=_of_row(run, 0),
        steady=_of_row(run, -1),
        average=_average(run),
        at_peak=(),
        binds=moments[0] if moments else None,
        next_binds=moments[1] if len(moments) > 1 else None,
        host=run.peak,
        step_time=step_time,
        epoch_time=epoch_time(step_time, epoch_steps),
        energy=_energy(run),
        curve=_curve(run),
        step_begins=tuple(float(begin) for begin in run.steps.begin_seconds - _first_step_seconds(run)),
        over_time=_over_time(run),
    )


def _first_step_seconds(run: RunRecord) -> float:
    return float(run.steps.begin_seconds[0]) if len(run.steps) else 0.0


def _over_time(run: RunRecord) -> tuple[CurvePoint, ...]:
    """The process from its first step on."""
    if not len(run.steps):
        return ()
    begin, end = _first_step_seconds(run), float(run.steps.end_seconds[-1])
    return tuple(
        CurvePoint(position=point.position - begin, num_bytes=point.num_bytes) for point in _curve(run, begin, end)
    )


def _of_row(run: RunRecord, row: int) -> Figure:
    """The exact resident peak of the first or the last step."""
    if not len(run.steps) or np.isnan(run.steps.peak_bytes[row]):
        return unknown("bytes", "the peaks of single steps were not measured")
    number = int(run.steps.step[row])
    return measured(float(run.steps.peak_bytes[row]), "bytes", f"resident high-water mark of step {number}")


def _step_time(run: RunRecord) -> Figure:
    """The median step, the first one left out where there are others."""
    seconds = run.steps.seconds_per_step
    seconds = seconds[~np.isnan(seconds)]
    seconds = seconds[1:] if len(seconds) > 1 else seconds
    if not len(seconds):
        return unknown("seconds", "no step was seen")
    low, middle, high = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
    return measured(middle, "seconds", f"median of {len(seconds)} steps after the first", low=low, high=high)


def _average(run: RunRecord) -> Figure:
    mean = run.tree.mean_bytes()
    if mean is None:
        return unknown("bytes", "the run was too short for two samples")
    return measured(mean, "bytes", "the process tree over time")


def _energy(run: RunRecord) -> Figure:
    known = [reading.figure.value for reading in run.energy if reading.figure.value is not None]
    if not known or not run.steps.total:
        return unknown("joules", run.energy_reason or "no step was seen")
    method = f"{', '.join(reading.domain for reading in run.energy)} over the whole run, per step"
    return measured(sum(known) / run.steps.total, "joules", method)


def _moments(run: RunRecord) -> list[PeakMoment]:
    """Phases of the last steps by their resident peaks."""
    found = []
    for phase in ("forward", "backward", "update"):
        peaks = getattr(run.steps, f"{phase}_peak_bytes")
        if len(peaks) and not np.isnan(peaks[-1]):
            found.append(PeakMoment(phase=phase, peak_bytes=int(peaks[-1])))
    return sorted(found, key=lambda moment: -moment.peak_bytes)


def _curve(run: RunRecord, begin: float = 0.0, end: float = float("inf")) -> tuple[CurvePoint, ...]:
    times, sizes = run.tree.time_seconds, run.tree.tree_bytes
    inside = (times >= begin) & (times <= end)
    times, sizes = times[inside], sizes[inside]
    if not len(times):
        return ()
    edges = np.unique(np.linspace(0, len(times), min(len(times), MOST_POINTS) + 1).astype(int))
    return tuple(
        CurvePoint(position=float(times[low]), num_bytes=float(sizes[low:high].max()))
        for low, high in itertools.pairwise(edges)
    )


def _tensors(job: JobDescription) -> tuple[Figure, tuple[CurvePoint, ...], int]:
    """Peak and curve of torch's CPU allocator over two steps, by its own record, in a process of its own, and how many
    steps a scaler of float16 skipped before them."""
    if job.kind == "script":
        why = "a script runs to its end: its tensors are measured with memfit measure --ledger"
        return unknown("bytes", why), (), 0
    try:
        done = subprocess.run(
            TENSOR_PEAK, input=msgspec.json.encode(job), capture_output=True, timeout=SECONDS_FOR_TENSORS, check=False
        )
    except subprocess.TimeoutExpired:
        return unknown("bytes", f"two steps under the allocator's record took more than {SECONDS_FOR_TENSORS} s"), (), 0
    if done.returncode != 0:
        tail = done.stderr.decode(errors="replace").strip().splitlines()
        why = f"the run under the allocator's record failed: {tail[-1] if tail else done.returncode}"
        return unknown("bytes", why), (), 0
    found = json.loads(done.stdout)
    num_skipped = found["num_skipped"]
    if num_skipped is None:
        what = "float16 overflows: the scaler skipped every step, so that the optimizer's state was never made"
        raise CellFailed(what, hint="bf16, which has the range of float32")
    curve = tuple(CurvePoint(position=position, num_bytes=num_bytes) for position, num_bytes in found["curve"])
    method = "torch's own record of allocations over two steps"
    method += f", after {num_skipped} that float16 skipped" if num_skipped else ""
    return measured(found["peak_bytes"], "bytes", method), curve, num_skipped
