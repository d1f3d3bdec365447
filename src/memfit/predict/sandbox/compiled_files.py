"""Files that compiled code opens by name (SQLite, Arrow, safetensors, tokenizers), redirected to the scratch folder.

Python's own functions are replaced by the scratch files; a library that opens a path in C++ or Rust would look for it
where it is not. Libraries are taken care of when they are imported.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sqlite3
import sqlite3.dbapi2
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar, cast
from unittest.mock import patch

from memfit.predict.sandbox.in_process_pool import InProcessPool
from memfit.predict.sandbox.scratch_files import PathName, ScratchFiles

READ, WRITE, OPEN = "read", "write", "open"
OPENERS: dict[str, dict[str, str]] = {
    "pyarrow": {"memory_map": READ, "OSFile": READ, "create_memory_map": WRITE},
    "pyarrow.lib": {"memory_map": READ, "OSFile": READ, "create_memory_map": WRITE},
    "pyarrow.parquet.core": {"read_schema": READ, "read_metadata": READ},
    "pyarrow.csv": {"read_csv": READ, "open_csv": READ, "write_csv": WRITE},
    "pyarrow.json": {"read_json": READ},
    "pyarrow.feather": {"read_table": READ, "read_feather": READ, "write_feather": WRITE},
    "safetensors": {"safe_open": READ, "serialize_file": WRITE},
    "safetensors.numpy": {"safe_open": READ, "serialize_file": WRITE},
    "safetensors.torch": {"safe_open": READ, "serialize_file": WRITE},
    "h5py": {"File": READ},
}
"""Functions whose first argument is a path; a mode that writes is seen in the other arguments."""
SECOND = ("serialize_file", "write_csv", "write_feather")
"""Functions whose second argument is the path."""
METHODS: dict[str, dict[str, dict[str, str]]] = {
    "tokenizers": {"Tokenizer": {"save": WRITE, "from_file": READ}},
    "pyarrow.parquet.core": {
        "ParquetWriter": {"__init__": WRITE},
        "ParquetFile": {"__init__": OPEN},
        "ParquetDataset": {"__init__": OPEN},
    },
}
"""Methods of classes: one that writes or opens takes the path after the object, one that reads makes an object."""
POOLS = {"multiprocess": ("Pool",), "multiprocess.pool": ("Pool",)}
Note = Callable[[str, str], None]
R = TypeVar("R")


@contextlib.contextmanager
def opening_for_compiled_code(files: ScratchFiles, note: Note) -> Iterator[None]:
    """Within, the libraries named above find what the script wrote."""
    finder = _Afterwards(files, note)
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connected(database: PathName, *args: object, **kwargs: object) -> sqlite3.Connection:
        is_file = not kwargs.get("uri") and not str(database).startswith(":") and str(database)
        return connect(files.for_writing(database, keep=True) if is_file else database, *args, **kwargs)

    for name in finder.names:
        if name in sys.modules:
            finder.change(sys.modules[name])
    with (
        patch.object(sqlite3, "connect", connected),
        patch.object(sqlite3.dbapi2, "connect", connected),  # the name under which SQLAlchemy knows it
        patch.object(sys, "meta_path", [finder, *sys.meta_path]),
    ):
        yield


class _Afterwards(importlib.abc.MetaPathFinder):
    """Changes a module right after it was imported."""

    names = frozenset({*OPENERS, *METHODS, *POOLS})

    def __init__(self, files: ScratchFiles, note: Note) -> None:
        self._files, self._note = files, note
        self._looking: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own specification, with our change behind its execution."""
        if name not in self.names or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.change(module)

        with contextlib.suppress(AttributeError):
            loader.exec_module = executed
        return spec

    def change(self, module: ModuleType) -> None:
        """Send the module's functions that open files to the scratch files."""
        for name, how in OPENERS.get(module.__name__, {}).items():
            if hasattr(module, name):
                self._change_function(module, name, how)
        for class_name, methods in METHODS.get(module.__name__, {}).items():
            for name, how in methods.items():
                self._change_method(getattr(module, class_name), name, how)
        for name in POOLS.get(module.__name__, ()):
            setattr(module, name, self._pool)

    def _change_function(self, module: ModuleType, name: str, how: str) -> None:
        original = getattr(module, name)
        if name in SECOND:

            def sent(content: object, path: PathName, *args: object, **kwargs: object) -> object:
                return self._sent(lambda place: original(content, place, *args, **kwargs), how)(path)
        else:
            sent = self._sent(original, how)
        setattr(module, name, sent)

    def _change_method(self, owner: type, name: str, how: str) -> None:
        original = getattr(owner, name)
        if how == READ:
            setattr(owner, name, staticmethod(self._sent(original, how)))
            return

        def of_object(this: object, path: PathName, *args: object, **kwargs: object) -> object:
            return self._sent(lambda place: original(this, place, *args, **kwargs), how)(path)

        setattr(owner, name, of_object)

    def _pool(self, *args: object, **kwargs: object) -> InProcessPool:
        self._note("processes", "a pool of processes did its work in this one")
        return cast("Callable[..., InProcessPool]", InProcessPool)(*args, **kwargs)

    def _sent(self, original: Callable[..., R], how: str) -> Callable[..., R]:
        def opened(path: PathName, *args: object, **kwargs: object) -> R:
            mode = next((value for value in (kwargs.get("mode"), *args) if isinstance(value, str)), "r")
            writes = how == WRITE or any(letter in mode for letter in "wax+")
            with contextlib.suppress(TypeError):
                path = self._files.for_writing(path, keep="w" not in mode) if writes else self._files.seen(path)
            return original(path, *args, **kwargs)

        return opened
