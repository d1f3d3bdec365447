"""`torch.cuda.FloatTensor` and its kin, which a build without CUDA refuses: made and cast to on the pretended GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

TYPES = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32,
    "ShortTensor": torch.int16, "CharTensor": torch.int8, "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip


class CudaType:
    """One of these types: called with sizes it gives memory, called with numbers or an array a copy of them."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.__name__, self.__module__, self.dtype = name, "torch.cuda", dtype

    def __call__(self, *args: object, device: torch.device | str | int = "cuda") -> torch.Tensor:
        sizes = [arg for arg in args if isinstance(arg, int)]
        if len(sizes) == len(args):
            return torch.empty(sizes or (0,), dtype=self.dtype, device=device)
        if isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=self.dtype, device=device)
        if isinstance(args[0], torch.Tensor):
            return args[0].to(device=device, dtype=self.dtype)
        return torch.tensor(args[0], dtype=self.dtype).to(device)


def _made_on_gpu(cls: type, *args: object, **kwargs: object) -> torch.Tensor:
    """`torch.Tensor(...)`, which no default device reaches."""
    made = torch._C.TensorBase.__new__(cls, *args, **kwargs)
    return made.cuda() if cls is torch.Tensor else made


@contextlib.contextmanager
def cuda_types() -> Iterator[None]:
    """Within, these types exist, and `tensor.type(...)` knows them by object and by name."""
    kinds = {name: CudaType(name, dtype) for name, dtype in TYPES.items()}
    by_name = {f"torch.cuda.{name}": kind for name, kind in kinds.items()}
    original: Any = torch.Tensor.type

    def cast(tensor: torch.Tensor, dtype: object = None, *args: object, **kwargs: object) -> object:
        kind = dtype if isinstance(dtype, CudaType) else by_name.get(dtype) if isinstance(dtype, str) else None
        if kind is not None:
            return tensor.to(device="cuda", dtype=kind.dtype)
        return original(tensor, *(() if dtype is None else (dtype,)), *args, **kwargs)

    set_default: Any = torch.set_default_tensor_type
    undo = contextlib.ExitStack()

    def made_by_default(kind: object, /) -> None:
        """From here on tensors are made on the GPU, or on the host again."""
        kind = by_name.get(kind, kind) if isinstance(kind, str) else kind
        undo.close()
        if isinstance(kind, CudaType):
            torch.set_default_dtype(kind.dtype)
            torch.set_default_device("cuda")
            undo.enter_context(patch.object(torch.Tensor, "__new__", _made_on_gpu))
            undo.callback(torch.set_default_device, None)
            return
        set_default(kind)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(torch, "set_default_tensor_type", made_by_default))
        stack.callback(undo.close)
        for name, kind in kinds.items():
            stack.enter_context(patch.object(torch.cuda, name, kind, create=True))
        stack.enter_context(patch.object(torch.Tensor, "type", cast))
        yield
