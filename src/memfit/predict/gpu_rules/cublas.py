"""Size of the workspace that torch gives cuBLAS, and whether it stays; pure.

Up to torch 2.14 the first matrix product of every thread and stream takes a workspace from the caching allocator and
keeps it, so a training has two. From 2.15 on every product takes one and gives it back, unless
TORCH_CUBLAS_WORKSPACE_CACHE=1 (docs of torch 2.15, "CUDA environment variables"; seen on the phantom GPU with 2.15.0).
Its size is the default of the GPU, or what CUBLAS_WORKSPACE_CONFIG says: ':4096:2:16:8' is 2 of 4096 KiB and 8 of 16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CONFIG, CACHE = "CUBLAS_WORKSPACE_CONFIG", "TORCH_CUBLAS_WORKSPACE_CACHE"
FIRST_THAT_RETURNS = (2, 15)
CUBLAS_WORKSPACE = "cuBLAS workspace"
"""What it is called in a timeline."""


def workspace_stays(torch_version: str, environment: Mapping[str, str]) -> bool:
    """Whether a workspace is kept after the product that took it."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2])
    return numbers < FIRST_THAT_RETURNS or environment.get(CACHE) == "1"


def workspace_bytes(default_bytes: int, environment: Mapping[str, str]) -> int:
    """The size of one workspace; a text that torch cannot read leaves the default."""
    pairs = re.findall(r":(\d+):(\d+)", environment.get(CONFIG, ""))
    return sum(1024 * int(size) * int(count) for size, count in pairs) if pairs else default_bytes


def said_of_workspaces(num_bytes: int, torch_version: str, environment: Mapping[str, str]) -> str:
    """What is assumed, in one line, with what another release does."""
    size = f"{num_bytes / 2**20:.1f} MiB"
    if workspace_stays(torch_version, environment):
        return f"cuBLAS keeps a workspace of {size} for each thread that multiplies, as up to torch 2.14; from 2.15 on \
every product takes one and gives it back ({CACHE}=1 keeps it), which is not checked on a GPU"
    return (
        f"every matrix product takes a cuBLAS workspace of {size} and gives it back, as from torch 2.15 on, which is \
not checked on a GPU; before, two of them stayed"
    )
