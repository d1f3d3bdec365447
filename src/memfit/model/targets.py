"""How does what a user's function built become a job, and is everything in order before the slow part?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from memfit.errors import RunExists, UsageError
from memfit.model.step import Job, job_of, job_of_step


def build_job(training: Any, name: str) -> Job:
    """A job from a training: its own step where it has one, else forward, loss and backward."""
    if training.model is None or training.optimizer is None:
        raise UsageError(
            f"{name} builds a step, but no model to change",
            hint="return (model, optimizer, loss, batch), or a Training with a model",
        )
    if training.step is None:
        return job_of(training.model, training.batch, training.loss, training.optimizer, name)
    return job_of_step(training, name)


def check_output(path: str, force: bool) -> None:
    """Refuse to replace a file before anything slow is done."""
    if Path(path).exists() and not force:
        raise RunExists(f"{path} is there already", hint="--force replaces it, -o chooses another name")
    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written", found="no such folder", hint="choose another path")


def set_threads(num_threads: int | None) -> None:
    """Fix the number of threads, where one was given."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
