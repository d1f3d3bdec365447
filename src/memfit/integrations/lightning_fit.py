"""A callback for the Lightning Trainer: its fit runs within a budget.

    Trainer(..., callbacks=[MemfitFit(budget="2GiB")])

The first pass is watched, a plan is made, proven and applied, and the training goes on; `.found` is the record. Of the
packages `lightning` and `pytorch_lightning`, the one that the program has imported is meant.
"""

from __future__ import annotations

from typing import Protocol

from memfit.integrations.lightning_callback import callback_class
from memfit.integrations.trainer_fit import BudgetedTraining, refuse_ranks


class HasStrategy(Protocol):
    """A trainer of Lightning, as far as it matters here."""

    strategy: object
    world_size: int


class MemfitFit(BudgetedTraining, callback_class()):
    """Holds the fits of a Trainer to a budget such as '2GiB'."""

    def on_train_start(self, trainer: HasStrategy, pl_module: object) -> None:
        """Refuse what cannot be fitted; begin. The sanity check of the validation is over."""
        name = type(trainer.strategy).__name__
        refuse_ranks(int(trainer.world_size), "" if "SingleDevice" in name else name)
        self.begin()

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        """End what was begun here."""
        self.end()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """A fit that fails ends here too."""
        self.end()
