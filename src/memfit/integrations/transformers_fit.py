"""A callback for the Hugging Face Trainer: its training runs within a budget.

    Trainer(..., callbacks=[MemfitFit(budget="2GiB")])

The first pass is watched, a plan is made, proven and applied, and the training goes on; `.found` is the record. The
Trainer tells nobody of an exception: torch is then as it was again when the next training begins, when the callback is
collected, or when the process ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from memfit.integrations.trainer_fit import TrainerFit, refuse_ranks

if TYPE_CHECKING:
    from memfit.records.fit import LoopFit


class MemfitFit(TrainerCallback):
    """Holds the trainings of a Trainer to a budget such as '2GiB'; `disk` is a folder that a plan may move to.

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
        self._fit = TrainerFit(budget, disk, planner, measure_every)

    @property
    def found(self) -> LoopFit | None:
        """What came of the last training that ended; None before."""
        return self._fit.found

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse what cannot be fitted; begin."""
        how = "DeepSpeed" if getattr(args, "deepspeed", None) else "FSDP" if getattr(args, "fsdp", None) else ""
        refuse_ranks(max(int(args.world_size), int(args.n_gpu)), how)
        self._fit.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End what was begun here."""
        self._fit.end()
