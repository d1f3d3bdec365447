"""Versions of torch that memfit was run with: a check before prediction or fit uses its private parts.

Both use parts of torch that are not public. Which versions work was found by running a list of commands with each
(docs/support.md); another version is refused with one line, instead of failing somewhere inside of torch. Measuring,
studies and pages do not need torch and are not checked. Read from the installed package, without importing it.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from typing import Literal

from memfit.errors import UnsupportedTorch

Verb = Literal["prediction", "fitting"]

OLDEST: dict[Verb, tuple[int, int]] = {"prediction": (2, 10), "fitting": (2, 13)}
"""The oldest release with which each of the two worked."""
NEWEST = (2, 15)
"""The newest release that was run."""
ANY_TORCH = "MEMFIT_ANY_TORCH"
"""Set to 1, this environment variable turns the check off."""


def require_supported_torch(what: Verb) -> None:
    """Raise UnsupportedTorch where `what` does not work with the installed torch; silent without torch."""
    if os.environ.get(ANY_TORCH) == "1":
        return
    try:
        installed = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    if problem := unsupported(installed, what):
        wanted = f"torch>={_text(OLDEST[what])},<{NEWEST[0]}.{NEWEST[1] + 1}"
        raise UnsupportedTorch(
            f"{what} does not support this torch: {problem}",
            found=f"torch {installed}",
            hint=f'pip install "{wanted}"; or set {ANY_TORCH}=1, at your own risk',
        )


def unsupported(version: str, what: Verb) -> str:
    """Why a version is outside of the supported range; empty when it is inside."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return "its version cannot be read"
    found = (int(numbers[1]), int(numbers[2]))
    if found < OLDEST[what]:
        return f"the oldest that works is {_text(OLDEST[what])}"
    return f"the newest that was tried is {_text(NEWEST)}" if found > NEWEST else ""


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
