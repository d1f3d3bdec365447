"""Kinds of source files: the user's own, those of libraries, and those of torch and Python."""

from __future__ import annotations

import os
import sysconfig

import torch

from memfit.version import PACKAGE_FOLDER

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_OWN_FOLDER = PACKAGE_FOLDER + os.sep
_JOB_FOLDER = os.path.join(_OWN_FOLDER, "job") + os.sep
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


def kind_of_file(filename: str) -> int:
    """0 the user's own, 1 some other library, 2 torch, memfit or Python itself."""
    if filename.startswith(_JOB_FOLDER) and os.path.basename(filename) != "load.py":
        return 0
    if filename.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<")):
        return 2
    if "site-packages" in filename or "dist-packages" in filename:
        return 1
    return 2 if filename.startswith(_LIBRARY_FOLDERS) else 0
