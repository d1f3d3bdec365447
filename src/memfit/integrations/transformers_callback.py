"""A callback for the Hugging Face Trainer: its training leaves a run folder that `memfit show` opens.

    Trainer(..., callbacks=[MemfitCallback("run-folder")])

The folder holds the training from `on_train_begin` to `on_train_end`. A training that ends in an exception is recorded
until the process ends, or until the next training begins. Under `memfit measure` that record is the only one, and the
callback adds the end of evaluations and checkpoints to it.
"""

from __future__ import annotations

from pathlib import Path

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from memfit import inside
from memfit.integrations.trainer_run import TrainerRun


class MemfitCallback(TrainerCallback):
    """Measures the trainings of a Trainer; `overwrite` replaces an old run in the folder, never other files."""

    def __init__(self, run_folder: str | Path, *, ledger_every: int | None = None, overwrite: bool = False) -> None:
        self._run = TrainerRun(run_folder, ledger_every=ledger_every, overwrite=overwrite)

    def on_train_begin(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """Begin, unless the process is measured already."""
        self._run.begin(int(getattr(args, "process_index", 0)))

    def on_save(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """A checkpoint was written: the next step's data phase begins."""
        inside.mark_phase("data")

    def on_evaluate(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """An evaluation ended: the next step's data phase begins."""
        inside.mark_phase("data")

    def on_train_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """End what was begun here."""
        self._run.end()
