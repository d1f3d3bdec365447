"""What does a program see of a GPU that is not there: `torch.cuda`, autocast, gradient scaling? Only within a
prediction's child."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.cuda.amp.common

from memfit.predict.messages import TraceRequest
from memfit.predict.torch_fake import Recording

ROOMY_BYTES = 80 * 1024**3


class GhostStream:
    """A stream or event on which nothing waits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> GhostStream:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def elapsed_time(self, other: Any) -> float:
        """Some milliseconds."""
        return 1.0

    def query(self) -> bool:
        """Everything is done."""
        return True

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    synchronize = record = wait = wait_stream = wait_event = _nothing

    def record_event(self, *args: Any) -> GhostStream:
        """An event."""
        return GhostStream()


@contextlib.contextmanager
def pretending_cuda(request: TraceRequest, recording: Recording) -> Iterator[None]:
    """Within, there is one GPU."""
    total_bytes = request.gpu_bytes or ROOMY_BYTES
    properties = types.SimpleNamespace(
        name=request.gpu_name, total_memory=total_bytes, major=request.capability[0], minor=request.capability[1],
        multi_processor_count=request.num_processors, is_integrated=False, warp_size=32, gcnArchName="", uuid="",
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_initialized": True,
        "is_bf16_supported": True,
        "get_device_name": request.gpu_name,
        "get_device_capability": request.capability,
        "get_device_properties": properties,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "mem_get_info": (total_bytes, total_bytes),
        "memory_stats": {},
        "memory_summary": "",
        "get_rng_state": None,
        "synchronize": None,
        "empty_cache": None,
        "set_device": None,
        "reset_peak_memory_stats": None,
        "init": None,
        "reset_max_memory_allocated": None,
        "_lazy_init": None,
        "ipc_collect": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "set_rng_state": None,
        "get_arch_list": [],
        "set_per_process_memory_fraction": None,
    }
    with contextlib.ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, _always(value)))
        # where FSDP2 makes its default mesh
        stack.enter_context(patch.object(torch._C, "_get_accelerator", lambda *_: torch.device("cuda")))
        for name in ("Stream", "Event", "current_stream", "default_stream", "stream"):
            stack.enter_context(patch.object(torch.cuda, name, GhostStream))
        stack.enter_context(patch.object(torch.cuda.amp.common, "amp_definitely_not_available", _always(False)))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", _unpinned))
        stack.enter_context(patch.object(torch.Tensor, "record_stream", _always(None)))
        yield


def _always(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _unpinned(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor
