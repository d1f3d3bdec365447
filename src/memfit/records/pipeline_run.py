"""Run of a pipeline in real processes: what was started, what every rank took, which rank died and when."""

from __future__ import annotations

import msgspec

from memfit.records.figure import Figure


class PipelineOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every rank of a run is asked to do; the file from which a worker reads its part."""

    target: str
    """As `memfit predict` takes it: FILE:function, or a built-in workload."""
    settings: dict[str, bool | int | float | str | None] = {}
    starts: tuple[str, ...]
    """The first module of every stage but the first, as in `model.named_modules()`."""
    ranks: tuple[int, ...]
    """Of every stage."""
    num_ranks: int
    schedule: str
    num_micro_batches: int
    orders: tuple[tuple[str, ...], ...] = ()
    """What each rank does one after another, for a custom schedule."""
    num_steps: int = 2
    device: str = "cpu"
    keep_gradients: bool = False
    """Leave the gradients of the first step beside the results, for a comparison."""

    @property
    def num_stages(self) -> int:
        """How many there are."""
        return len(self.starts) + 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds, in their order."""
        return tuple(index for index, owner in enumerate(self.ranks) if owner == rank)


class RankResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one process left behind at its end."""

    rank: int
    peak_bytes: int
    """Of live tensors, within the steps."""
    step_seconds: tuple[float, ...]
    losses: tuple[float, ...] = ()
    """The mean of the micro-batches in every step, on the rank with the last stage."""


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank of a run: predicted beside measured."""

    rank: int
    stages: tuple[int, ...]
    predicted: Figure
    measured: Figure
    step_seconds: Figure
    """The median of all steps but the first."""
    ended: str = "done"
    """'done', or how its process ended: 'SIGKILL', 'exit code 1', 'ended since rank 1 died'."""
    died_after_seconds: float | None = None
    died_in_step: int | None = None
    """The step it was in, from 1 on; 0 before the first. None for a rank that did not die by itself."""
    output: str = ""
    """The last lines that it printed, where it died."""


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pipeline that was run here."""

    order: PipelineOrder
    ranks: tuple[RankOutcome, ...]
    losses: tuple[float, ...] = ()
    total_seconds: float
    command: str
    """How the same is started elsewhere."""

    @property
    def dead(self) -> RankOutcome | None:
        """The rank that died first; None when all came to their end."""
        died = [rank for rank in self.ranks if rank.died_after_seconds is not None]
        return min(died, key=lambda rank: rank.died_after_seconds or 0.0, default=None)
