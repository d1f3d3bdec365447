"""A callback for the Lightning Trainer: its fit runs within a budget.

    Trainer(..., callbacks=[MemfitFit(budget="2GiB")])

The first pass is watched, a plan is made, proven and applied, and the training goes on; `.found` is the record. Of the
packages `lightning` and `pytorch_lightning`, the one that the program has imported is meant.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.integrations.trainer_fit import TrainerFit, refuse_ranks
from memfit.measure.lightning_callback import callback_class

if TYPE_CHECKING:
    from memfit.records.fit import LoopFit


class MemfitFit(callback_class()):
    """Holds the fits of a Trainer to a budget such as '2GiB'; `disk` is a folder that a plan may move to.

    `measure_every=1` measures every pass, which costs time where the device is a CPU.
    """

    def __init__(
        self,
        budget: str | int,
        *,
        disk: str | Path | None = None,
        planner: str = "best",
        measure_every: int | None = None,
    ) -> None:
        super().__init__()
        self._fit = TrainerFit(budget, disk, planner, measure_every)

    @property
    def found(self) -> LoopFit | None:
        """What came of the last fit that ended; None before."""
        return self._fit.found

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse what cannot be fitted; begin. The sanity check of the validation is over."""
        name = type(trainer.strategy).__name__
        refuse_ranks(int(trainer.world_size), "" if "SingleDevice" in name else name)
        self._fit.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End what was begun here."""
        self._fit.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """A fit that fails ends here too."""
        self._fit.end()
