"""Document of a study: one column per parameter and per objective, its findings, and curves of its trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from memfit.records.figure import Figure
from memfit.records.study import Study, TrialOutcomeKind, TrialRecord
from memfit.records.study_findings import StudyFindings
from memfit.show.as_json import plain
from memfit.show.page.documents.document import Body, Document, codes, numbers
from memfit.show.views.study_axes import StudyAxis, axes_of, finite_number, point_of

LOG_SPAN = 50
"""A choice of numbers whose largest is this many times its smallest gets a logarithmic axis; others as in the space."""
MOST_OPTIONS = 200
"""Different values of a choice that get a tick of their own; beyond that the axis shows none."""
OBJECTIVES = (
    "metric", "peak", "gpu_peak", "average", "predicted_peak", "duration", "epoch_time", "energy", "background",
)  # fmt: skip
UNITS = {"metric": "", "duration": "seconds", "epoch_time": "seconds", "energy": "joules"}
WORDS = {
    "peak": "peak memory", "gpu_peak": "peak on a GPU", "average": "average memory", "predicted_peak": "predicted peak",
    "duration": "time", "epoch_time": "time per epoch", "background": "background memory",
}  # fmt: skip
OUTCOMES: tuple[TrialOutcomeKind, ...] = (
    "done", "running", "stopped early", "failed", "out of memory", "over the limit", "out of time",
    "rejected by prediction", "cancelled",
)  # fmt: skip


def study_document(
    study: Study,
    findings: StudyFindings | None = None,
    *,
    findings_reason: str = "",
    with_curves: bool = True,
    is_running: bool | None = None,
) -> Document:
    """Everything the page draws of a study; `with_curves` puts the intermediate results of all trials in.

    `findings_reason` says why there are no findings.
    """
    trials = study.trials
    body: Body = {
        "name": study.settings.name or study.study_id,
        "what": study.settings.command or study.settings.workload,
        "tuner": study.settings.tuner.name or study.settings.tuner.class_name,
        "created_at": study.created_at,
        "is_running": is_running,
        "num_wanted": study.settings.max_trials,
        "metric": study.settings.goal.metric,
        "direction": study.settings.goal.direction,
        "memory_use": study.settings.memory.use,
        "limit_bytes": study.settings.memory.limit_bytes,
        "number": numbers([trial.number for trial in trials]),
        "outcome": codes([trial.kind for trial in trials], OUTCOMES),
        "message": codes([trial.outcome.message or trial.metric_reason or None for trial in trials]),
        "has_run": numbers([int(bool(trial.run_folder)) for trial in trials]),
        "num_intermediates": numbers([len(trial.intermediates) for trial in trials]),
        "objectives": [column for name in OBJECTIVES if (column := objective(name, study))],
        "parameters": parameter_columns(study),
        "findings": None if findings is None else plain(findings),
        "findings_reason": findings_reason,
        "notes": list(study.settings.notes),
        "curves": trial_curves(trials) if with_curves else None,
    }
    return Document(kind="study", title=str(body["name"]), body=body)


def objective(name: str, study: Study) -> Body | None:
    """One quantity that trials can be ranked by; None where no trial has it."""
    values = [_value(trial, name) for trial in study.trials]
    if all(value is None for value in values):
        return None
    word = study.settings.goal.metric if name == "metric" and study.settings.goal.metric != "default" else name
    direction = study.settings.goal.direction if name == "metric" else "minimize"
    column: Body = {"name": name, "label": WORDS.get(name, word), "unit": UNITS.get(name, "bytes")}
    return {**column, "direction": direction, "sources": _sources(study.trials, name), **numbers(values)}


def _value(trial: TrialRecord, name: str) -> float | None:
    figure = trial.metric if name == "metric" else getattr(trial, name)
    value = figure.value if isinstance(figure, Figure) else figure
    return None if value is None or not math.isfinite(value) else value


def _sources(trials: Iterable[TrialRecord], name: str) -> list[str]:
    """Where the values are from: 'measured', 'predicted', 'assumed'."""
    if name == "metric":
        return []
    return sorted({figure.source for trial in trials if (figure := getattr(trial, name)).source is not None})


def parameter_columns(study: Study) -> list[Body]:
    """One column per path of the search space, in its order; paths that only trials have come behind."""
    points = [point_of(trial) for trial in study.trials]
    axes = axes_of(points, study.settings.space)
    return [_parameter(axis, [point.get(axis.name) for point in points]) for axis in axes]


def _parameter(axis: StudyAxis, values: Sequence[object]) -> Body:
    """Numbers where all values are some; else texts, whose options stand in the order that figures have."""
    known = [value for value in values if value is not None]
    column = [finite_number(value) for value in values]
    found = [value for value in column if value is not None]
    if known and len(found) == len(known):
        low, high = min(found), max(found)
        is_log = low > 0 and (high / low >= LOG_SPAN if axis.options else axis.is_log)
        return {"name": axis.name, "kind": "number", "log": is_log, **numbers(column)}
    texts = [None if value is None else axis.label(value) for value in values]
    labels = axis.options if known and axis.options else ()
    return {"name": axis.name, "kind": "choice", **codes(texts, labels)}


def trial_curves(trials: Sequence[TrialRecord]) -> Body:
    """Intermediate results of trials, one behind the other; `end` says where those of each end."""
    ends, total = [], 0
    for trial in trials:
        total += len(trial.intermediates)
        ends.append(total)
    results = [one for trial in trials for one in trial.intermediates]
    return {
        "number": numbers([trial.number for trial in trials]),
        "end": numbers(ends),
        "sequence": numbers([one.sequence for one in results]),
        "value": numbers([one.value for one in results]),
    }


def trial_facts(trial: TrialRecord) -> Body:
    """One trial in full, for whoever looks at it."""
    figures = {name: plain(getattr(trial, name)) for name in OBJECTIVES if name != "metric"}
    return {
        "number": trial.number,
        "trial_id": trial.trial_id,
        "outcome": plain(trial.outcome),
        "metric": trial.metric,
        "metric_reason": trial.metric_reason,
        "parameters": plain(trial.flat_parameters),
        "others": plain(trial.others),
        "figures": figures,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
        "notes": list(trial.notes),
    }
