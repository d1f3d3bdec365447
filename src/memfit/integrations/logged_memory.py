"""Memory beside the loss: a trainer's own logger (Weights & Biases, MLflow, TensorBoard) gets it with what it logs.

    Trainer(..., report_to="none", callbacks=[with_memory(WandbCallback)()])        Hugging Face
    Trainer(..., logger=MLFlowLogger(...), callbacks=[lightning_memory()])          Lightning

The numbers are those of this process at the moment of logging, and its peak until then as the kernel counts it. Nothing
is reset: whoever else measures this process is not disturbed. Under `memfit measure`, which resets the kernel's mark at
every step, the peak is in its own record and left out here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from memfit import inside
from memfit.inside.resident import read_parts

T = TypeVar("T")


def memory_now() -> dict[str, float]:
    """The memory of this process by the names that every export has, in bytes."""
    found = {"memory/resident_bytes": float(sum(read_parts().values()))}
    if not inside.is_recording():
        found["memory/peak_bytes"] = float(_peak_bytes())
    return {**found, **_gpu()}


def _peak_bytes() -> int:
    with open("/proc/self/status", "rb") as stream:
        return int(stream.read().partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024


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
        def on_log(
            self,
            args: object,
            state: object,
            control: object,
            logs: Mapping[str, float] | None = None,
            **others: object,
        ) -> object:
            return super().on_log(args, state, control, logs={**(logs or {}), **memory_now()}, **others)

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
        def on_train_batch_end(self, trainer: _Trainer, *others: object) -> None:
            if trainer.global_rank == 0 and trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
                row = memory_now()
                for logger in trainer.loggers:
                    logger.log_metrics(row, step=trainer.global_step)

    return LightningMemory()
