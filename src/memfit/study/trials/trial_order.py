"""Order of one trial: all that is needed to run it, on this machine or on another one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from memfit.records.figure import Figure
from memfit.records.study import Proposal, StudySettings, TrialRecord
from memfit.study.trials.files import NniRoute

GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""


class TrialOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at one point."""

    study_id: str
    trial_id: str
    proposal: Proposal
    command: tuple[str, ...]
    code_folder: str
    folder: str
    """Where everything of this attempt goes; made by whoever runs it."""
    attempt: int = 1
    metric: str = "default"
    limit_bytes: int | None = None
    max_seconds: float | None = None
    grace_seconds: float = GRACE_SECONDS
    interval_seconds: float | None = None
    """Time between samples; None for the usual, which spares short steps."""
    gpu_indices: tuple[int, ...] | None = None
    num_gpus: int | None = None
    """What a worker of a cluster should have free; the indices are then the worker's own business."""
    route: NniRoute = "shim"
    profile: bool = False
    live: bool = False
    predicted_peak: Figure | None = None
    environment: dict[str, str] = {}
    """Variables that the trial gets besides those of the process that runs it."""
    run_folder: str = ""
    """As the record names it: relative to the study's folder."""
    worker: str = ""

    @property
    def number(self) -> int:
        return self.proposal.number

    def blank_record(self) -> TrialRecord:
        """The trial as it stands before it runs."""
        known: dict[str, Any] = {} if self.predicted_peak is None else {"predicted_peak": self.predicted_peak}
        return TrialRecord(
            proposal=self.proposal,
            trial_id=self.trial_id,
            run_folder=self.run_folder,
            num_attempts=self.attempt,
            worker=self.worker,
            **known,
        )


def command_of(settings: StudySettings) -> tuple[str, ...]:
    """What a trial runs: the line of the study by a shell, as NNI does, or the workload by this Python."""
    if settings.command:
        return ("bash" if os.path.exists("/bin/bash") else "sh", "-c", settings.command)
    pairs = (("--set", f"{name}={value}") for name, value in settings.fixed.items())
    return (sys.executable, "-m", "memfit.job.run", settings.workload, *(word for pair in pairs for word in pair))


def trial_folder_name(number: int, attempt: int) -> str:
    """trials/00012, and trials/00012.2 for the second attempt."""
    return f"trials/{number:05d}" + (f".{attempt}" if attempt > 1 else "")


def parameters_for_workload(settings: StudySettings, parameters: dict[str, object]) -> dict[str, object]:
    """The settings a workload is built with at one point, without what only says how long it trains."""
    own = ("epochs", "steps", "seed", "device", "TRIAL_BUDGET", "load_checkpoint_dir", "save_checkpoint_dir")
    return {name: value for name, value in {**settings.fixed, **parameters}.items() if name not in own}


def absolute(folder: str | Path) -> str:
    """A folder as other processes find it."""
    return str(Path(folder).expanduser().resolve())
