"""A callback for the Lightning Trainer: its fit leaves a run folder that `memfit show` opens.

    Trainer(..., callbacks=[MemfitCallback("run-folder")])

The folder holds the fit from `on_fit_start` to its end, by success or by an exception. Under `memfit measure` that
record is the only one, and the callback adds the phases that the Trainer knows of to it. Of the packages `lightning`
and `pytorch_lightning`, the one that the program has imported is meant.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Protocol

from memfit import inside
from memfit.errors import MissingExtra
from memfit.integrations.trainer_run import TrainerRun

_NAMES = ("lightning.pytorch", "pytorch_lightning")


class HasGlobalRank(Protocol):
    """A trainer of Lightning, as far as it matters here."""

    global_rank: int


def callback_class() -> Any:
    """Lightning's own class of callbacks, from the package that the program uses."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(f"{name}.callbacks").Callback
        except ImportError:
            continue
    raise MissingExtra("Lightning is not installed", hint="pip install lightning")


class MemfitCallback(callback_class()):
    """Measures the fits of a Trainer; `overwrite` replaces an old run in the folder, never other files."""

    def __init__(self, run_folder: str | Path, *, ledger_every: int | None = None, overwrite: bool = False) -> None:
        super().__init__()
        self._run = TrainerRun(run_folder, ledger_every=ledger_every, overwrite=overwrite)

    def on_fit_start(self, trainer: HasGlobalRank, pl_module: object) -> None:
        """Begin, unless the process is measured already."""
        self._run.begin(int(trainer.global_rank))

    def on_validation_start(self, trainer: object, pl_module: object) -> None:
        """Validation begins, before its first batch is loaded."""
        inside.mark_phase("evaluation")

    def on_validation_end(self, trainer: object, pl_module: object) -> None:
        """The next step's data phase begins."""
        inside.mark_phase("data")

    def on_fit_end(self, trainer: object, pl_module: object) -> None:
        """End what was begun here."""
        self._run.end()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """A fit that fails ends here too."""
        self._run.end(exception)
