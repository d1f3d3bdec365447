"""Host copies of the values of small tensors on the phantom GPU.

A twin is host memory as large as one storage on the device, so that all views of that storage share it, as they do on
the device. It is kept under the identity of the storage and dropped with it: a weak reference keeps the identity from
being used again (`torch.multiprocessing.reductions.StorageWeakRef`, read in torch 2.14).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

MOST_BYTES = 16 * 1024**2
"""Of one storage: a mask of 4,096 x 4,096 just fits."""
TIDY_EVERY = 512
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Twin:
    """The host's copy of one storage."""

    __slots__ = ("assumed", "reference", "storage")

    def __init__(self, reference: StorageWeakRef, storage: torch.UntypedStorage, assumed: str) -> None:
        self.reference, self.storage = reference, storage
        self.assumed = assumed
        """Why its values are an assumption; empty when they are what a GPU would have."""


class Twins:
    """All twins."""

    def __init__(self) -> None:
        self._by_storage: dict[int, Twin] = {}
        self._tidy_at = TIDY_EVERY

    def find(self, tensor: torch.Tensor) -> Twin | None:
        """The twin of a tensor's storage."""
        tensor = _arrived(tensor)
        if not self._by_storage or not _has_storage(tensor):
            return None
        return self._by_storage.get(tensor.untyped_storage()._cdata)

    def view(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The same view on the host: same shape, same steps, true values."""
        twin = self.find(tensor)
        return None if twin is None else _view(_arrived(tensor), twin.storage)

    def keep(self, tensor: torch.Tensor, values: torch.Tensor, assumed: str = "") -> None:
        """From now on it is known what this tensor holds."""
        storage = tensor.untyped_storage()
        twin = self._by_storage.get(storage._cdata)
        if twin is None:
            if len(self._by_storage) >= self._tidy_at:
                self._tidy()
            host = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            twin = Twin(StorageWeakRef(storage), host, assumed)
            self._by_storage[storage._cdata] = twin
        elif twin.storage.nbytes() != storage.nbytes():
            self.forget(tensor)
            self.keep(tensor, values, assumed)
            return
        twin.assumed = twin.assumed or assumed
        _view(tensor, twin.storage).copy_(values)

    def forget(self, tensor: torch.Tensor) -> None:
        """What this tensor holds is no longer known."""
        if self._by_storage and _has_storage(tensor):
            self._by_storage.pop(tensor.untyped_storage()._cdata, None)

    def _tidy(self) -> None:
        self._by_storage = {key: twin for key, twin in self._by_storage.items() if not twin.reference.expired()}
        self._tidy_at = 2 * len(self._by_storage) + TIDY_EVERY


def _arrived(tensor: torch.Tensor) -> torch.Tensor:
    """What a functional collective's result stands for (`AsyncCollectiveTensor`); any other tensor itself."""
    return getattr(tensor, "elem", tensor) if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def stands_for_others(tensor: torch.Tensor) -> bool:
    """Whether this is a tensor within `vmap` or `grad`, which has no storage of its own (torch 2.14)."""
    library: Any = torch._C
    return library._functorch.is_functorch_wrapped_tensor(tensor)


def what_it_stands_for(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor below all transforms of `torch.func` (torch 2.14)."""
    library: Any = torch._C
    while stands_for_others(tensor):
        tensor = library._functorch.get_unwrapped(tensor)
    return tensor


def _has_storage(tensor: torch.Tensor) -> bool:
    """Whether this is a tensor with a storage that can be known."""
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not stands_for_others(tensor)


def _view(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())  # pyright: ignore[reportArgumentType]


def can_be_kept(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of the kind that has twins at all."""
    return (
        _has_storage(tensor)
        and not tensor.requires_grad
        and not (tensor.is_conj() or tensor.is_neg())
        and 0 < tensor.untyped_storage().nbytes() <= MOST_BYTES
        and tensor.numel() * tensor.element_size() <= MOST_BYTES
    )
