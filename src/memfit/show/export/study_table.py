"""Export of a study as a CSV table with a row for each trial.

Columns of parameters are called `params_NAME`, of other reported values `others_NAME`; quantities end in their unit,
and one that is not known is an empty cell.
"""

from __future__ import annotations

import csv
import io
import json

from memfit.records.study import Study, TrialRecord

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
