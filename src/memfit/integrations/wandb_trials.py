"""Callback for Weights & Biases: every trial of a study is a run there, with its hyperparameters and its memory.

    memfit.run_study("study.toml", progress=WandbTrials(project="mlp"))
    log_study(memfit.read_study("memfit-studies/mlp"), project="mlp")
    log_run(memfit.read_run("runs/train-1"), project="mlp")

Whatever `wandb.init` takes can be given: mode="offline", entity, tags. Written against wandb 0.31.
"""

from __future__ import annotations

from typing import Any

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
from memfit.show.wording import command_text

try:
    import wandb  # pyright: ignore[reportMissingImports]
except ImportError:
    raise MissingExtra("wandb is not installed", hint="pip install wandb") from None


class WandbTrials(TrackedTrials):
    """Follows a study and logs each trial when it has ended; options are those of `wandb.init`."""

    tracker = "Weights & Biases"

    def __init__(self, **init: object) -> None:
        super().__init__()
        self.init = init

    def log(self, trial: TrialRecord) -> None:
        """One trial as one run."""
        log_trial(trial, **self.init)


def log_trial(trial: TrialRecord, **init: object) -> None:
    """One trial as one run; a trial that failed is marked as failed."""
    options: dict[str, Any] = {"name": f"trial {trial.number}", "job_type": "trial", **init}
    options["config"] = {**options.get("config", {}), **trial.flat_parameters}
    with wandb.init(**options) as session:
        for each, row in intermediate_rows(trial):
            session.log(row, step=each.sequence)
        session.summary.update({**trial_results(trial), "outcome": trial.kind, "notes": list(trial.notes)})
        session.finish(exit_code=0 if trial.kind in ("done", "stopped early") else 1)


def log_study(study: Study, **init: object) -> int:
    """Every finished trial of a study, grouped under its name; returns how many."""
    finished = [trial for trial in study.trials if trial.is_finished]
    for trial in finished:
        log_trial(trial, **{"group": study_name(study), **init})
    return len(finished)


def log_run(run: RunRecord, **init: object) -> None:
    """A measured run: its timeline against seconds, and its peak."""
    options: dict[str, Any] = {"config": {"command": command_text(run.header.command)}, **init}
    with wandb.init(**options) as session:
        session.define_metric("time_seconds")
        session.define_metric("memory/job_bytes", step_metric="time_seconds")
        for seconds, job_bytes in timeline_rows(run):
            session.log({"time_seconds": seconds, "memory/job_bytes": job_bytes})
        session.summary.update({**run_results(run), "outcome": run.outcome.kind})
