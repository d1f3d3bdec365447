"""Export to CSV tables: samples, tree, steps, processes, system, GPU and energy.

Every head carries its unit. An unknown number is an empty cell, never a zero.

Export of a study as a CSV table with a row for each trial.

Columns of parameters are called `params_NAME`, of other reported values `others_NAME`; quantities end in their unit,
and one that is not known is an empty cell.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from memfit.errors import StorageError
from memfit.records.run import RunRecord, SystemReading
from memfit.records.run_parts.steps import Steps
from memfit.records.study import Study, TrialRecord
from memfit.show.new_file import whole_file

Table = tuple[list[str], Iterable[Iterable[Any]]]


def _samples(run: RunRecord) -> Table:
    samples = run.samples
    heads = ["time_seconds", "late_seconds", "process", "resident_bytes", "shared_bytes"]
    return heads, _columns([getattr(samples, head) for head in heads])


def _tree(run: RunRecord) -> Table:
    heads = ["time_seconds", "tree_bytes", "summed_resident_bytes"]
    return heads, _columns([getattr(run.tree, head) for head in heads])


def _steps(run: RunRecord) -> Table:
    heads = [field.name for field in fields(Steps)]
    return heads, _columns([getattr(run.steps, head) for head in heads])


def _processes(run: RunRecord) -> Table:
    heads = [
        "process", "pid", "parent_pid", "command", "started_seconds", "ended_seconds", "peak_bytes", "peak_low_bytes",
        "peak_high_bytes", "peak_method", "anonymous_bytes", "file_bytes", "shmem_bytes",
    ]  # fmt: skip
    rows = (
        (p.index, p.pid, p.parent_pid, p.command, p.started_seconds, p.ended_seconds, p.peak.value, p.peak.low,
         p.peak.high, p.peak.method or p.peak.reason, p.anonymous_bytes, p.file_bytes, p.shmem_bytes)
        for p in run.processes
    )  # fmt: skip
    return heads, rows


def _system(run: RunRecord) -> Table:
    heads = list(SystemReading.__struct_fields__)
    return heads, ([getattr(reading, head) for head in heads] for reading in run.system)


def _gpu(run: RunRecord) -> Table:
    heads = ["time_seconds", "device", "name", "total_bytes", "used_bytes", "job_bytes"]
    return heads, ([getattr(reading, head) for head in heads] for reading in run.gpus)


def _energy(run: RunRecord) -> Table:
    heads = ["domain", "joules", "source", "method_or_reason", "scope", "window_seconds"]
    rows = (
        (e.domain, e.figure.value, e.figure.source, e.figure.method or e.figure.reason, e.scope, e.window_seconds)
        for e in run.energy
    )
    return heads, rows


TABLES: dict[str, Callable[[RunRecord], Table]] = {
    "samples": _samples, "tree": _tree, "steps": _steps, "processes": _processes, "system": _system, "gpu": _gpu,
    "energy": _energy,
}  # fmt: skip


def _columns(columns: list[np.ndarray], chunk: int = 50_000) -> Iterator[tuple[object, ...]]:
    """Rows of plain numbers, nan as None, some at a time so that a long run needs no second copy in memory."""
    for begin in range(0, len(columns[0]), chunk):
        parts = [column[begin : begin + chunk].tolist() for column in columns]
        for row in zip(*parts, strict=True):
            yield tuple(None if isinstance(cell, float) and cell != cell else cell for cell in row)


def write_csv(run: RunRecord, path: Path, table: str | None = None) -> list[Path]:
    """One table into one file, or every table into a folder."""
    try:
        if table is not None:
            return [_write_table(TABLES[table](run), path)]
        path.mkdir(exist_ok=True)
        return [_write_table(make(run), path / f"{name}.csv") for name, make in TABLES.items()]
    except OSError as error:
        raise StorageError(f"{path} cannot be written", found=str(error), hint="choose another place") from None


def _write_table(table: Table, path: Path) -> Path:
    heads, rows = table
    with whole_file(path) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)
    return path


_FIGURES = {
    "peak_bytes": "peak",
    "average_bytes": "average",
    "gpu_peak_bytes": "gpu_peak",
    "background_bytes": "background",
    "predicted_peak_bytes": "predicted_peak",
    "duration_seconds": "duration",
    "epoch_seconds": "epoch_time",
    "energy_joules": "energy",
}


def study_csv(study: Study) -> str:
    """The table, with every parameter that any trial has."""
    rows = [_row(trial) for trial in study.trials]
    columns = list(dict.fromkeys(name for row in rows for name in row)) or list(_row_heads())
    params = [name for name in columns if name.startswith("params_")]
    others = [name for name in columns if name.startswith("others_")]
    rest = [name for name in columns if name not in {*params, *others}]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rest, *params, *others], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row_heads() -> tuple[str, ...]:
    return ("number", "trial_id", "outcome", "message", "metric", *_FIGURES)


def _row(trial: TrialRecord) -> dict[str, object]:
    row: dict[str, object] = {
        "number": trial.number,
        "trial_id": trial.trial_id,
        "outcome": trial.kind,
        "message": trial.outcome.message,
        "metric": trial.metric,
    }
    row |= {column: getattr(trial, field).value for column, field in _FIGURES.items()}
    row |= {
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "worker": trial.worker,
        "num_attempts": trial.num_attempts,
        "num_intermediates": len(trial.intermediates),
        "run_folder": trial.run_folder,
        "notes": "; ".join(trial.notes),
    }
    row |= {f"params_{name}": _cell(value) for name, value in trial.flat_parameters.items()}
    return row | {f"others_{name}": _cell(value) for name, value in trial.others.items()}


def _cell(value: object) -> object:
    """A number or text as it is; what JSON alone can hold, as JSON."""
    return json.dumps(value) if isinstance(value, (dict, list, tuple, bool)) or value is None else value
