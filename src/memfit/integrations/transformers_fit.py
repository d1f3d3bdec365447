"""A callback for the Hugging Face Trainer: its training runs within a budget.

    Trainer(..., callbacks=[MemfitFit(budget="2GiB")])

The first pass is watched, a plan is made, proven and applied, and the training goes on; `.found` is the record. The
Trainer has no event for an exception: torch is then as it was again when the next training begins, when the callback is
collected, or when the process ends.
"""

from __future__ import annotations

from typing import Protocol

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from memfit.integrations.trainer_fit import BudgetedTraining, refuse_ranks


class HasWorldSize(Protocol):
    """Arguments of a training of Transformers, as far as they matter here."""

    @property
    def world_size(self) -> int: ...
    @property
    def n_gpu(self) -> int: ...


class MemfitFit(BudgetedTraining, TrainerCallback):
    """Holds the trainings of a Trainer to a budget such as '2GiB'."""

    def on_train_begin(self, args: HasWorldSize, state: object, control: object, **kwargs: object) -> None:
        """Refuse what cannot be fitted; begin."""
        how = "DeepSpeed" if getattr(args, "deepspeed", None) else "FSDP" if getattr(args, "fsdp", None) else ""
        refuse_ranks(max(int(args.world_size), int(args.n_gpu)), how)
        self.begin()

    def on_train_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
        """End what was begun here."""
        self.end()
