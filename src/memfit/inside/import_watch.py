"""Import hook: calls back as soon as the program has imported torch, without importing it.

A finder in front of `sys.meta_path` lets every import pass. When the awaited module comes by, it finds its real
specification behind itself, calls back once the module is whole, and is gone: the module keeps its own loader.
"""

import contextlib
import sys


class ImportWatch:
    """Calls `then()` right after the module of this name was imported for the first time."""

    def __init__(self, name, then):
        self.name = name
        self.then = then

    def start(self):
        """Wait for the module, or call back at once when it is there."""
        if self.name in sys.modules:
            self.then()
        else:
            sys.meta_path.insert(0, self)

    def stop(self):
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        """Part of the finder protocol: let everything pass, and put a hand on the awaited module."""
        if name != self.name:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader:
    """The module's own loader, with a call back when it is done."""

    def __init__(self, loader, watch):
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watch.stop()
        with contextlib.suppress(Exception):  # the import succeeded, and that is all the program asked for
            self._watch.then()
