"""Memory beside the loss: a trainer's own logger (Weights & Biases, MLflow, TensorBoard) gets it with what it logs.

    Trainer(..., report_to="none", callbacks=[with_memory(WandbCallback)()])        Hugging Face
    Trainer(..., logger=MLFlowLogger(...), callbacks=[lightning_memory()])          Lightning

The numbers are those of this process at the moment of logging, and its peak since the last time: the kernel's
high-water mark where this process may reset it, unless `memfit measure` resets it for the steps of its own record.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from memfit import inside
from memfit.inside.high_water import HighWater
from memfit.inside.resident import read_parts

T = TypeVar("T")


class MemoryReader:
    """Reads the memory of this process, and its peak since it was last asked."""

    def __init__(self) -> None:
        self._mark: HighWater | None = None

    def read(self) -> dict[str, float]:
        """Names as in every export, with bytes."""
        found: dict[str, float] = {"memory/resident_bytes": float(sum(read_parts().values()))}
        peak = self._peak()
        return {**found, **({"memory/peak_since_last_bytes": float(peak)} if peak else {}), **_gpu()}

    def _peak(self) -> int:
        if inside.is_recording():
            return 0
        if self._mark is None:
            self._mark = HighWater()
            return self._mark.open()
        return self._mark.read_and_reset()


def _gpu() -> dict[str, float]:
    """What torch holds on the GPU, where the program uses one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {
        "memory/gpu_allocated_bytes": float(torch.cuda.memory_allocated()),
        "memory/gpu_peak_allocated_bytes": float(torch.cuda.max_memory_allocated()),
        "memory/gpu_reserved_bytes": float(torch.cuda.memory_reserved()),
    }


def with_memory(callback_class: type[T]) -> type[T]:
    """A class like this logging callback of the Hugging Face Trainer that adds memory to all it logs."""
    base: Any = callback_class

    class LoggedMemory(base):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            self._reader = MemoryReader()

        def on_log(
            self,
            args: object,
            state: object,
            control: object,
            logs: Mapping[str, float] | None = None,
            **others: object,
        ) -> object:
            return super().on_log(args, state, control, logs={**(logs or {}), **self._reader.read()}, **others)

    LoggedMemory.__name__ = f"{callback_class.__name__}WithMemory"
    return LoggedMemory


class _Trainer(Protocol):
    """What is asked of Lightning's Trainer."""

    global_rank: int
    global_step: int
    log_every_n_steps: int
    loggers: Any


def lightning_memory() -> object:
    """A callback for the Lightning Trainer that gives memory to its loggers, as often as it logs."""
    from memfit.integrations.lightning_callback import callback_class

    class LightningMemory(callback_class()):
        def __init__(self) -> None:
            super().__init__()
            self._reader = MemoryReader()

        def on_train_batch_end(self, trainer: _Trainer, *others: object) -> None:
            if trainer.global_rank == 0 and trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
                row = self._reader.read()
                for logger in trainer.loggers:
                    logger.log_metrics(row, step=trainer.global_step)

    return LightningMemory()
