"""Parser of `--device`: which device, its size, and the bytes it takes beside the allocator.

Sizes are what the driver reports as usable (`torch.cuda.get_device_properties(0).total_memory`, "total capacity" in
PyTorch's out-of-memory messages), in GiB; each row says where its reading was published, or that none was found. The
same card reads up to 1 % more or less with other drivers and error correction, and on Windows. Rates are of the
vendor's data sheets (dense, no sparsity).
"""

from __future__ import annotations

import difflib
from typing import Literal

import msgspec

from memfit.errors import UsageError
from memfit.records.prediction import LevelName
from memfit.units import MIB, parse_bytes

CUBLAS_WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
"""torch's default `:4096:2:16:8`, in KiB times count; one per thread that multiplies matrices, so training has two."""
HOPPER_WORKSPACE_BYTES = 32 * MIB


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver takes beside the allocator: the CUDA context and the kernels that were loaded."""

    low_bytes: int
    usual_bytes: int
    high_bytes: int
    source: str


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
    source: str = ""
    """Where the size was read."""

    @property
    def cublas_workspace_bytes(self) -> int:
        """One cuBLAS workspace."""
        return HOPPER_WORKSPACE_BYTES if self.capability == (9, 0) else CUBLAS_WORKSPACE_BYTES


def context_of(device: DeviceSpec) -> Context:
    """The range that was read on cards of the same generation, or on others where none of this one is known."""
    if device.name == "cuda":
        low, usual, high = 290, 430, 2000
        source = "no GPU was named: from the least to the most that was read on any"
    elif device.capability == (8, 0):
        low, usual, high = 430, 1430, 2000
        source = (
            "on A100s 1429 MiB were read beside the allocator in one public set, 1443 to 1460 in another and about "
            "2000 with cuDNN; newer drivers load kernels lazily and may take less"
        )
    elif device.capability >= (9, 0):
        low, usual, high = 290, 700, 2000
        source = "nothing is known of this generation: from the least of smaller cards to the most of an A100"
    else:
        low, usual, high = 290, 430, 700
        source = "287 MB with kernels loaded lazily, 667 MB with all (pytorch#86509), 426 MiB on an RTX 6000 Ada"
    return Context(low_bytes=low * MIB, usual_bytes=usual * MIB, high_bytes=high * MIB, source=source)


def level_for(device: DeviceSpec) -> LevelName:
    """The level that decides: allocated on a GPU, tensors on the CPU."""
    return "allocated" if device.kind == "cuda" else "tensors"


def usable_bytes(device: DeviceSpec) -> int:
    """What is left for the allocator of a device whose size is known, beside the usual context."""
    beside = context_of(device).usual_bytes if device.kind == "cuda" else 0
    return max(1, (device.total_bytes or 0) - beside)


def _gpu(
    name: str, total_gib: float, capability: tuple[int, int], half: float, single: float, bandwidth: float, source: str
) -> DeviceSpec:
    return DeviceSpec(
        kind="cuda", name=name, total_bytes=int(total_gib * 1024) * MIB, capability=capability,
        half_tflops=half, single_tflops=single, bandwidth_gb_per_second=bandwidth, source=source,
    )  # fmt: skip


PRINTED = "printed by torch.cuda.get_device_properties in public repositories: total_memory="
UNNAMED = "the figure of several public training logs of cards of this size, which do not name the card"
LOGS = "the same figure in several public training logs that name the card; others print 45589MB"
LIKE_A10G = PRINTED + "22587MB for the A10G; nvidia-smi says 23028 MiB of both cards"
NEAR_4070 = "nominal: nvidia-smi says 12282 MiB, less 291 (256 are kept back on an RTX 4060, 327 on an RTX 4080)"
XMEM = "total_gpu_memory in the evaluation files of github.com/Stone-ResearchLife/xMem"

GPUS: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        _gpu("t4-16gb", 14.56, (7, 5), 65, 8.1, 320, "github.com/Zheng-Chong/CatVTON/issues/133"),
        _gpu("v100-16gb", 15.78, (7, 0), 125, 15.7, 900, "github.com/kchengiva/Shift-GCN/issues/34"),
        _gpu("v100-32gb", 31.74, (7, 0), 125, 15.7, 900, "github.com/liucongg/ChatGLM-Finetuning/issues/73"),
        _gpu(
            "a10-24gb",
            22587 / 1024,
            (8, 6),
            125,
            31.2,
            600,
            LIKE_A10G,
        ),
        _gpu("a100-40gb", 39.50, (8, 0), 312, 19.5, 1555, "github.com/TianheWu/CoSeR/issues/10"),
        _gpu("a100-80gb", 79.25, (8, 0), 312, 19.5, 2039, "github.com/HiDream-ai/VAREdit/issues/6"),
        _gpu("a40-48gb", 45416 / 1024, (8, 6), 150, 37.4, 696, "github.com/pyscf/gpu4pyscf/issues/304"),
        _gpu("a6000-48gb", 48676 / 1024, (8, 6), 155, 38.7, 768, PRINTED + "48676MB"),
        _gpu("l4-24gb", 22.05, (8, 9), 121, 30.3, 300, UNNAMED),
        _gpu(
            "l40s-48gb",
            44.39,
            (8, 9),
            362,
            91.6,
            864,
            LOGS,
        ),
        _gpu("h100-80gb", 81089 / 1024, (9, 0), 989, 66.9, 3350, PRINTED + "81089MB (also 81082 and 81090)"),
        _gpu("h200-141gb", 143156 / 1024, (9, 0), 989, 66.9, 4800, PRINTED + "143156MB"),
        _gpu("b200-180gb", 182642 / 1024, (10, 0), 2250, 75, 8000, PRINTED + "182642MB (also 182631)"),
        _gpu("rtx2080ti-11gb", 10.76, (7, 5), 108, 13.4, 616, "github.com/JDAI-CV/image-captioning/issues/11"),
        _gpu("rtx3060-12gb", 12037 / 1024, (8, 6), 51, 12.7, 360, XMEM),
        _gpu("rtx3070-8gb", 7.78, (8, 6), 81, 20.3, 448, "github.com/akshitac8/OW-DETR/issues/46"),
        _gpu("rtx3080-10gb", 9.78, (8, 6), 119, 29.8, 760, "github.com/zai-org/CogVideo/issues/34"),
        _gpu("rtx3090-24gb", 23.70, (8, 6), 142, 35.6, 936, "github.com/GaoLii/DSP/issues/10"),
        _gpu("rtx4060-8gb", 7932 / 1024, (8, 9), 60, 15.1, 272, XMEM),
        _gpu("rtx4070-12gb", 11991 / 1024, (8, 9), 117, 29.1, 504, NEAR_4070),
        _gpu("rtx4080-16gb", 16049 / 1024, (8, 9), 195, 48.7, 717, PRINTED + "16049MB"),
        _gpu("rtx4090-24gb", 23.64, (8, 9), 330, 82.6, 1008, "github.com/3DTopia/Phidias-Diffusion/issues/8"),
        _gpu("rtx5090-32gb", 31.37, (12, 0), 419, 104.8, 1792, "github.com/Wan-Video/Wan2.1/issues/465"),
    )
}


def parse_device(text: str, memory: str | None = None) -> DeviceSpec:
    """Read 'cpu', 'cuda', 'cuda:NAME', 'cuda:24GiB' or NAME alone, with an own memory size on request."""
    kind, _, name = text.strip().lower().partition(":")
    if not name and _names_like(kind):
        kind, name = "cuda", kind
    if kind == "cpu" and not name:
        return DeviceSpec(kind="cpu", name="cpu", total_bytes=parse_bytes(memory) if memory else None)
    if kind != "cuda":
        raise UsageError(f"there is no device {text!r}", hint="cpu, cuda, or the name of a GPU such as a100-40gb")
    if _is_size(name) and not memory:
        name, memory = "", name
    if not name or name.isdigit():
        return DeviceSpec(kind="cuda", name="cuda", total_bytes=parse_bytes(memory) if memory else None)
    if name not in GPUS:
        near = _names_like(name)
        meant = f"did you mean {' or '.join(f'cuda:{known}' for known in near)}? " if near else ""
        hint = f"{meant}a GPU that is not in the table is given by its size: --device cuda --memory 24GiB"
        raise UsageError(f"there is no GPU {name!r} in the table", found=f"it has {', '.join(GPUS)}", hint=hint)
    spec = GPUS[name]
    return msgspec.structs.replace(spec, total_bytes=parse_bytes(memory)) if memory else spec


def _is_size(name: str) -> bool:
    """Whether the text after the colon is a size, as in 'cuda:24GiB'."""
    return name[:1].isdigit() and name.endswith("b") and "-" not in name


def _names_like(name: str) -> list[str]:
    """GPUs that may be meant: the one of this name, those that begin with it, or the most alike."""
    if name in GPUS:
        return [name]
    return [known for known in GPUS if known.startswith(name)] or difflib.get_close_matches(name, GPUS, n=1)
