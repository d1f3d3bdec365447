"""Kinds of source files: the user's own, those of libraries, and those of torch and Python."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache

import torch

from memfit.version import PACKAGE_FOLDER

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_OWN_FOLDER = PACKAGE_FOLDER + os.sep
_JOB_FOLDER = os.path.join(_OWN_FOLDER, "job") + os.sep
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


@cache
def kind_of_file(filename: str) -> int:
    """0 the user's own, 1 some other library, 2 torch, memfit or Python itself."""
    if filename.startswith(_JOB_FOLDER) and os.path.basename(filename) != "load.py":
        return 0
    if filename.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<")):
        return 2
    if "site-packages" in filename or "dist-packages" in filename:
        return 1
    if filename.startswith(_LIBRARY_FOLDERS):
        return 2
    return (
        1 if any(filename.startswith(os.path.join(folder, "")) and _is_installed(folder) for folder in sys.path) else 0
    )


@cache
def _is_installed(folder: str) -> bool:
    """Whether a folder of the import path holds installed packages, whatever its name (`pip install --target`)."""
    try:
        return bool(folder) and any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False
