"""Which device is meant, how large is it, and what does it take beside the allocator?

Sizes are what the driver reports as usable (`torch.cuda.get_device_properties(0).total_memory`), rounded down to
what is published in OOM messages and `nvidia-smi` listings of the card; peak rates are from the vendor's data
sheets (dense, no sparsity).
"""

from __future__ import annotations

import difflib
from typing import Literal

import msgspec

from memfit.errors import UsageError
from memfit.units import MIB, parse_bytes

CUBLAS_WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
"""torch's default `:4096:2:16:8`, in KiB times count; one per thread that multiplies matrices, so training has two."""
HOPPER_WORKSPACE_BYTES = 32 * MIB

CONTEXT_MIB = (290, 430, 700)
"""Low, usual, high: CUDA context and lazily loaded kernels, as read on different cards and drivers."""


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A device a training can be predicted for."""

    kind: Literal["cpu", "cuda"]
    name: str
    total_bytes: int | None = None
    capability: tuple[int, int] = (8, 0)
    half_tflops: float | None = None
    """Dense bf16/fp16 tensor throughput, in 10^12 operations per second."""
    single_tflops: float | None = None
    bandwidth_gb_per_second: float | None = None

    @property
    def cublas_workspace_bytes(self) -> int:
        """One cuBLAS workspace."""
        return HOPPER_WORKSPACE_BYTES if self.capability == (9, 0) else CUBLAS_WORKSPACE_BYTES


def usable_bytes(device: DeviceSpec) -> int:
    """What is left for the allocator of a device whose size is known, beside the usual context."""
    beside = CONTEXT_MIB[1] * MIB if device.kind == "cuda" else 0
    return max(1, (device.total_bytes or 0) - beside)


def _gpu(
    name: str, total_mib: int, capability: tuple[int, int], half: float, single: float, bandwidth: float
) -> DeviceSpec:
    return DeviceSpec(
        kind="cuda", name=name, total_bytes=total_mib * MIB, capability=capability,
        half_tflops=half, single_tflops=single, bandwidth_gb_per_second=bandwidth,
    )  # fmt: skip


GPUS: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        _gpu("t4-16gb", 14914, (7, 5), 65, 8.1, 320),
        _gpu("v100-16gb", 16151, (7, 0), 125, 15.7, 900),
        _gpu("v100-32gb", 32501, (7, 0), 125, 15.7, 900),
        _gpu("a10-24gb", 22721, (8, 6), 125, 31.2, 600),
        _gpu("a100-40gb", 40441, (8, 0), 312, 19.5, 1555),
        _gpu("a100-80gb", 81153, (8, 0), 312, 19.5, 2039),
        _gpu("a40-48gb", 45416, (8, 6), 150, 37.4, 696),
        _gpu("a6000-48gb", 48670, (8, 6), 155, 38.7, 768),
        _gpu("l4-24gb", 22574, (8, 9), 121, 30.3, 300),
        _gpu("l40s-48gb", 45457, (8, 9), 362, 91.6, 864),
        _gpu("h100-80gb", 81090, (9, 0), 989, 66.9, 3350),
        _gpu("h200-141gb", 143156, (9, 0), 989, 66.9, 4800),
        _gpu("b200-180gb", 182642, (10, 0), 2250, 75, 8000),
        _gpu("rtx2080ti-11gb", 11003, (7, 5), 108, 13.4, 616),
        _gpu("rtx3060-12gb", 11909, (8, 6), 51, 12.7, 360),
        _gpu("rtx3070-8gb", 7974, (8, 6), 81, 20.3, 448),
        _gpu("rtx3080-10gb", 9992, (8, 6), 119, 29.8, 760),
        _gpu("rtx3090-24gb", 24252, (8, 6), 142, 35.6, 936),
        _gpu("rtx4060-8gb", 7931, (8, 9), 60, 15.1, 272),
        _gpu("rtx4070-12gb", 11994, (8, 9), 117, 29.1, 504),
        _gpu("rtx4080-16gb", 15981, (8, 9), 195, 48.7, 717),
        _gpu("rtx4090-24gb", 24080, (8, 9), 330, 82.6, 1008),
        _gpu("rtx5090-32gb", 32120, (12, 0), 419, 104.8, 1792),
    )
}


def parse_device(text: str, memory: str | None = None) -> DeviceSpec:
    """Read 'cpu', 'cuda', or 'cuda:NAME', with an own memory size on request."""
    kind, _, name = text.strip().lower().partition(":")
    if kind == "cpu" and not name:
        return DeviceSpec(kind="cpu", name="cpu", total_bytes=parse_bytes(memory) if memory else None)
    if kind != "cuda":
        raise UsageError(f"there is no device {text!r}", hint="cpu, cuda, or cuda:NAME such as cuda:a100-40gb")
    if not name or name.isdigit():
        return DeviceSpec(kind="cuda", name="cuda", total_bytes=parse_bytes(memory) if memory else None)
    if name not in GPUS:
        near = [known for known in GPUS if known.startswith(name)] or difflib.get_close_matches(name, GPUS, n=1)
        meant = f"did you mean {' or '.join(f'cuda:{known}' for known in near)}? " if near else ""
        hint = f"{meant}a GPU that is not in the table is given by its size: --device cuda --memory 24GiB"
        raise UsageError(f"there is no GPU {name!r} in the table", found=f"it has {', '.join(GPUS)}", hint=hint)
    spec = GPUS[name]
    return msgspec.structs.replace(spec, total_bytes=parse_bytes(memory)) if memory else spec
