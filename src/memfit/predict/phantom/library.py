"""How is the library loaded into this process, told which GPU to be, and asked what happened? Before torch."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memfit.predict.phantom.build import DRIVER, NVML
from memfit.predict.phantom.gpus import GpuProperties


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
        os.environ["TRITON_LIBCUDA_PATH"] = str(folder)  # what torch.compile links its launchers to
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        ctypes.CDLL(str(folder / NVML), ctypes.RTLD_GLOBAL)
        self._library: Any = ctypes.CDLL(str(folder / DRIVER), ctypes.RTLD_GLOBAL)
        for name in ("refused", "assumed"):
            getattr(self._library, f"phantom_{name}").restype = ctypes.c_char_p
        for name in ("launches", "peak_bytes", "cudnn_plans", "workspace", "reads"):
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

    def answer_next(self, value: int) -> None:
        """The next small read from the device gives this number."""
        self._library.phantom_answer_next(ctypes.c_int64(value))

    def forget_answer(self) -> None:
        """No answer is waiting any more."""
        self._library.phantom_forget_answer()

    @staticmethod
    def _names(ask: Any) -> Iterator[str]:
        index = 0
        while (name := ask(ctypes.c_size_t(index))) is not None:
            yield name.decode()
            index += 1
