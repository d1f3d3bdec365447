"""How does a Lightning Trainer leave memfit's marks, with one line of the user's?

    Trainer(..., callbacks=[MemfitCallback("run-folder")])

Under `memfit measure` the process is marked already and the callback only adds the phases that the Trainer knows of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memfit import inside

try:
    from lightning.pytorch.callbacks import Callback  # pyright: ignore[reportMissingImports]
except ImportError:
    from pytorch_lightning.callbacks import Callback  # pyright: ignore[reportMissingImports]


class MemfitCallback(Callback):
    """Marks steps and phases of a Trainer while it fits."""

    def __init__(self, run_folder: str | Path, *, ledger_every: int | None = None) -> None:
        super().__init__()
        self.run_folder = Path(run_folder)
        self.ledger_every = ledger_every
        self._started = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin, unless the process is marked already."""
        self.run_folder.mkdir(parents=True, exist_ok=True)
        self._started = inside.start_marks(self.run_folder, self.ledger_every)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins, before its first batch is loaded."""
        inside.mark_phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The next step's data phase begins."""
        inside.mark_phase("data")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End what was begun here."""
        self._stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A fit that fails ends here too."""
        self._stop()

    def _stop(self) -> None:
        if self._started:
            self._started = False
            inside.stop_marks()
