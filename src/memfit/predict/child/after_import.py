"""Action that waits for the import of a module: at once where it is loaded, else right after the job loads it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Waiting(MetaPathFinder):
    """Finds one module as others would, and acts after it was run."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual specification, whose loader also acts."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            run(module)
            self._act(module)

        spec.loader.exec_module = run_and_act
        return spec


@contextlib.contextmanager
def after_import(name: str, act: Callable[[ModuleType], None]) -> Iterator[None]:
    """Within, `act` is called with the module as soon as there is one."""
    if name in sys.modules:
        act(sys.modules[name])
        yield
        return
    waiting = _Waiting(name, act)
    sys.meta_path.insert(0, waiting)
    try:
        yield
    finally:
        if waiting in sys.meta_path:
            sys.meta_path.remove(waiting)
