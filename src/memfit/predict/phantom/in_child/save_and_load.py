"""Checkpoints while a script runs on the phantom GPU: what `torch.save` keeps, and what `torch.load` gives back.

The file holds only a line that says which checkpoint it was. Kept is a pickle in which every storage is described by
its place and size, with its values where they are known: those of small tensors of the host, and twins of the GPU's.
Loading makes each storage on the host and lets torch bring it to its place (`torch.serialization`, read in torch 2.14),
as with a real file. A file that was there before is loaded by torch itself.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast
from unittest.mock import patch

import torch

from memfit.predict.phantom.in_child.host_copies import MOST_BYTES
from memfit.predict.phantom.in_child.values import Values
from memfit.predict.sandbox.checkpoint_marks import leave_mark, number_in
from memfit.predict.sandbox.safetensors_files import SavedTensor, write_safetensors
from memfit.predict.sandbox.scratch_files import PathName

Restore = Callable[[torch.UntypedStorage, str], torch.UntypedStorage]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStorage:
    """One storage of a checkpoint."""

    location: str
    num_bytes: int
    values: torch.Tensor | None
    """Its bytes on the host; None where they are not known, or too many to keep."""


class PhantomCheckpoints:
    """Stands in for `torch.save` and `torch.load`."""

    def __init__(self, values: Values, note: Callable[[str, str], None]) -> None:
        self._values, self._note = values, note
        self._load: Callable[..., object] = torch.load
        self._saved: list[tuple[bytes, list[SavedStorage]]] = []

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Within, checkpoints are remembered instead of written."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.object(torch, "save", self.save))
            stack.enter_context(patch.object(torch, "load", self.load))
            if importlib.util.find_spec("safetensors") is not None:  # its own would copy every tensor to the host
                module = importlib.import_module("safetensors.torch")
                stack.enter_context(patch.object(module, "save_file", self.save_file))
            yield

    def save(self, value: object, file: object, *args: object, **kwargs: object) -> None:
        """Remember it, and leave a line in the file."""
        self._note("script", "a checkpoint was not written")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self._saved.append(self._pickled(value))
        leave_mark(file, len(self._saved) - 1)

    def save_file(
        self, tensors: Mapping[str, torch.Tensor], filename: PathName, metadata: Mapping[str, str] | None = None
    ) -> None:
        """safetensors.torch.save_file(): a file whose values are holes, but for those that are known."""
        self._note("script", "a checkpoint was not written")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            described = {name: self._described(tensor.detach()) for name, tensor in tensors.items()}
        write_safetensors(filename, described, metadata)

    def _described(self, tensor: torch.Tensor) -> SavedTensor:
        known = self._values.twins.view(tensor) if tensor.is_cuda else tensor
        known = None if tensor.nbytes > MOST_BYTES or known is None else known.contiguous().reshape(-1)
        values = None if known is None else known.view(torch.uint8).numpy().tobytes()
        kind = str(tensor.dtype).removeprefix("torch.")
        return SavedTensor(dtype=kind, shape=tuple(tensor.shape), num_bytes=tensor.nbytes, values=values)

    def load(self, file: object, map_location: object = None, *args: object, **kwargs: object) -> object:
        """What was saved in this run, or what torch finds in a file that was there before."""
        number = number_in(file)
        if number is None:
            return self._load(file, map_location, *args, **kwargs)
        text, storages = self._saved[number]
        restore = cast("Restore", torch.serialization._get_restore_location(map_location))
        made: dict[int, torch.UntypedStorage] = {}
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return _Reader(text, lambda index: self._made(storages[index], restore), made).load()

    def _pickled(self, value: object) -> tuple[bytes, list[SavedStorage]]:
        stream, storages = io.BytesIO(), list[SavedStorage]()
        _Writer(stream, storages, self._known).dump(value)
        return stream.getvalue(), storages

    def _known(self, storage: torch.UntypedStorage) -> torch.Tensor | None:
        """The bytes of a storage, as far as anybody knows them."""
        if storage.nbytes() > MOST_BYTES:
            return None
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # pyright: ignore[reportArgumentType]
        known = self._values.twins.view(whole) if whole.is_cuda else whole
        return None if known is None else known.clone()

    def _made(self, saved: SavedStorage, restore: Restore) -> torch.UntypedStorage:
        """The storage where it belongs, by way of the host."""
        here = torch.UntypedStorage(saved.num_bytes)
        if saved.values is not None:
            torch.empty(0, dtype=torch.uint8).set_(here).copy_(saved.values)  # pyright: ignore[reportArgumentType]
        there = restore(here, saved.location)
        if saved.values is not None and there.device.type == "cuda":
            whole = torch.empty(0, dtype=torch.uint8, device=there.device).set_(there)  # pyright: ignore[reportArgumentType]
            self._values.twins.keep(whole, saved.values)
        return there


class _Writer(pickle.Pickler):
    """Describes storages instead of writing them."""

    def __init__(
        self,
        stream: io.BytesIO,
        storages: list[SavedStorage],
        known: Callable[[torch.UntypedStorage], torch.Tensor | None],
    ) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._storages, self._known = storages, known
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.UntypedStorage] = []

    def persistent_id(self, obj: object) -> object:
        """('storage', its number, its type) for a storage; nothing for anything else."""
        if isinstance(obj, torch.storage.TypedStorage):
            return "storage", self._number(obj._untyped_storage), obj.dtype
        if isinstance(obj, torch.UntypedStorage):
            return "storage", self._number(obj), None
        return None

    def _number(self, storage: torch.UntypedStorage) -> int:
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self._storages)
            self._alive.append(storage)  # so that its identity stays its own
            location = str(torch.serialization.location_tag(storage))
            self._storages.append(
                SavedStorage(location=location, num_bytes=storage.nbytes(), values=self._known(storage))
            )
        return number


class _Reader(pickle.Unpickler):
    """Makes the storages that a `_Writer` described, each once."""

    def __init__(
        self, text: bytes, make: Callable[[int], torch.UntypedStorage], made: dict[int, torch.UntypedStorage]
    ) -> None:
        super().__init__(io.BytesIO(text))
        self._make, self._made = make, made

    def persistent_load(
        self, pid: tuple[str, int, torch.dtype | None]
    ) -> torch.UntypedStorage | torch.storage.TypedStorage:
        """A storage, typed where it was saved so."""
        _, number, dtype = pid
        if number not in self._made:
            self._made[number] = self._make(number)
        storage = self._made[number]
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
