"""A Python file of the user, loaded as a module."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

from memfit.errors import UsageError


def load_file(path: str) -> ModuleType:
    """The module of a Python file; its folder can be imported from, as if it were run."""
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
