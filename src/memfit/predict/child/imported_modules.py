"""List of the modules that a job imported, with environment and path, to import them again in a bare process.

A script may import a package after it has set an environment variable (`KERAS_BACKEND`), from a folder it has put on
`sys.path`, and submodules that the package itself would load later. So all modules are named, in the order in which
they came, with what had changed around them. The user's own files are left out: importing them again might train.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

LEAVE_OUT = {"memfit", "torch", "msgspec", "psutil", "click", "rich", "__main__", "sympy", "mpmath", "networkx"}
"""Packages that every prediction loads, or a bare process anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What a bare process is to import, and what is to be set before."""

    modules: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


_LOADED_EARLY: set[str] = set()
"""Modules of the job that this process has loaded for many copies of it: they are the job's all the same."""


@contextlib.contextmanager
def loading_early() -> Iterator[None]:
    """What is imported within counts as imported by the job."""
    before = frozenset(sys.modules)
    yield
    _LOADED_EARLY.update(frozenset(sys.modules) - before)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What there was before a job began."""

    modules: frozenset[str]
    environment: dict[str, str]

    @classmethod
    def now(cls) -> Surroundings:
        """As they are, without what was loaded early on behalf of the job."""
        return cls(frozenset(sys.modules) - _LOADED_EARLY, dict(os.environ))

    def imports_since(self, own_folder: str) -> Imports:
        """What was imported since; files below `own_folder` are the user's own, unless they are installed there."""
        changed = {name: value for name, value in os.environ.items() if self.environment.get(name) != value}
        modules = [name for name in list(sys.modules) if name not in self.modules and _counts(name, own_folder)]
        folders = [folder for folder in sys.path if folder and os.path.isdir(folder)]
        return Imports(modules=tuple(modules), folders=tuple(folders), environment=changed)


def _counts(name: str, own_folder: str) -> bool:
    """Whether a module is somebody else's and lies in a file."""
    top = name.partition(".")[0]
    if top in LEAVE_OUT or top in sys.stdlib_module_names or top.startswith("_"):
        return False
    module = sys.modules.get(name)
    origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
    if not os.path.isfile(origin):
        return False
    installed = "site-packages" in origin or "dist-packages" in origin
    return installed or not os.path.abspath(origin).startswith(os.path.join(own_folder, ""))
