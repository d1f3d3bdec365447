"""Description of the machine and of the settings that change allocation, for the header of a run.

Standard library only. Linux first; elsewhere a field that cannot be had is empty, and nothing fails.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from memfit.measure.counters.cgroup import memory_limit_bytes
from memfit.version import VERSION

ALLOCATION_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_MAX_CPU_ISA",
    "GLIBC_TUNABLES",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "LD_PRELOAD",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_NUM_THREADS",
    "PYTHONMALLOC",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
)
ALLOCATION_PREFIXES = ("MALLOC_", "JEMALLOC_", "TCMALLOC_", "MIMALLOC_")
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def describe_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """The machine and the software in the field names of `records.run.Environment`."""
    total_bytes = memory_total_bytes()
    return {
        "memfit": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        "cpu": cpu_model(),
        "num_cores": os.cpu_count() or 1,
        "memory_total_bytes": total_bytes,
        "memory_limit_bytes": memory_limit_bytes(total_bytes or None),
        "libc": libc_version(),
        "transparent_hugepages": huge_pages(),
        "variables": allocation_variables(environ),
    }


def allocation_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that change how much memory the same program takes."""
    return {name: value for name, value in sorted(environ.items()) if changes_allocation(name)}


def changes_allocation(name: str) -> bool:
    """Whether a variable belongs to them."""
    is_torch = name.startswith("PYTORCH_") and name.endswith("ALLOC_CONF")
    return name in ALLOCATION_VARIABLES or name.startswith(ALLOCATION_PREFIXES) or is_torch


def memory_total_bytes() -> int:
    """The machine's memory; 0 stands for "this system does not say", which no real machine can have."""
    if sys.platform == "win32":
        return _windows_total_bytes()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _windows_total_bytes() -> int:
    """ullTotalPhys of GlobalMemoryStatusEx."""
    import ctypes
    import struct

    layout = struct.Struct("<II7Q")
    buffer = ctypes.create_string_buffer(layout.pack(layout.size, *[0] * 8), layout.size)
    windows = getattr(ctypes, "windll", None)
    filled = windows is not None and windows.kernel32.GlobalMemoryStatusEx(buffer)
    return layout.unpack(buffer.raw)[2] if filled else 0


def cpu_model(cpuinfo: str | Path = "/proc/cpuinfo") -> str:
    """The processor's name."""
    try:
        with open(cpuinfo, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "Model", "cpu model") and value.strip():
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def libc_version() -> str:
    """'glibc 2.36', 'musl', or empty where it is unknown."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError, AttributeError):
        pass
    loaders = Path("/lib").glob("ld-musl-*") if sys.platform == "linux" else ()
    return "musl" if any(loaders) else ""


def huge_pages(path: str | Path = HUGE_PAGES) -> str:
    """The chosen word of 'always [madvise] never'; empty where the kernel has no such setting."""
    try:
        text = Path(path).read_text()
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]
