"""Checkpoints while a script is predicted: what `torch.save` keeps, and what `torch.load` gives back in the same run.

Nothing is saved but a line that says which checkpoint it was, so that the file exists, can be renamed and listed, and
is found again. Kept is a pickle with the geometry of every storage (`copies`), and its values where they are known:
a checkpoint keeps no tensor alive, and loading it makes tensors as loading a real one would. A file that was there
before is read by torch itself (mapped, not copied, where that works), and turned into fake tensors with the values of
small ones. Tensors that a real run leaves in the mapped file (`mmap=True`, safetensors) are not the allocator's: they
are made within `outside()`, and what copies them makes tensors that count.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from memfit.predict.fake.values.compute import small_copy
from memfit.predict.fake.values.copies import Reduced, Stored, forget_stored, is_parameter, read_to, rebuild, reduced
from memfit.predict.observe.known_values import shadow_of, storage_of
from memfit.predict.sandbox.checkpoint_marks import leave_mark, number_in
from memfit.predict.sandbox.safetensors_files import SavedTensor, write_safetensors
from memfit.predict.sandbox.scratch_files import PathName

Outside = Callable[[], contextlib.AbstractContextManager[object]]
Stay = Callable[[torch.UntypedStorage, str], torch.UntypedStorage]
"""Where `torch.load` puts a storage that was saved at a place."""


class Checkpoints:
    """Stands in for `torch.save` and `torch.load`."""

    def __init__(self, note: Callable[[str, str], None], outside: Outside = contextlib.nullcontext) -> None:
        self._note, self._outside = note, outside
        self._load: Callable[..., object] = torch.load
        self._saved: list[bytes] = []

    def save(self, value: object, file: object, *args: object, **kwargs: object) -> None:
        """Remember geometry, and leave a line in the file."""
        self._note("script", "a checkpoint was not written")
        self._saved.append(pickled(value))
        leave_mark(file, len(self._saved) - 1)

    def save_file(
        self, tensors: Mapping[str, torch.Tensor], filename: PathName, metadata: Mapping[str, str] | None = None
    ) -> None:
        """safetensors.torch.save_file(): a file whose values are holes, but for those that are known."""
        self._note("script", "a checkpoint was not written")
        write_safetensors(filename, {name: _described(tensor) for name, tensor in tensors.items()}, metadata)

    def save_model(
        self,
        model: torch.nn.Module,
        filename: PathName,
        metadata: Mapping[str, str] | None = None,
        force_contiguous: bool = True,
    ) -> None:
        """safetensors.torch.save_model(): a tensor that several names share is there under each of them."""
        self.save_file(model.state_dict(), filename, metadata)

    def load_model(
        self, model: torch.nn.Module, filename: PathName, strict: bool = True, device: str | int = "cpu", **how: object
    ) -> tuple[set[str], list[str]]:
        """safetensors.torch.load_model(): which names share memory is asked of fake tensors, not of addresses."""
        load_file = importlib.import_module("safetensors.torch").load_file
        found: Mapping[str, torch.Tensor] = load_file(filename, device=device, **how)
        state = model.state_dict()
        missing, unexpected = model.load_state_dict(found, strict=False)
        read = {id(storage_of(tensor)) for name, tensor in state.items() if name in found}
        absent = {name for name in missing if id(storage_of(state[name])) not in read}
        if strict and (absent or unexpected):
            raise RuntimeError(f"Error(s) in loading state_dict for {type(model).__name__}: {absent or unexpected}")
        return absent, unexpected

    def load(self, file: object, map_location: object = None, *args: object, **kwargs: object) -> object:
        """Tensors as they were saved, or whatever torch finds in the file."""
        number = number_in(file)
        if number is None:
            return self._load_file(file, map_location, *args, **kwargs)
        with read_to(map_location), self._outside() if kwargs.get("mmap") else contextlib.nullcontext():
            return pickle.loads(self._saved[number])

    def _load_file(self, file: object, map_location: object, *args: object, **kwargs: object) -> object:
        """A checkpoint that was there before, as fake tensors."""
        locations: dict[int, str] = {}

        def stay(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
            locations[storage.data_ptr()] = location
            return storage

        with _disable_current_modes():
            value = self._read(file, stay, *args, **kwargs)
            if map_location is None:
                _check_places(locations.values())
        with self._outside() if kwargs.get("mmap") else contextlib.nullcontext():
            return _as_fakes(value, locations, map_location)

    def _read(self, file: object, stay: Stay, *args: object, **kwargs: object) -> object:
        if isinstance(file, (str, os.PathLike)) and not kwargs.get("mmap"):
            with contextlib.suppress(RuntimeError, ValueError, OSError):
                return self._load(os.fspath(file), stay, *args, **{**kwargs, "mmap": True})
        return self._load(file, stay, *args, **kwargs)


def _described(tensor: torch.Tensor) -> SavedTensor:
    """A tensor of a file in the format of safetensors."""
    known = shadow_of(tensor) if isinstance(tensor, FakeTensor) else small_copy(tensor)
    with _disable_current_modes():
        flat = None if known is None else known.detach().contiguous().reshape(-1).view(torch.uint8)
        values = None if flat is None else flat.numpy().tobytes()
    kind = str(tensor.dtype).removeprefix("torch.")
    return SavedTensor(dtype=kind, shape=tuple(tensor.shape), num_bytes=tensor.nbytes, values=values)


class SafeOpened:
    """Stands in for `safetensors.safe_open`: its compiled code makes real tensors, which become fake ones here.

    In a thread without modes (loaders of libraries have such) the tensors stay as they are.
    """

    open: Any = None
    """The class of the library."""
    outside: Any = contextlib.nullcontext
    """Within it, tensors on the host are made that lie in the mapped file."""

    def __init__(self, path: object, framework: str = "pt", device: object = "cpu", **options: object) -> None:
        self._device = device
        self._file = self.open(path, framework=framework, device="cpu", **options)

    def __enter__(self) -> SafeOpened:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> object:
        return self._file.__exit__(*error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> object:
        """One tensor of the file."""
        return self._made(lambda: self._file.get_tensor(name))

    def get_tensors(self) -> object:
        """All of them, by their names."""
        return self._made(lambda: self._file.get_tensors())

    def get_slice(self, name: str) -> object:
        """One tensor of which parts can be asked for."""
        return _Slice(self._file.get_slice(name), self._made)

    def _made(self, read: Callable[[], object]) -> object:
        if _get_current_dispatch_mode() is None:
            return read()
        with _disable_current_modes():
            found = read()
        place = f"cuda:{self._device}" if isinstance(self._device, int) else str(self._device)
        with type(self).outside():
            return _as_fakes(found, {}, place)


class Sliceable(Protocol):
    """A tensor in a file."""

    def __getitem__(self, index: object, /) -> object: ...


class _Slice:
    """Part of a tensor of a file, by its indices."""

    def __init__(self, part: Sliceable, made: Callable[[Callable[[], object]], object]) -> None:
        self._part, self._made = part, made

    def __getattr__(self, name: str) -> object:
        return getattr(self._part, name)

    def __getitem__(self, index: object) -> object:
        return self._made(lambda: self._part[index])


def _as_fakes(value: object, locations: dict[int, str], map_location: object) -> object:
    """Real tensors anywhere in a value, as fake ones with the values of small ones."""
    with _disable_current_modes():
        stream = io.BytesIO()
        _RealPickler(stream, locations).dump(value)
    with read_to(map_location):
        return pickle.loads(stream.getvalue())


class _Pickler(pickle.Pickler):
    """Describes tensors of every kind, also those that have their own way of being pickled."""

    def reducer_override(self, value: object) -> Reduced:
        """Tensors are described; anything else goes its own way."""
        return reduced(value) if isinstance(value, torch.Tensor) else NotImplemented


class _RealPickler(pickle.Pickler):
    """Describes real tensors, with the place they were saved at and the values of small ones."""

    def __init__(self, stream: io.BytesIO, locations: dict[int, str]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._locations = locations
        self._stored: dict[int, Stored] = {}

    def reducer_override(self, value: object) -> Reduced:
        """Tensors are described; anything else goes its own way."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.layout is not torch.strided:
            return NotImplemented
        shape = value.dtype, tuple(value.size()), tuple(value.stride()), value.storage_offset()
        return rebuild, (self._storage_of(value), *shape, is_parameter(value), value.requires_grad, {})

    def _storage_of(self, tensor: torch.Tensor) -> Stored:
        storage = tensor.untyped_storage()
        pointer = storage.data_ptr()
        if pointer not in self._stored or not pointer:
            location = self._locations.get(pointer, str(tensor.device))
            count = storage.nbytes() // tensor.element_size()
            values = small_copy(tensor.detach().as_strided((count,), (1,), 0))
            raw = None if values is None else values.contiguous().view(torch.uint8).numpy().tobytes()
            self._stored[pointer] = Stored(storage.nbytes(), location, raw, "")
        return self._stored[pointer]


def _check_places(locations: Iterable[str]) -> None:
    """Without a `map_location`, torch refuses what was saved on a GPU where there is none."""
    if any(location.startswith("cuda") for location in locations) and not torch.cuda.is_available():
        raise RuntimeError(
            "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. "
            "Please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU."
        )


def pickled(value: object) -> bytes:
    """A checkpoint without its tensors' memory."""
    stream = io.BytesIO()
    forget_stored()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    forget_stored()
    return stream.getvalue()
