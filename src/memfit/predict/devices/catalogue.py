"""Catalogue of GPUs: the properties by which torch and cuDNN choose kernels, sizes and rates.

Each row names the document its numbers were taken from; none was read on a card by us. What the tests confirm: the
A100 row gives the workspaces that cuDNN took on a real GPU. A GPU that is not in the table is described in a file:

    product = "NVIDIA RTX 2000 Ada Generation"
    capability = [8, 9]
    num_processors = 22
    l2 = "12 MiB"
    bus_bits = 128
    memory = "15.6 GiB"
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memfit.errors import UsageError
from memfit.predict.devices.parse import GPUS, DeviceSpec
from memfit.units import GIB, KIB, format_bytes, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """What allocation can depend on."""

    product: str
    capability: tuple[int, int]
    num_processors: int
    l2_bytes: int
    bus_bits: int
    shared_per_block_bytes: int
    shared_per_processor_bytes: int
    threads_per_processor: int
    blocks_per_processor: int


BY_CAPABILITY: dict[tuple[int, int], tuple[int, int, int, int]] = {
    (7, 0): (96, 96, 2048, 32),
    (7, 5): (64, 64, 1024, 16),
    (8, 0): (163, 164, 2048, 32),
    (8, 6): (99, 100, 1536, 16),
    (8, 9): (99, 100, 1536, 24),
    (9, 0): (227, 228, 2048, 32),
    (10, 0): (227, 228, 2048, 32),
    (12, 0): (99, 100, 1536, 24),
}
"""KiB of shared memory for one block (after opting in) and for the multiprocessor; threads; blocks. From the table of
technical specifications per compute capability in NVIDIA's CUDA programming guide."""

VOLTA, TURING = "Tesla V100 architecture whitepaper (2017)", "Turing architecture whitepaper (2018)"
AMPERE, GA102 = "A100 architecture whitepaper (2020)", "Ampere GA102 architecture whitepaper (2021)"
ADA, HOPPER = "Ada architecture whitepaper (2023)", "H100 architecture whitepaper (2022)"
BLACKWELL, SHEET = "RTX Blackwell architecture whitepaper (2025)", "the card's data sheet; L2 as its owners list it"
PRODUCTS: dict[str, tuple[str, int, int, int, str]] = {
    "t4-16gb": ("Tesla T4", 40, 4096, 256, TURING),
    "v100-16gb": ("Tesla V100-SXM2-16GB", 80, 6144, 4096, VOLTA),
    "v100-32gb": ("Tesla V100-SXM2-32GB", 80, 6144, 4096, VOLTA),
    "a10-24gb": ("NVIDIA A10", 72, 6144, 384, SHEET),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", 108, 40960, 5120, AMPERE),
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", 108, 40960, 5120, AMPERE),
    "a40-48gb": ("NVIDIA A40", 84, 6144, 384, SHEET),
    "a6000-48gb": ("NVIDIA RTX A6000", 84, 6144, 384, GA102),
    "l4-24gb": ("NVIDIA L4", 58, 49152, 192, SHEET),
    "l40s-48gb": ("NVIDIA L40S", 142, 98304, 384, SHEET),
    "h100-80gb": ("NVIDIA H100 80GB HBM3", 132, 51200, 5120, HOPPER),
    "h200-141gb": ("NVIDIA H200", 132, 61440, 6144, SHEET),
    "b200-180gb": ("NVIDIA B200", 148, 129024, 8192, SHEET),
    "rtx2080ti-11gb": ("NVIDIA GeForce RTX 2080 Ti", 68, 5632, 352, TURING),
    "rtx3060-12gb": ("NVIDIA GeForce RTX 3060", 28, 2304, 192, SHEET),
    "rtx3070-8gb": ("NVIDIA GeForce RTX 3070", 46, 4096, 256, GA102),
    "rtx3080-10gb": ("NVIDIA GeForce RTX 3080", 68, 5120, 320, GA102),
    "rtx3090-24gb": ("NVIDIA GeForce RTX 3090", 82, 6144, 384, GA102),
    "rtx4060-8gb": ("NVIDIA GeForce RTX 4060", 24, 24576, 128, SHEET),
    "rtx4070-12gb": ("NVIDIA GeForce RTX 4070", 46, 36864, 192, SHEET),
    "rtx4080-16gb": ("NVIDIA GeForce RTX 4080", 76, 65536, 256, ADA),
    "rtx4090-24gb": ("NVIDIA GeForce RTX 4090", 128, 73728, 384, ADA),
    "rtx5090-32gb": ("NVIDIA GeForce RTX 5090", 170, 98304, 512, BLACKWELL),
}
"""Product name, multiprocessors, KiB of L2, bits of the memory bus, where that is from."""

UNNAMED = "a100-80gb"
UNLIMITED_BYTES = 4096 * GIB
FILE_VARIABLE = "MEMFIT_GPU_FILE"


def properties_of(device: DeviceSpec) -> GpuProperties:
    """The properties of a device of the table; of an A100 when only a size was given."""
    name = device.name if device.name in PRODUCTS else UNNAMED
    product, num_processors, l2_kib, bus_bits, _ = PRODUCTS[name]
    capability = device.capability if device.name in PRODUCTS else (8, 0)
    return _properties(product, capability, num_processors, l2_kib * KIB, bus_bits)


def sources_of(device: DeviceSpec) -> str:
    """Where the figures of a device of the table were read, in one line."""
    size = f"{format_bytes(device.total_bytes)} of {device.name}" if device.total_bytes else device.name
    asked = device.total_bytes != GPUS[device.name].total_bytes
    return f"{size}: {'as asked for' if asked else device.source}; its other properties: {PRODUCTS[device.name][4]}"


def _properties(product: str, capability: tuple[int, int], processors: int, l2_bytes: int, bits: int) -> GpuProperties:
    block_kib, processor_kib, threads, blocks = BY_CAPABILITY[capability]
    return GpuProperties(
        product=product, capability=capability, num_processors=processors, l2_bytes=l2_bytes, bus_bits=bits,
        shared_per_block_bytes=block_kib * KIB, shared_per_processor_bytes=processor_kib * KIB,
        threads_per_processor=threads, blocks_per_processor=blocks,
    )  # fmt: skip


class GpuFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU as a user describes it."""

    product: str
    capability: tuple[int, int]
    num_processors: int
    l2: str
    bus_bits: int
    memory: str


def described_gpu(device: DeviceSpec) -> tuple[DeviceSpec, GpuProperties]:
    """The device and its properties; an unnamed one is what the file in MEMFIT_GPU_FILE says, if there is one."""
    path = os.environ.get(FILE_VARIABLE, "")
    if device.name in PRODUCTS or not path:
        return device, properties_of(device)
    return read_gpu_file(Path(path), device)


def read_gpu_file(path: Path, device: DeviceSpec) -> tuple[DeviceSpec, GpuProperties]:
    """Read a GPU's description (TOML); a memory size that was asked for wins over the file's."""
    try:
        found = msgspec.convert(_toml(path), GpuFile)
    except (OSError, ValueError) as error:  # both kinds of bad content are ValueErrors
        raise UsageError(
            f"{path} does not describe a GPU", found=str(error), hint="docs/phantom.md shows one"
        ) from error
    if found.capability not in BY_CAPABILITY:
        known = ", ".join(f"{major}.{minor}" for major, minor in BY_CAPABILITY)
        raise UsageError(
            "this compute capability is not known", found=".".join(map(str, found.capability)), hint=f"one of {known}"
        )
    properties = _properties(
        found.product, found.capability, found.num_processors, parse_bytes(found.l2), found.bus_bits
    )
    total_bytes = device.total_bytes or parse_bytes(found.memory)
    spec = msgspec.structs.replace(
        device, name=found.product, capability=found.capability, total_bytes=total_bytes
    )  # fmt: skip
    return spec, properties


def _toml(path: Path) -> dict[str, object]:
    with open(path, "rb") as file:
        return tomllib.load(file)
