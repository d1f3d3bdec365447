"""The table of optimizers as rows of bytes per parameter: kept, taken by a step, added to the peak. Pure."""

from __future__ import annotations

import msgspec

from memfit.records.optimizer_bytes import OptimizerRun, OptimizerTable, RunSource

NO_OPTIMIZER = "none"


class OptimizerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer on one device; figures in bytes per parameter, None where there is no run or no such moment."""

    source: RunSource
    state: float
    """Kept between steps, square matrices."""
    tall_state: float | None
    """The same where matrices are 2048 x 128."""
    model_temporaries: float | None
    """Of an update, per parameter of the whole model."""
    largest_temporaries: float | None
    """Of an update, per parameter of the largest tensor."""
    added: float
    """To the peak of a training of 4 square matrices without an optimizer, in later steps."""
    first_added: float
    """The same in the first step."""


class OptimizerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer of the table."""

    optimizer: str
    package: str
    cpu: OptimizerFigures | None
    gpu: OptimizerFigures | None
    difference_bytes: int | None
    """Predicted - measured peak on the CPU, the largest of all shapes; None where one of them is missing."""
    notes: tuple[str, ...]
    """Why a figure is missing, and what a prediction assumed where it is not what was measured."""


def optimizer_lines(table: OptimizerTable) -> list[OptimizerLine]:
    """Every optimizer but 'none', by what it adds to the peak; those without figures at the end."""
    names = [name for name in dict.fromkeys(run.optimizer for run in table.runs) if name != NO_OPTIMIZER]
    lines = [_line(table, name) for name in names]
    return sorted(lines, key=_place)


def _place(line: OptimizerLine) -> tuple[bool, float, str]:
    figures = line.cpu or line.gpu
    return figures is None, 0.0 if figures is None else round(figures.added, 1), line.optimizer


def _line(table: OptimizerTable, name: str) -> OptimizerLine:
    runs = [run for run in table.runs if run.optimizer == name]
    gpus = [run.device for run in runs if run.device.startswith("cuda")]
    difference = _difference(runs)
    return OptimizerLine(
        optimizer=name,
        package=runs[0].package,
        cpu=figures_on(table, name, "cpu"),
        gpu=figures_on(table, name, gpus[0]) if gpus else None,
        difference_bytes=difference,
        notes=_notes(runs, difference),
    )


def figures_on(table: OptimizerTable, name: str, device: str) -> OptimizerFigures | None:
    """What one optimizer takes on a device: measured where it was, predicted otherwise."""
    square, deep, tall, none = (_best(table, *key) for key in (
        (name, "square", device), (name, "deep", device), (name, "tall", device), (NO_OPTIMIZER, "square", device)
    ))  # fmt: skip
    if square is None or none is None:
        return _sparse_figures(_best(table, name, "sparse", device))
    model, largest = _temporaries(square, deep)
    return OptimizerFigures(
        source=square.source,
        state=square.state_bytes / square.num_parameters,
        tall_state=None if tall is None else tall.state_bytes / tall.num_parameters,
        model_temporaries=model,
        largest_temporaries=largest,
        added=(square.peak_bytes - none.peak_bytes) / square.num_parameters,
        first_added=(square.first_peak_bytes - none.first_peak_bytes) / square.num_parameters,
    )


def _sparse_figures(run: OptimizerRun | None) -> OptimizerFigures | None:
    """One table with sparse gradients: there is no training without an optimizer to compare with."""
    if run is None:
        return None
    size, kept = run.num_parameters, run.base_bytes
    return OptimizerFigures(
        source=run.source,
        state=run.state_bytes / size,
        tall_state=None,
        model_temporaries=None,
        largest_temporaries=None,
        added=(run.peak_bytes - kept) / size,
        first_added=(run.first_peak_bytes - kept) / size,
    )


def _best(table: OptimizerTable, name: str, shapes: str, device: str) -> OptimizerRun | None:
    found = [r for r in table.runs if (r.optimizer, r.shapes, r.device) == (name, shapes, device) and r.steps]
    return min(found, key=lambda run: run.source, default=None)  # 'measured' stands before 'predicted'


def _temporaries(square: OptimizerRun, deep: OptimizerRun | None) -> tuple[float | None, float | None]:
    """Two models that differ only in the number of matrices tell what grows with it from what does not."""
    if deep is None or square.temporary_bytes is None or deep.temporary_bytes is None:
        return None, None
    more = deep.num_parameters - square.num_parameters
    model = (deep.temporary_bytes - square.temporary_bytes) / more
    return model, (square.temporary_bytes - model * square.num_parameters) / square.largest_parameters


def _difference(runs: list[OptimizerRun]) -> int | None:
    peaks: dict[str, dict[str, int]] = {}
    for run in runs:
        if run.device == "cpu" and run.steps:
            peaks.setdefault(run.shapes, {})[run.source] = max(run.peak_bytes, run.first_peak_bytes)
    both = [found["predicted"] - found["measured"] for found in peaks.values() if len(found) == 2]
    return max(both, key=abs, default=None)


def _notes(runs: list[OptimizerRun], difference: int | None) -> tuple[str, ...]:
    missing = [f"{run.device}, {run.source}: {run.reason}" for run in runs if run.reason]
    guesses = [note for run in runs if difference for note in run.notes]
    return tuple(dict.fromkeys(missing + guesses))
