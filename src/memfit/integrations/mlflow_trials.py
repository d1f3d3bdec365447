"""Callback for MLflow: every trial of a study is a run there, with its hyperparameters and its memory.

    memfit.run_study("study.toml", progress=MlflowTrials(experiment="mlp"))
    log_study(memfit.read_study("memfit-studies/mlp"))
    log_run(memfit.read_run("runs/train-1"), experiment="mlp")

Where runs are kept is MLflow's own setting (`mlflow.set_tracking_uri`, MLFLOW_TRACKING_URI). Written against mlflow 3.
"""

from __future__ import annotations

from memfit.errors import MissingExtra
from memfit.integrations.trial_logs import (
    intermediate_rows,
    run_results,
    study_name,
    timeline_rows,
    trial_results,
)
from memfit.records.run import RunRecord
from memfit.records.study import Standing, Study, TrialRecord
from memfit.show.views.study_axes import option_label
from memfit.show.wording import command_text

try:
    import mlflow  # pyright: ignore[reportMissingImports]
    from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]
except ImportError:
    raise MissingExtra("mlflow is not installed", hint="pip install mlflow-skinny, or mlflow") from None

MOST_AT_ONCE = 900
"""MLflow takes a thousand metrics in one request."""


class MlflowTrials:
    """Follows a study and logs each trial when it has ended."""

    has_line = False

    def __init__(self, *, experiment: str) -> None:
        self.experiment = experiment
        self.notes: list[str] = []

    def ended(self, trial: TrialRecord, standing: Standing) -> None:
        """A trial has ended: it becomes a run of its own."""
        log_trial(trial, experiment=self.experiment)

    def note(self, sentence: str) -> None:
        """Kept in `notes`."""
        self.notes.append(sentence)

    def tick(self, standing: Standing) -> None:
        """Nothing is shown while trials run."""


def log_trial(trial: TrialRecord, *, experiment: str) -> str:
    """One trial as one run; returns its id."""
    at_ms = 0
    metrics = [Metric(name, value, at_ms, 0) for name, value in trial_results(trial).items()]
    for sequence, row in intermediate_rows(trial):
        metrics += [Metric(name, value, at_ms, sequence) for name, value in row.items()]
    params = {name: option_label(value) for name, value in trial.flat_parameters.items()}
    is_good = trial.kind in ("done", "stopped early")
    return _log(f"trial {trial.number}", experiment, metrics, params, {"outcome": trial.kind}, is_good=is_good)


def log_study(study: Study, *, experiment: str | None = None) -> int:
    """Every finished trial of a study, in an experiment of its name; returns how many."""
    finished = [trial for trial in study.trials if trial.is_finished]
    for trial in finished:
        log_trial(trial, experiment=experiment or study_name(study))
    return len(finished)


def log_run(run: RunRecord, *, experiment: str) -> str:
    """A measured run: its timeline (a step is a millisecond) and its peak; returns its id."""
    metrics = [Metric(name, value, 0, 0) for name, value in run_results(run).items()]
    for seconds, job_bytes in timeline_rows(run):
        metrics.append(Metric("timeline/job_bytes", job_bytes, round(seconds * 1000), round(seconds * 1000)))
    name, tags = command_text(run.header.command)[:200], {"outcome": run.outcome.kind}
    return _log(name, experiment, metrics, {}, tags, is_good=run.outcome.kind == "done")


def _log(
    name: str, experiment: str, metrics: list[Metric], params: dict[str, str], tags: dict[str, str], *, is_good: bool
) -> str:
    """A whole run through MLflow's client, so that a run the caller has open is left alone."""
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if found is None else found.experiment_id
    run_id = client.create_run(place, run_name=name).info.run_id
    client.log_batch(
        run_id,
        params=[Param(key, value) for key, value in params.items()],
        tags=[RunTag(key, value) for key, value in tags.items()],
    )
    for begin in range(0, len(metrics), MOST_AT_ONCE):
        client.log_batch(run_id, metrics=metrics[begin : begin + MOST_AT_ONCE])
    client.set_terminated(run_id, "FINISHED" if is_good else "FAILED")
    return run_id
