"""Callback for MLflow: every trial of a study is a run there, with its hyperparameters and its memory.

    memfit.run_study("study.toml", progress=MlflowTrials(experiment="mlp"))
    log_study(memfit.read_study("memfit-studies/mlp"))
    log_run(memfit.read_run("runs/train-1"), experiment="mlp")

Where runs are kept is MLflow's own setting (`mlflow.set_tracking_uri`, MLFLOW_TRACKING_URI). Written against mlflow 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from memfit.errors import MissingExtra
from memfit.integrations.trial_logs import (
    TrackedTrials,
    intermediate_rows,
    run_results,
    study_name,
    timeline_rows,
    trial_results,
)
from memfit.records.run import RunRecord
from memfit.records.study import Study, TrialRecord
from memfit.show.views.study_axes import option_label
from memfit.show.wording import command_text

try:
    import mlflow  # pyright: ignore[reportMissingImports]
    from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]
except ImportError:
    raise MissingExtra("mlflow is not installed", hint="pip install mlflow-skinny, or mlflow") from None

MOST_AT_ONCE = 900
"""MLflow takes a thousand metrics in one request."""


class MlflowTrials(TrackedTrials):
    """Follows a study and logs each trial when it has ended."""

    tracker = "MLflow"

    def __init__(self, *, experiment: str) -> None:
        super().__init__()
        self.experiment = experiment

    def log(self, trial: TrialRecord) -> None:
        """One trial as one run."""
        log_trial(trial, experiment=self.experiment)


def log_trial(trial: TrialRecord, *, experiment: str) -> str:
    """One trial as one run; returns its id."""
    began, ended = _milliseconds(trial.started_at), _milliseconds(trial.ended_at)
    if ended is None and began is not None and trial.duration.value is not None:
        ended = began + round(1000 * trial.duration.value)
    metrics = [Metric(name, value, ended or 0, 0) for name, value in trial_results(trial).items()]
    for each, row in intermediate_rows(trial):
        at_ms = (began or 0) + round(1000 * (each.time_seconds or 0.0))
        metrics += [Metric(name, value, at_ms, each.sequence) for name, value in row.items()]
    params = {_param_name(name, trial): option_label(value) for name, value in trial.flat_parameters.items()}
    status = "FINISHED" if trial.kind in ("done", "stopped early") else "FAILED"
    whole = _Whole(name=f"trial {trial.number}", status=status, outcome=trial.kind, began_ms=began, ended_ms=ended)
    return _log(whole, experiment, metrics, params)


def _param_name(name: str, trial: TrialRecord) -> str:
    """In MLflow's file store each parameter is a file, and 'model' cannot be one beside a folder of that name: there a
    nested name whose beginning is a parameter too has dots."""
    if urlsplit(mlflow.get_tracking_uri()).scheme not in ("", "file"):
        return name
    parts = name.split("/")
    beginnings = {"/".join(parts[:count]) for count in range(1, len(parts))}
    return name.replace("/", ".") if beginnings & set(trial.flat_parameters) else name


def log_study(study: Study, *, experiment: str | None = None) -> int:
    """Every finished trial of a study, in an experiment of its name; returns how many."""
    finished = [trial for trial in study.trials if trial.is_finished]
    for trial in finished:
        log_trial(trial, experiment=experiment or study_name(study))
    return len(finished)


def log_run(run: RunRecord, *, experiment: str) -> str:
    """A measured run: its timeline (a step is a millisecond) and its peak; returns its id."""
    began = _milliseconds(run.header.created_at) or 0
    ended = began + round(1000 * run.duration_seconds)
    metrics = [Metric(name, value, ended, 0) for name, value in run_results(run).items()]
    for seconds, job_bytes in timeline_rows(run):
        late = round(seconds * 1000)
        metrics.append(Metric("timeline/job_bytes", job_bytes, began + late, late))
    name, status = command_text(run.header.command)[:200], "FINISHED" if run.outcome.kind == "done" else "FAILED"
    whole = _Whole(name=name, status=status, outcome=run.outcome.kind, began_ms=began, ended_ms=ended)
    return _log(whole, experiment, metrics, {})


def _milliseconds(moment: str) -> int | None:
    """A moment as MLflow has it; None where it is not known, which is now."""
    try:
        return round(1000 * datetime.fromisoformat(moment).timestamp())
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """What MLflow keeps of a run beside its numbers: when it ran, not when it was logged."""

    name: str
    status: str
    outcome: str
    began_ms: int | None
    ended_ms: int | None


def _log(whole: _Whole, experiment: str, metrics: list[Metric], params: dict[str, str]) -> str:
    """A whole run through MLflow's client, so that a run the caller has open is left alone."""
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if found is None else found.experiment_id
    run_id = client.create_run(place, start_time=whole.began_ms, run_name=whole.name).info.run_id
    client.log_batch(
        run_id,
        params=[Param(key, value) for key, value in params.items()],
        tags=[RunTag("outcome", whole.outcome)],
    )
    for begin in range(0, len(metrics), MOST_AT_ONCE):
        client.log_batch(run_id, metrics=metrics[begin : begin + MOST_AT_ONCE])
    client.set_terminated(run_id, whole.status, end_time=whole.ended_ms)
    return run_id
