"""Scratch file system: what a predicted script writes or removes, without touching the user's files.

What the script writes lies in an upper folder, under its full path; what it removes is remembered as removed;
everything else is read where it is. All functions of Python that take a path are sent to the place where that path is
now. Behind this stands an audit hook of the interpreter, which sees every such call of Python code, also those that
went around: it refuses. The hook cannot be removed, so this belongs in a process of its own. Compiled code that opens
files by itself gets the place (compiled_files), or kept from writing by the kernel (read_only).
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import IO, Any, cast, overload
from unittest.mock import patch

from memfit.predict.child.bytecode import is_spooling
from memfit.predict.sandbox.merged_folders import Entry, Listing

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HARMLESS = ("/dev/", "/proc/self/")
STARTS_PROCESS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "os.spawn"}
CHANGES = {
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.setxattr",
}  # fmt: skip
CHANGED = {"os.rename": slice(2), "os.link": slice(1, 2), "os.symlink": slice(1, 2)}
"""Which arguments of an event name what is changed; the first, if none are given here."""
ASKS = ("stat", "lstat", "access", "statvfs", "readlink", "chdir", "listxattr", "getxattr", "pathconf")
MARKS = ("chmod", "lchmod", "chown", "lchown", "utime", "setxattr", "removexattr")
MOST_COPIED_BYTES = 1024**3
PathName = str | bytes | os.PathLike[str] | os.PathLike[bytes]
PathOrHandle = PathName | int
_OPENERS = (("tarfile", "bltn_open"), ("lzma", "_builtin_open"), ("bz2", "_builtin_open"))
"""Modules that took `open` to themselves when they were imported."""
_TABLES = (("numpy.lib._datasource", "_file_openers", "_file_openers"),)
"""Dictionaries that hold it: module and the attributes that lead there (`numpy.savetxt`)."""


def _tables() -> Iterator[dict[object, object]]:
    for module, *names in _TABLES:
        found = functools.reduce(lambda owner, name: getattr(owner, name, None), names, sys.modules.get(module))
        if isinstance(found, dict):
            yield found


class ProcessRefused(PermissionError):
    """The script wanted to start a process."""


class ScratchFiles:
    """Sends what a script writes to a folder of our own."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self._upper_folder = os.path.join(self.folder, ".files")
        self.redirected: dict[str, str] = {}
        """Files written so far, and where they lie."""
        self._removed: set[str] = set()
        self._starting = threading.local()
        names = [*ASKS, *MARKS, "open", "mkdir", "rmdir", "unlink", "rename", "link", "symlink", "truncate", "listdir"]
        self._os: dict[str, Any] = {
            name: getattr(os, name) for name in [*names, "scandir", "getcwd"] if hasattr(os, name)
        }
        self._open: Callable[..., IO[Any]] = builtins.open

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Within, nothing outside the folder is changed and no process is started."""
        self._make_folders(self._upper_folder)
        _listen()
        with contextlib.ExitStack() as stack:
            for owner, name, function in self._replacements():
                stack.enter_context(patch.object(owner, name, function))
            for table in _tables():
                held = {key: self.open for key, value in table.items() if value is self._open}
                stack.enter_context(patch.dict(table, held))
            if not is_spooling():
                stack.enter_context(patch.object(sys, "dont_write_bytecode", True))
            stack.enter_context(patch.object(tempfile, "tempdir", self.folder))
            _GUARDS.append(self)
            try:
                yield
            finally:
                _GUARDS.remove(self)

    def _replacements(self) -> list[tuple[object, str, object]]:
        ours = {
            "open": self.os_open, "mkdir": self.mkdir, "remove": self.unlink, "unlink": self.unlink,
            "rmdir": self.rmdir, "rename": self.rename, "replace": self.rename, "link": self.link,
            "symlink": self.symlink, "truncate": self.truncate, "listdir": self.listdir,
            "scandir": self.scandir, "getcwd": self.getcwd,
        }  # fmt: skip
        ours |= {name: partial(self._asked, name) for name in ASKS if name in self._os}
        ours |= {name: partial(self._marked, name) for name in MARKS if name in self._os}
        openers = [(sys.modules[m], name, self.open) for m, name in _OPENERS if hasattr(sys.modules.get(m), name)]
        return [
            (builtins, "open", self.open), (io, "open", self.open), (io, "open_code", self.open_code),
            (shutil, "rmtree", self.rmtree), *openers,
            *((os, name, function) for name, function in ours.items()),
        ]  # fmt: skip

    # ---- files -----------------------------------------------------------------------------------------------------

    def open(self, file: PathOrHandle, mode: str = "r", *args: object, **kwargs: object) -> IO[str] | IO[bytes]:
        """open(), in the upper folder when it would write."""
        if isinstance(file, int):
            return self._open(file, mode, *args, **kwargs)
        if not any(letter in mode for letter in "wax+"):
            return self._open(self.seen(file), mode, *args, **kwargs)
        if kwargs.get("opener") is not None or len(args) > 5:  # a temporary file: its folder is named, not itself
            return self._open(self._folder_for_writing(file), mode, *args, **kwargs)
        if "x" in mode and self.exists(file):
            raise _error(FileExistsError, errno.EEXIST, file)
        self._refuse_folder(file)
        if "r" in mode:
            self._needed(file)
        return self._open(self.for_writing(file, keep="w" not in mode), mode, *args, **kwargs)

    def open_code(self, path: str) -> object:
        """io.open_code(): a program that the script wrote and runs (`runpy.run_path`)."""
        return self._open(self.seen(path), "rb")

    def os_open(self, path: PathName, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """os.open(), likewise."""
        if dir_fd is not None:
            return self._os["open"](path, flags, mode, dir_fd=dir_fd)
        if not flags & WRITE_FLAGS:
            return self._os["open"](self.seen(path), flags, mode)
        if flags & os.O_CREAT and flags & os.O_EXCL and self.exists(path):
            raise _error(FileExistsError, errno.EEXIST, path)
        if not flags & os.O_CREAT and not self.exists(path):
            raise _error(FileNotFoundError, errno.ENOENT, path)
        self._refuse_folder(path)
        return self._os["open"](self.for_writing(path, keep=not flags & os.O_TRUNC), flags, mode)

    def truncate(self, path: PathOrHandle, length: int) -> None:
        """os.truncate()."""
        if isinstance(path, int):
            self._os["truncate"](path, length)
            return
        self._needed(path)
        self._refuse_folder(path)
        self._os["truncate"](self.for_writing(path, keep=True), length)

    def unlink(self, path: PathName, *, dir_fd: int | None = None) -> None:
        """os.remove(): what was there before is only remembered as removed."""
        if dir_fd is not None:
            self._os["unlink"](path, dir_fd=dir_fd)
            return
        place = self._needed(path)
        if stat.S_ISDIR(self._os["lstat"](place).st_mode):
            raise _error(IsADirectoryError, errno.EISDIR, path)
        self._take_away(path, place)

    def rename(self, source: PathName, target: PathName, **folders: object) -> None:
        """os.rename() and os.replace()."""
        if any(value is not None for value in folders.values()):
            self._os["rename"](source, target, **folders)
            return
        self._needed(source)
        if self.virtual(source) == self.virtual(target):
            return
        if self.exists(target):
            self._make_way(self._is_folder(source), target)
        self._bring_up(self.virtual(source))
        moved = self.for_writing(source, keep=True)
        self._os["rename"](moved, self.for_writing(target, keep=False))
        self.redirected.pop(self.virtual(source), None)
        self._forget(source)

    def _bring_up(self, virtual: str) -> None:
        """A folder that is moved takes along what was there before, also where some of it was changed already."""
        place, upper = self.seen(virtual), self._upper(virtual)
        if upper == virtual or not stat.S_ISDIR(self._os["lstat"](place).st_mode):
            return
        self._make_folders(upper)
        for name in self.listdir(virtual):
            below = os.path.join(virtual, name)
            self._bring_up(below)
            if not _is_there(self._os["lstat"], self._upper(below)):
                self._copy(self.seen(below), self._upper(below))

    def _is_folder(self, name: PathName) -> bool:
        return stat.S_ISDIR(self._os["stat"](self.seen(name)).st_mode)

    def _make_way(self, is_folder: bool, target: PathName) -> None:
        """What a rename does to its target: an empty folder gives way to a folder, a file to a file."""
        if is_folder and not self._is_folder(target):
            raise _error(NotADirectoryError, errno.ENOTDIR, target)
        if not is_folder and self._is_folder(target):
            raise _error(IsADirectoryError, errno.EISDIR, target)
        if is_folder:
            self.rmdir(target)

    def link(self, source: PathName, target: PathName, **options: object) -> None:
        """os.link(): a copy, for the two names are on different sides."""
        if self.exists(target):
            raise _error(FileExistsError, errno.EEXIST, target)
        self._copy(self._needed(source), self.for_writing(target, keep=False))

    def symlink(self, source: PathName, target: PathName, target_is_directory: bool = False, **options: object) -> None:
        """os.symlink(): to where the source is now."""
        if self.exists(target):
            raise _error(FileExistsError, errno.EEXIST, target)
        name = os.fsdecode(source)
        place = self.for_writing(target, keep=False)
        if not os.path.isabs(name):
            absolute = os.path.join(os.path.dirname(self.virtual(target)), name)
            name = name if _is_there(self._os["lstat"], self._upper(absolute)) else self.seen(absolute)
        else:
            name = self.seen(name)
        self._os["symlink"](name, place)

    # ---- folders ---------------------------------------------------------------------------------------------------

    def mkdir(self, path: PathName, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """os.mkdir()."""
        if dir_fd is not None:
            self._os["mkdir"](path, mode, dir_fd=dir_fd)
            return
        if self.exists(path):
            raise _error(FileExistsError, errno.EEXIST, path)
        self._os["mkdir"](self.for_writing(path, keep=False))
        self.redirected.pop(self.virtual(path), None)

    def rmdir(self, path: PathName, *, dir_fd: int | None = None) -> None:
        """os.rmdir(): only an empty folder goes."""
        if dir_fd is not None:
            self._os["rmdir"](path, dir_fd=dir_fd)
            return
        place = self._needed(path)
        if not stat.S_ISDIR(self._os["lstat"](place).st_mode):
            raise _error(NotADirectoryError, errno.ENOTDIR, path)
        if self.listdir(path):
            raise _error(OSError, errno.ENOTEMPTY, path)
        self._take_away(path, place)

    def rmtree(self, path: PathName, ignore_errors: bool = False, *args: object, **kwargs: object) -> None:
        """shutil.rmtree()."""
        if not _is_folder(self._os["lstat"], self.seen(path)):
            if ignore_errors:
                return
            self._os["listdir"](self._needed(path))  # raises: this is no folder
        self._take_away(path, self.seen(path))

    def listdir(self, path: PathOrHandle = ".") -> list[str]:
        """os.listdir(), with what was written there and without what was removed."""
        if isinstance(path, int):
            return self._os["listdir"](path)
        return [entry.name for entry in self._entries(path)]

    def scandir(self, path: PathOrHandle = ".") -> object:
        """os.scandir(), likewise."""
        return self._os["scandir"](path) if isinstance(path, int) else Listing(self._entries(path))

    def getcwd(self) -> str:
        """os.getcwd(), under the name that the script knows."""
        return self._back(self._os["getcwd"]())

    def _entries(self, path: PathName) -> list[Entry]:
        shown, virtual = os.fsdecode(path), self.virtual(path)
        found: dict[str, Entry] = {}
        upper = self._upper(virtual)
        lower = [virtual] if not self._is_removed(virtual) else []
        for folder in [*lower, *([upper] if upper != virtual else [])]:
            if _is_there(self._os["lstat"], folder):
                with self._os["scandir"](folder) as entries:
                    found |= {entry.name: Entry(entry, os.path.join(shown, entry.name)) for entry in entries}
        if not found:
            self._os["listdir"](self.seen(path))  # raises as it must where this is no folder
        visible = [entry for entry in found.values() if self.exists(os.path.join(virtual, entry.name))]
        return [entry for entry in visible if os.path.join(virtual, entry.name) != self._upper_folder]

    # ---- questions -------------------------------------------------------------------------------------------------

    def _asked(self, name: str, path: PathOrHandle, *args: object, **kwargs: object) -> object:
        if isinstance(path, int) or kwargs.get("dir_fd") is not None:
            return self._os[name](path, *args, **kwargs)
        return self._os[name](self.seen(path), *args, **kwargs)

    def _marked(self, name: str, path: PathOrHandle, *args: object, **kwargs: object) -> None:
        """Times and rights are set where the script wrote the file; on anything else they are left."""
        if isinstance(path, int) or kwargs.get("dir_fd") is not None:
            self._os[name](path, *args, **kwargs)
            return
        place = self._needed(path)
        if os.fsdecode(place).startswith(self.folder + os.sep) and not name.endswith("chown"):
            self._os[name](place, *args, **kwargs)

    def exists(self, path: PathName) -> bool:
        """Whether there is something under this name now, be it a broken link."""
        return _is_there(self._os["lstat"], self.seen(path))

    def _refuse_folder(self, path: PathName) -> None:
        """A folder cannot be opened for writing."""
        if _is_folder(self._os["stat"], self.seen(path)):
            raise _error(IsADirectoryError, errno.EISDIR, path)

    def _needed(self, path: PathName) -> PathName:
        """Where it is; it must be there."""
        if not self.exists(path):
            self._need_folder(os.path.dirname(self.virtual(path)), path)
            raise _error(FileNotFoundError, errno.ENOENT, path)
        return self.seen(path)

    # ---- where things are ------------------------------------------------------------------------------------------

    def virtual(self, path: PathName) -> str:
        """The full path under which the script knows this."""
        name = os.fsdecode(path)
        if not os.path.isabs(name):
            name = os.path.join(self.getcwd(), name)
        return self._back(os.path.normpath(name))

    def _back(self, name: str) -> str:
        return name[len(self._upper_folder) :] or os.sep if _is_below(name, self._upper_folder) else name

    @overload
    def seen(self, path: int) -> int: ...
    @overload
    def seen(self, path: PathName) -> PathName: ...
    def seen(self, path: PathOrHandle) -> PathOrHandle:
        """Where something is that the script asks about."""
        if isinstance(path, int):
            return path
        virtual = self.virtual(path)
        upper = self._upper(virtual)
        if upper == virtual:
            return path
        if _is_there(self._os["lstat"], upper) or self._is_removed(virtual):
            return upper
        above = os.path.dirname(upper)
        is_under_file = _is_there(self._os["stat"], above) and not _is_folder(self._os["stat"], above)
        return upper if is_under_file else virtual

    def for_writing(self, path: PathName, *, keep: bool) -> str:
        """Where this path is to be written; with `keep` what is there now is there too."""
        virtual = self.virtual(path)
        upper = self._upper(virtual)
        if upper == virtual:
            return virtual
        if _is_there(self._os["lstat"], upper):
            return self._through_link(upper, keep)
        self._need_folder(os.path.dirname(virtual), path)
        self._make_folders(os.path.dirname(upper))
        if keep and self.exists(virtual):
            self._copy(self.seen(virtual), upper)
        self.redirected[virtual] = upper
        return upper

    def _need_folder(self, parent: str, path: PathName) -> None:
        if _is_folder(self._os["stat"], self.seen(parent)):
            return
        if _is_there(self._os["stat"], self.seen(parent)):
            raise _error(NotADirectoryError, errno.ENOTDIR, path)
        if os.path.dirname(parent) != parent:
            self._need_folder(os.path.dirname(parent), path)
        raise _error(FileNotFoundError, errno.ENOENT, path)

    def _through_link(self, upper: str, keep: bool) -> str:
        """A link that leads out of the upper folder leads back into it when it is written through."""
        if not stat.S_ISLNK(self._os["lstat"](upper).st_mode):
            return upper
        target = os.path.join(os.path.dirname(upper), self._os["readlink"](upper))
        return self.for_writing(target, keep=keep)

    def _folder_for_writing(self, path: PathName) -> str:
        virtual = self.virtual(path)
        upper = self._upper(virtual)
        if _is_folder(self._os["stat"], self.seen(path)):
            self._make_folders(upper)
            return upper
        return self.for_writing(path, keep=True)

    def written(self, path: PathName) -> str:
        """Where the files lie that were written below a folder, whether there are any or not."""
        return self._upper(self.virtual(path))

    def _upper(self, virtual: str) -> str:
        """Its place in the upper folder; a path inside the scratch folder, or of a device, is its own place."""
        if _is_below(virtual, self.folder) or virtual.startswith(HARMLESS) or virtual == "/dev/null":
            return virtual
        return self._upper_folder + virtual if virtual != os.sep else self._upper_folder

    def _is_removed(self, virtual: str) -> bool:
        return any(_is_below(virtual, name) for name in self._removed)

    def _forget(self, path: PathName) -> None:
        """What was there before the script is hidden from now on."""
        virtual = self.virtual(path)
        if self._upper(virtual) != virtual and _is_there(self._os["lstat"], virtual):
            self._removed.add(virtual)

    def _take_away(self, path: PathName, place: PathName) -> None:
        virtual = self.virtual(path)
        for known in [name for name in self.redirected if _is_below(name, virtual)]:
            del self.redirected[known]
        if _is_below(os.fsdecode(place), self.folder):
            self._erase(os.fsdecode(place))
        self._forget(path)

    def _erase(self, place: str) -> None:
        if not stat.S_ISDIR(self._os["lstat"](place).st_mode):
            self._os["unlink"](place)
            return
        for name in self._os["listdir"](place):
            self._erase(os.path.join(place, name))
        self._os["rmdir"](place)

    def _copy(self, source: PathName, target: str) -> None:
        """A file or a folder with all that is in it, as it is seen now."""
        if _is_folder(self._os["stat"], source):
            self._make_folders(target)
            for name in self.listdir(source):
                self._copy(self.seen(os.path.join(os.fsdecode(source), name)), os.path.join(target, name))
            return
        num_bytes = self._os["stat"](source).st_size
        if num_bytes > MOST_COPIED_BYTES:
            raise PermissionError(f"memfit predict changes no files, and {source} is too large to change a copy of it")
        with self._open(source, "rb") as reader, self._open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer)

    def _make_folders(self, path: str) -> None:
        missing = []
        while not _is_folder(self._os["stat"], path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            self._os["mkdir"](folder)

    # ---- the last line of defence ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Within, this thread may start a process (processes decides which)."""
        self._starting.now = True
        try:
            yield
        finally:
            self._starting.now = False

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        """Refuse what the interpreter is about to do, if it would start a process or write outside of the folder."""
        if event in STARTS_PROCESS and not getattr(self._starting, "now", False):
            raise ProcessRefused(f"memfit predict starts no processes ({event} {str(args[0])[:80] if args else ''})")
        if (event == "open" and isinstance(args[2], int) and args[2] & WRITE_FLAGS) or (event in CHANGES and args):
            for path in cast("tuple[PathOrHandle | None, ...]", args[CHANGED.get(event, slice(1))]):
                self._refuse_outside(event, path)

    def _refuse_outside(self, event: str, path: PathOrHandle | None) -> None:
        if isinstance(path, int) or path is None:
            return
        name = os.path.normpath(os.path.join(self._os["getcwd"](), os.fsdecode(path)))
        if not _is_below(name, self.folder) and not name.startswith(HARMLESS):
            raise PermissionError(f"memfit predict writes no files ({event} {name})")


_GUARDS: list[ScratchFiles] = []
"""Those that guard now."""


@cache
def _listen() -> None:
    """One audit hook for the process: no hook can be removed, and each is called at every event ever after."""

    def ask_guards(event: str, args: tuple[object, ...], guards: list[ScratchFiles] = _GUARDS) -> None:
        for guard in guards:
            guard.audit(event, args)

    sys.addaudithook(ask_guards)


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)


def _is_there(lstat: Callable[[PathOrHandle], os.stat_result], path: PathOrHandle) -> bool:
    try:
        lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _is_folder(stat_: Callable[[PathOrHandle], os.stat_result], path: PathOrHandle) -> bool:
    try:
        return stat.S_ISDIR(stat_(path).st_mode)
    except (OSError, ValueError):
        return False


def _error(kind: type[OSError], number: int, path: PathName) -> OSError:
    return kind(number, os.strerror(number), os.fsdecode(path))
