"""Cache of Python bytecode of a sandboxed child: the child appends it to a file, its parent puts it in place.

A prediction's child may not write outside of its folder, so Python could keep nothing of what it compiles there: in an
environment that was installed without bytecode, every prediction compiled torch's and other libraries' sources again.
Kept is what belongs to installed libraries, in the place where Python itself would put it; nothing of the user's own.
Where PYTHONDONTWRITEBYTECODE forbids that place and torch has none there, it is kept in memfit's own cache.
`SourceFileLoader._cache_bytecode` is replaced (read in CPython 3.11 to 3.14).
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import struct
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "MEMFIT_BYTECODE_FOLDER"
PREFIX = "bytecode-"
HEAD = struct.Struct("<IQ")
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_kept: list[int] = []


def own_folder() -> Path:
    """Memfit's own place for bytecode: below XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit" / "bytecode"


def bytecode_environment() -> dict[str, str]:
    """What a child's environment needs so that it does not compile torch anew each time; mostly nothing."""
    if not os.environ.get("PYTHONDONTWRITEBYTECODE") or sys.pycache_prefix:
        return {}
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or os.path.exists(importlib.util.cache_from_source(torch.origin)):
        return {}
    return {"PYTHONPYCACHEPREFIX": str(own_folder()), "PYTHONDONTWRITEBYTECODE": ""}


def spool_bytecode(folder: str) -> None:
    """From now on this process, and the probe process it starts, leave their bytecode in a file of this folder.

    The file is opened here, before a guard may forbid it; a folder that cannot be written leaves Python as it is.
    """
    if not folder or _kept:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(Path(folder) / f"{PREFIX}{os.getpid()}", flags, 0o600)
    except OSError:
        return
    _kept.append(descriptor)
    os.environ[VARIABLE] = folder
    lock, loader = threading.Lock(), importlib.machinery.SourceFileLoader

    def append(self: importlib.machinery.SourceFileLoader, source_path: str, cache_path: str, data: bytes) -> None:
        if is_of_a_library(cache_path):
            name = os.fsencode(cache_path)
            with lock, contextlib.suppress(OSError):
                _write(descriptor, HEAD.pack(len(name), len(data)) + name + bytes(data))

    loader._cache_bytecode = append  # type: ignore[attr-defined]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def is_spooling() -> bool:
    """Whether what is compiled goes to the file, and so nowhere that a guard would mind."""
    return bool(_kept)


def is_of_a_library(cache_path: str) -> bool:
    """Whether this is bytecode of an installed library, in the place where Python keeps it."""
    is_kept, place = os.path.basename(os.path.dirname(cache_path)) == "__pycache__", cache_path
    for prefix in (sys.pycache_prefix or "", str(own_folder())):
        if prefix and cache_path.startswith(prefix + os.sep):
            is_kept, place = True, cache_path.removeprefix(prefix)
    is_plain = os.path.normpath(cache_path) == cache_path and place.endswith(".pyc")
    return is_kept and is_plain and place.startswith((*_LIBRARIES, _OWN))


def keep_spooled(folder: Path) -> None:
    """Put what children left in this folder where Python looks for it."""
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            for name, data in _records(path.read_bytes()):
                if is_of_a_library(name):
                    _put(name, data)


def _records(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and bytecode, up to a last record that a killed process left unfinished."""
    start = 0
    while start + HEAD.size <= len(text):
        name_length, length = HEAD.unpack_from(text, start)
        body, end = start + HEAD.size + name_length, start + HEAD.size + name_length + length
        if end > len(text):
            return
        yield os.fsdecode(text[start + HEAD.size : body]), text[body:end]
        start = end


def _put(name: str, data: bytes) -> None:
    """As Python writes it: under another name, then renamed."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(name), exist_ok=True)
        draft = f"{name}.{os.getpid()}"
        Path(draft).write_bytes(data)
        os.replace(draft, name)


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
