"""How does a Hugging Face Trainer leave memfit's marks, with one line of the user's?

    Trainer(..., callbacks=[MemfitCallback("run-folder")])

Under `memfit measure` the process is marked already and the callback only adds the phases that the Trainer knows
of: evaluation and saving.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from memfit import inside


class MemfitCallback(TrainerCallback):
    """Marks steps and phases of a Trainer from the beginning of its training to the end."""

    def __init__(self, run_folder: str | Path, *, ledger_every: int | None = None) -> None:
        self.run_folder = Path(run_folder)
        self.ledger_every = ledger_every
        self._started = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, unless the process is marked already."""
        self.run_folder.mkdir(parents=True, exist_ok=True)
        self._started = inside.start_marks(self.run_folder, self.ledger_every)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written: what was named before goes on."""
        inside.mark_phase("data")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation ended: the next step's data phase begins."""
        inside.mark_phase("data")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End what was begun here."""
        if self._started:
            self._started = False
            inside.stop_marks()
