"""Loads the phantom library into this process before torch, sets its GPU, and reads its counters."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from memfit.errors import UsageError
from memfit.predict.devices.catalogue import GpuProperties
from memfit.predict.phantom.library.build import DRIVER, NVML

READER = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
PREFER_CUDNN_ATTENTION = ((9, 0), (10, 0))
"""Compute capabilities on which torch takes cuDNN's attention in half precision first (2.14, sdp_utils.cpp)."""


class Description(ctypes.Structure):
    """The same fields, in the same order, as `Gpu` in csrc/phantom.h."""

    _fields_ = [
        ("name", ctypes.c_char * 64),
        ("total_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
        ("shared_per_block_bytes", ctypes.c_uint64),
        ("shared_per_processor_bytes", ctypes.c_uint64),
        ("l2_bytes", ctypes.c_uint64),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("num_processors", ctypes.c_int32),
        ("threads_per_processor", ctypes.c_int32),
        ("blocks_per_processor", ctypes.c_int32),
        ("bus_bits", ctypes.c_int32),
    ]


class PhantomLibrary:
    """The loaded library."""

    def __init__(self, folder: Path, gpu: GpuProperties, total_bytes: int, context_bytes: int) -> None:
        if "torch" in sys.modules:
            raise RuntimeError("the phantom GPU must be loaded before torch")
        self._capability = gpu.capability
        os.environ["TRITON_LIBCUDA_PATH"] = str(folder)  # what torch.compile links its launchers to
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        os.environ["USE_PYTORCH_KERNEL_CACHE"] = "0"  # nothing of ours into the user's cache
        if gpu.capability in PREFER_CUDNN_ATTENTION:
            os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"  # its plans are made on the card itself
        ctypes.CDLL(str(folder / NVML), ctypes.RTLD_GLOBAL)
        self._library: Any = ctypes.CDLL(str(folder / DRIVER), ctypes.RTLD_GLOBAL)
        for name in ("refused", "assumed"):
            getattr(self._library, f"phantom_{name}").restype = ctypes.c_char_p
        for name in ("launches", "peak_bytes", "cudnn_plans", "workspace"):
            getattr(self._library, f"phantom_{name}").restype = ctypes.c_size_t
        description = Description(
            name=gpu.product.encode(), total_bytes=total_bytes, context_bytes=context_bytes,
            shared_per_block_bytes=gpu.shared_per_block_bytes,
            shared_per_processor_bytes=gpu.shared_per_processor_bytes,
            l2_bytes=gpu.l2_bytes, major=gpu.capability[0], minor=gpu.capability[1], num_processors=gpu.num_processors,
            threads_per_processor=gpu.threads_per_processor, blocks_per_processor=gpu.blocks_per_processor,
            bus_bits=gpu.bus_bits,
        )  # fmt: skip
        if self._library.phantom_describe(ctypes.byref(description)):
            raise MemoryError("no address space for the phantom GPU; is there a limit (ulimit -v)?")

    def use_cudnn(self, folder: Path) -> None:
        """Where the real cuDNN lies."""
        self._library.phantom_cudnn_folder(str(folder).encode())

    def use_kernels_for(self, compiled: list[str]) -> None:
        """Say for which processors the kernels were compiled ('sm_86'); the best one for this GPU would run."""
        version = best_kernels(compiled, self._capability)
        if not version:
            raise UsageError(
                f"this torch has no kernels for compute capability {self._capability[0]}.{self._capability[1]}",
                found=", ".join(compiled), hint="a torch that was built for this GPU; it would not run there either",
            )  # fmt: skip
        self._library.phantom_kernels_for(version)

    def refused(self) -> list[str]:
        """Names of the calls that were refused."""
        return list(self._names(self._library.phantom_refused))

    def assumed(self) -> list[str]:
        """What was answered by assumption."""
        return list(self._names(self._library.phantom_assumed))

    def workspaces(self) -> list[int]:
        """Addresses that were given to cuBLAS as workspaces."""
        found, index = [], 0
        while address := self._library.phantom_workspace(ctypes.c_size_t(index)):
            found.append(address)
            index += 1
        return found

    @property
    def num_launches(self) -> int:
        """Kernels that would have run."""
        return self._library.phantom_launches()

    @property
    def num_plans(self) -> int:
        """Plans that cuDNN made."""
        return self._library.phantom_cudnn_plans()

    def ask_at_reads(self, answer: Callable[[int, int, int, int], None]) -> None:
        """At every copy out of the device, call `answer(to, source, num_bytes, was_sent)`.

        What is at `to` is zero, or, when `was_sent`, what was last sent to `source` from the host.
        """
        self._reader = READER(answer)  # the library keeps only its address
        self._library.phantom_ask_at_reads(self._reader)

    @staticmethod
    def _names(ask: Callable[[ctypes.c_size_t], bytes | None]) -> Iterator[str]:
        index = 0
        while (name := ask(ctypes.c_size_t(index))) is not None:
            yield name.decode()
            index += 1


def best_kernels(compiled: Iterable[str], capability: tuple[int, int]) -> int:
    """86 for a GPU of capability 8.9 when there are kernels for 8.0, 8.6 and 9.0; 0 when none would run."""
    numbers = [int(digits) for name in compiled if (digits := name.removeprefix("sm_").rstrip("af")).isdigit()]
    own = 10 * capability[0] + capability[1]
    return max((number for number in numbers if number // 10 == capability[0] and number <= own), default=0)
