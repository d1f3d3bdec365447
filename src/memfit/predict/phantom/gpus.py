"""What must a GPU say of itself for torch and cuDNN to choose as they would on it?

The numbers are typed from common knowledge of these cards and still need a source per row; none was read on a card by
us. What the tests confirm: the A100 row gives the workspaces that cuDNN took on a real GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from memfit.predict.devices import DeviceSpec
from memfit.units import GIB, KIB


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
"""KiB of shared memory for one block (after opting in) and for the multiprocessor; threads; blocks."""

PRODUCTS: dict[str, tuple[str, int, int, int]] = {
    "t4-16gb": ("Tesla T4", 40, 4096, 256),
    "v100-16gb": ("Tesla V100-SXM2-16GB", 80, 6144, 4096),
    "v100-32gb": ("Tesla V100-SXM2-32GB", 80, 6144, 4096),
    "a10-24gb": ("NVIDIA A10", 72, 6144, 384),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", 108, 40960, 5120),
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", 108, 40960, 5120),
    "a40-48gb": ("NVIDIA A40", 84, 6144, 384),
    "a6000-48gb": ("NVIDIA RTX A6000", 84, 6144, 384),
    "l4-24gb": ("NVIDIA L4", 58, 49152, 192),
    "l40s-48gb": ("NVIDIA L40S", 142, 98304, 384),
    "h100-80gb": ("NVIDIA H100 80GB HBM3", 132, 51200, 5120),
    "h200-141gb": ("NVIDIA H200", 132, 61440, 6144),
    "b200-180gb": ("NVIDIA B200", 148, 129024, 8192),
    "rtx2080ti-11gb": ("NVIDIA GeForce RTX 2080 Ti", 68, 5632, 352),
    "rtx3060-12gb": ("NVIDIA GeForce RTX 3060", 28, 2304, 192),
    "rtx3070-8gb": ("NVIDIA GeForce RTX 3070", 46, 4096, 256),
    "rtx3080-10gb": ("NVIDIA GeForce RTX 3080", 68, 5120, 320),
    "rtx3090-24gb": ("NVIDIA GeForce RTX 3090", 82, 6144, 384),
    "rtx4060-8gb": ("NVIDIA GeForce RTX 4060", 24, 24576, 128),
    "rtx4070-12gb": ("NVIDIA GeForce RTX 4070", 46, 36864, 192),
    "rtx4080-16gb": ("NVIDIA GeForce RTX 4080", 76, 65536, 256),
    "rtx4090-24gb": ("NVIDIA GeForce RTX 4090", 128, 73728, 384),
    "rtx5090-32gb": ("NVIDIA GeForce RTX 5090", 170, 98304, 512),
}
"""Product name, multiprocessors, KiB of L2, bits of the memory bus."""

UNNAMED = "a100-80gb"
UNLIMITED_BYTES = 4096 * GIB


def properties_of(device: DeviceSpec) -> GpuProperties:
    """The properties of a device of the table; of an A100 when only a size was given."""
    name = device.name if device.name in PRODUCTS else UNNAMED
    capability = device.capability if device.name in PRODUCTS else (8, 0)
    product, num_processors, l2_kib, bus_bits = PRODUCTS[name]
    block_kib, processor_kib, threads, blocks = BY_CAPABILITY[capability]
    return GpuProperties(
        product=product, capability=capability, num_processors=num_processors, l2_bytes=l2_kib * KIB, bus_bits=bus_bits,
        shared_per_block_bytes=block_kib * KIB, shared_per_processor_bytes=processor_kib * KIB,
        threads_per_processor=threads, blocks_per_processor=blocks,
    )  # fmt: skip
