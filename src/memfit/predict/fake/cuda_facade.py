"""Pretended `torch.cuda`: devices, autocast and gradient scaling as a script sees them in a prediction's child."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

import torch
import torch.cuda.amp.common
import torch.cuda.memory
import torch.cuda.nvtx
import torch.cuda.profiler
import torch.cuda.random

from memfit.predict.child.messages import TraceRequest
from memfit.predict.fake.cuda_streams import pretending_streams
from memfit.predict.fake.patches.cuda_types import cuda_types
from memfit.predict.fake.patches.cuda_version import cuda_version
from memfit.predict.fake.recording import Recording
from memfit.predict.observe.storage_log import TraceLog

ROOMY_BYTES = 80 * 1024**3


@contextlib.contextmanager
def pretending_cuda(request: TraceRequest, recording: Recording) -> Iterator[None]:
    """Within, there is one GPU."""
    total_bytes = request.gpu_bytes or ROOMY_BYTES
    properties = types.SimpleNamespace(
        name=request.gpu_name, total_memory=total_bytes, major=request.capability[0], minor=request.capability[1],
        multi_processor_count=request.num_processors, is_integrated=False, warp_size=32, gcnArchName="", uuid="",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        functions = _functions(request, properties, recording, total_bytes)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
            for name, function in functions.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, function))
        for name in ("_exchange_device", "_maybe_exchange_device"):  # of `with torch.cuda.device(0):`
            stack.enter_context(patch.object(torch.cuda, name, _always(0)))
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            stack.enter_context(patch.object(torch.cuda.nvtx, name, _always(0)))
        for name in ("__enter__", "__exit__"):  # which asks whether this build has NVTX
            stack.enter_context(patch.object(torch.autograd.profiler.emit_nvtx, name, _always(None)))
        stack.enter_context(patch.object(torch, "Generator", GpuGenerator))
        for name in ("start", "stop", "init"):
            if hasattr(torch.cuda.profiler, name):
                stack.enter_context(patch.object(torch.cuda.profiler, name, _always(None)))
        # where FSDP2 makes its default mesh
        stack.enter_context(patch.object(torch._C, "_get_accelerator", lambda *_: torch.device("cuda")))
        stack.enter_context(patch.object(torch._C, "_scatter", _scattered, create=True))  # DataParallel, on one GPU
        stack.enter_context(pretending_streams(recording.tracker.log))
        stack.enter_context(patch.object(torch.accelerator, "device_index", contextlib.nullcontext))
        for name in ("synchronize", "set_device_index", "set_device_idx"):
            stack.enter_context(patch.object(torch.accelerator, name, _always(None)))
        stack.enter_context(patch.object(torch.accelerator, "current_device_index", _always(0)))
        stack.enter_context(patch.object(torch.cuda.amp.common, "amp_definitely_not_available", _always(False)))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", _unpinned))
        stack.enter_context(patch.object(torch.Tensor, "record_stream", _always(None)))
        stack.enter_context(cuda_types())
        stack.enter_context(cuda_version(recording.shadow.note))
        yield


def _functions(
    request: TraceRequest, properties: types.SimpleNamespace, recording: Recording, total_bytes: int
) -> dict[str, Callable[..., object]]:
    """What `torch.cuda` answers; what it does not answer here stays as it is."""
    log = recording.tracker.log
    answers: dict[str, object] = {
        "is_available": True, "device_count": 1, "current_device": 0, "is_initialized": True,
        "is_bf16_supported": True, "is_tf32_supported": request.capability >= (8, 0),
        "get_device_name": request.gpu_name, "get_device_capability": request.capability,
        "get_device_properties": properties, "memory_stats_as_nested_dict": {},
        "memory_snapshot": [], "memory_summary": "(no allocator while predicting)",
        "_snapshot": {"segments": [], "device_traces": []},
        "get_allocator_backend": "native", "get_arch_list": [], "get_sync_debug_mode": 0,
        "is_current_stream_capturing": False, "can_device_access_peer": False, "utilization": 0, "temperature": 0,
        "power_draw": 0, "clock_rate": 0, "memory_usage": 0, "list_gpu_processes": "", "initial_seed": 0,
        "get_gencode_flags": "",
    }  # fmt: skip
    nothing = (
        "synchronize", "empty_cache", "set_device", "init", "_lazy_init", "ipc_collect", "manual_seed", "seed",
        "seed_all", "manual_seed_all", "set_rng_state", "set_rng_state_all", "set_per_process_memory_fraction",
        "set_sync_debug_mode", "_record_memory_history", "_dump_snapshot", "cudart",
        "reset_accumulated_memory_stats", "reset_peak_host_memory_stats",
    )  # fmt: skip
    allocated = ("memory_allocated", "memory_reserved", "memory_cached")
    highest = ("max_memory_allocated", "max_memory_reserved", "max_memory_cached")
    resets = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
    bytes_on_gpu = BytesOnGpu(log)
    return {
        **{name: _always(value) for name, value in answers.items()},
        **dict.fromkeys(nothing, _always(None)),
        **dict.fromkeys(allocated, lambda *args, **kwargs: bytes_on_gpu.now()),
        **dict.fromkeys(highest, lambda *args, **kwargs: bytes_on_gpu.highest()),
        **dict.fromkeys(resets, lambda *args, **kwargs: bytes_on_gpu.reset()),
        "memory_stats": lambda *args, **kwargs: _statistics(bytes_on_gpu),
        "mem_get_info": lambda *args, **kwargs: (total_bytes - bytes_on_gpu.now(), total_bytes),
        "get_rng_state": lambda *args, **kwargs: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda *args, **kwargs: [torch.zeros(16, dtype=torch.uint8)],
    }


class GpuGenerator(torch.Generator):
    """Random numbers for a GPU: drawn on the host, since only their shapes are followed."""

    place: torch.device

    def __new__(cls, device: torch.device | str | int = "cpu") -> GpuGenerator:
        made = super().__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]
        made.place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where it was asked to be."""
        return self.place


def _statistics(on_gpu: BytesOnGpu) -> dict[str, int]:
    """torch.cuda.memory_stats(): bytes as far as tensors tell them, and zero for what only an allocator counts."""
    kinds = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes")
    kinds += ("allocation", "segment", "active", "inactive_split")
    pools, whens = ("all", "large_pool", "small_pool"), ("current", "peak", "allocated", "freed")
    found = {f"{kind}.{pool}.{when}": 0 for kind in kinds for pool in pools for when in whens}
    for kind in kinds[:4]:
        found |= {f"{kind}.all.current": on_gpu.now(), f"{kind}.all.peak": on_gpu.highest()}
    return found | {"num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0}


class BytesOnGpu:
    """Bytes of live tensors on the GPU, from the log: now, and the most since a script last reset its peaks."""

    def __init__(self, log: TraceLog) -> None:
        self._log = log
        self._start = 0
        """How many entries there were at the last reset."""

    def now(self) -> int:
        """Bytes of live tensors."""
        return self._walk()[0]

    def highest(self) -> int:
        """The most since the last reset."""
        return self._walk()[1]

    def reset(self) -> None:
        """From here on the highest counts anew."""
        self._start = len(self._log.entries)

    def _walk(self) -> tuple[int, int]:
        now = most = 0
        births = self._log.births
        for place, (kind, uid) in enumerate(self._log.entries):
            if place == self._start:
                most = now
            if kind in ("alloc", "free") and births[uid].device.startswith("cuda"):
                now += births[uid].num_bytes if kind == "alloc" else -births[uid].num_bytes
                most = max(most, now)
        return now, most if self._start < len(self._log.entries) else now


def _always(value: object) -> Callable[..., object]:
    return lambda *args, **kwargs: value


def _scattered(
    tensor: torch.Tensor, devices: list[int], sizes: Sequence[int] | None = None, dim: int = 0, streams: object = None
) -> list[torch.Tensor]:
    """As torch._C._scatter: a part of the tensor for each device."""
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return [part.to(f"cuda:{device}") for part, device in zip(parts, devices, strict=False)]


def _unpinned(tensor: object, *args: object, **kwargs: object) -> object:
    return tensor
