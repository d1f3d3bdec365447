"""Resident memory that importing each package added, apart from what it imported in turn.

The loaders of Python files and of extension modules are wrapped; around each module the resident size is read, and
what nested imports took is subtracted. Packages imported late (inside a function, long after the start) are counted
as well. Around the outermost import the heaps are read too, so that memory an import freed again is not taken for
its cost.
"""

import functools
import threading
from importlib.machinery import ExtensionFileLoader, SourceFileLoader

from .heaps import Heaps

_WRAPPED = (
    (SourceFileLoader, "exec_module"),
    (ExtensionFileLoader, "create_module"),
    (ExtensionFileLoader, "exec_module"),
)
_TOTALS = ("malloc_used_bytes", "malloc_free_bytes", "python_arena_bytes")


class ImportCosts:
    """Counts from `start` to `stop`."""

    def __init__(self, resident):
        self.packages = {}
        """Package: [anonymous bytes, file bytes]."""
        self.heap_growth = dict.fromkeys(_TOTALS, 0)
        """What the heaps grew by inside of imports."""
        self._resident = resident
        self._local = threading.local()

    def start(self):
        """Wrap the loaders."""
        for loader, name in _WRAPPED:
            setattr(loader, name, self._counted(getattr(loader, name)))

    def stop(self):
        """Unwrap them: the wrapped method of the class itself goes, the inherited one shows again."""
        for loader, name in _WRAPPED:
            ours = loader.__dict__.get(name)
            original = getattr(ours, "__wrapped__", None)
            if original is None:
                continue
            if any(getattr(base, name, None) is original for base in loader.__mro__[1:]):
                delattr(loader, name)
            else:
                setattr(loader, name, original)

    def facts(self):
        """One dictionary per package, the largest first."""
        rows = [{"package": p, "anonymous_bytes": a, "file_bytes": f} for p, (a, f) in list(self.packages.items())]
        return sorted(rows, key=lambda row: -row["anonymous_bytes"] - row["file_bytes"])

    def _counted(self, original):
        @functools.wraps(original)
        def load(loader, subject):
            """Importing as before; `subject` is the module, or its specification."""
            frames = self._local.__dict__.setdefault("frames", [])
            before = Heaps() if not frames else None
            anonymous_bytes, file_bytes = self._resident.read()
            frames.append([0, 0])
            try:
                return original(loader, subject)
            finally:
                nested = frames.pop()
                now = self._resident.read()
                name = getattr(subject, "__name__", None) or getattr(subject, "name", "")
                self._add(name, now[0] - anonymous_bytes, now[1] - file_bytes, nested, frames)
                if before is not None:
                    self._add_heaps(before, Heaps())

        return load

    def _add(self, name, anonymous_bytes, file_bytes, nested, frames):
        row = self.packages.setdefault(name.partition(".")[0], [0, 0])
        row[0] += anonymous_bytes - nested[0]
        row[1] += file_bytes - nested[1]
        if frames:
            frames[-1][0] += anonymous_bytes
            frames[-1][1] += file_bytes

    def _add_heaps(self, before, after):
        for name in _TOTALS:
            was, now = getattr(before, name), getattr(after, name)
            if was is not None and now is not None:
                self.heap_growth[name] += now - was
