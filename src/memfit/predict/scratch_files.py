"""How is a user's script kept from changing anything: files, folders, other processes?

What it opens for writing is opened in a scratch folder instead, and read from there later; removing, renaming and
making folders happen there too, or not at all. Behind this stands an audit hook of the interpreter, which sees
every such call of Python code, also those that went around: it refuses. The hook cannot be removed, so this belongs
in a process of its own.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import multiprocessing.process
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HARMLESS = ("/dev/", "/proc/self/")
STARTS_PROCESS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "os.spawn"}
CHANGES = {
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.setxattr", "shutil.rmtree", "shutil.move",
}  # fmt: skip


class ProcessRefused(PermissionError):
    """The script wanted to start a process."""


class ScratchFiles:
    """Sends what a script writes to a folder of our own."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.redirected: dict[str, str] = {}
        self._active = False
        self._open, self._os_open = builtins.open, os.open
        self._stat, self._lstat, self._listdir, self._scandir = os.stat, os.lstat, os.listdir, os.scandir

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Within, nothing outside the folder is changed and no process is started."""
        sys.addaudithook(self._audit)
        replacements: list[tuple[Any, str, Any]] = [
            (builtins, "open", self.open),
            (io, "open", self.open),
            (os, "open", self.os_open),
            (os, "mkdir", self.mkdir),
            (os, "makedirs", self.mkdir),
            (os, "remove", self.forget),
            (os, "unlink", self.forget),
            (os, "rmdir", self.forget),
            (shutil, "rmtree", self.forget),
            (os, "rename", self.rename),
            (os, "replace", self.rename),
            (os, "chmod", self.ignore),
            (os, "utime", self.ignore),
            (os, "symlink", self.ignore),
            (os, "link", self.ignore),
            (os, "stat", self.stat),
            (os, "lstat", self.lstat),
            (os, "listdir", self.listdir),
            (os, "scandir", self.scandir),
            (multiprocessing.process.BaseProcess, "start", _refuse_process),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, function in replacements:
                stack.enter_context(patch.object(owner, name, function))
            stack.enter_context(patch.object(sys, "dont_write_bytecode", True))
            stack.enter_context(patch.object(tempfile, "tempdir", self.folder))
            self._active = True
            try:
                yield
            finally:
                self._active = False

    # ---- what the script calls instead -----------------------------------------------------------------------

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """open(), in the scratch folder when it would write, or when the file was written there before."""
        if isinstance(file, int):
            return self._open(file, mode, *args, **kwargs)
        writes = any(letter in mode for letter in "wax+")
        return self._open(self._where(file, writes), mode, *args, **kwargs)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """os.open(), likewise."""
        return self._os_open(self._where(path, bool(flags & WRITE_FLAGS)), flags, mode, dir_fd=dir_fd)

    def mkdir(self, name: Any, mode: int = 0o777, *args: Any, **kwargs: Any) -> None:
        """Make the folder in the scratch folder."""
        if not os.path.isdir(name):
            self._make_folder(self._inside(name))

    def forget(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Removing: only what was written to the scratch folder goes."""
        name = os.path.abspath(os.fsdecode(path))
        inside = name if name.startswith(self.folder) else self._inside(name)
        for known in [each for each in self.redirected if each == name or each.startswith(name + os.sep)]:
            del self.redirected[known]
        with contextlib.suppress(OSError):
            self._remove(inside)

    def rename(self, source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        """Renaming: the target is what was written under the source's name."""
        written = self.redirected.pop(os.path.abspath(os.fsdecode(source)), None)
        if written is not None:
            moved = self._where(target, writes=True)
            _RENAME(written, moved)

    def ignore(self, *args: Any, **kwargs: Any) -> None:
        """Leave it."""

    def stat(self, path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        """os.stat(), and with it exists(), getsize() and the like: of what was written, where that is."""
        return self._stat(self._seen(path), *args, **kwargs)

    def lstat(self, path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        """os.lstat(), likewise."""
        return self._lstat(self._seen(path), *args, **kwargs)

    def listdir(self, path: Any = ".") -> list[Any]:
        """os.listdir(), with what was written there."""
        if isinstance(path, int):
            return self._listdir(path)
        start = os.path.abspath(os.fsdecode(path)) + os.sep
        below = {name.removeprefix(start).partition(os.sep)[0] for name in self.redirected if name.startswith(start)}
        return sorted({*self._listdir(self._seen(path)), *below})

    def scandir(self, path: Any = ".") -> Any:
        """os.scandir(), of a folder the script made: where it was made."""
        return self._scandir(self._seen(path))

    # ---- where things go -------------------------------------------------------------------------------------

    def _seen(self, file: Any) -> Any:
        """Where something is that the script asks about: a file it wrote, or a folder it made."""
        if isinstance(file, int):
            return file
        path = os.path.abspath(os.fsdecode(file))
        if path in self.redirected:
            return self.redirected[path]
        inside = self._inside(path)
        return inside if not _exists(self._stat, path) and _exists(self._stat, inside) else file

    def _where(self, file: Any, writes: bool) -> Any:
        try:
            path = os.path.abspath(os.fsdecode(file))
        except TypeError:
            return file
        if path.startswith(self.folder) or path.startswith(HARMLESS):
            return file
        if not writes:
            return self.redirected.get(path, file)
        inside = self._inside(path)
        self._make_folder(os.path.dirname(inside))
        self.redirected[path] = inside
        return inside

    def _inside(self, path: Any) -> str:
        return os.path.join(self.folder, os.path.abspath(os.fsdecode(path)).lstrip(os.sep))

    def _remove(self, path: str) -> None:
        if not stat.S_ISDIR(self._lstat(path).st_mode):
            _UNLINK(path)
            return
        for name in self._listdir(path):
            self._remove(os.path.join(path, name))
        _RMDIR(path)

    def _make_folder(self, path: str) -> None:
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        self._active, before = False, self._active
        try:
            for folder in reversed(missing):
                _MKDIR(folder)
        finally:
            self._active = before

    # ---- the last line of defence ----------------------------------------------------------------------------

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event in STARTS_PROCESS:
            raise ProcessRefused(f"memfit predict starts no processes ({event} {str(args[0])[:80] if args else ''})")
        if (event == "open" and isinstance(args[2], int) and args[2] & WRITE_FLAGS) or (event in CHANGES and args):
            self._refuse_outside(event, args[0])

    def _refuse_outside(self, event: str, path: Any) -> None:
        if isinstance(path, int):
            return
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith(self.folder) and not name.startswith(HARMLESS):
            raise PermissionError(f"memfit predict writes no files ({event} {name})")


def _exists(stat: Callable[[str], Any], path: str) -> bool:
    try:
        stat(path)
    except (OSError, ValueError):
        return False
    return True


def _refuse_process(process: Any) -> None:
    """`multiprocessing` starts processes without telling an audit hook."""
    raise ProcessRefused(f"memfit predict starts no processes (multiprocessing, {process.name})")


_MKDIR, _RENAME, _UNLINK, _RMDIR = os.mkdir, os.replace, os.unlink, os.rmdir
