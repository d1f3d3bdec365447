"""The standard networks of a comparison of planners, and the settings of one step of each.

The sizes are such that a step takes several GiB; changing the batch changes bytes and seconds in the same proportion.
"""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors import UsageError

STANDARD: dict[str, tuple[str, ...]] = {
    "resnet50": ("batch_size=64",),
    "densenet121": ("batch_size=64",),
    "vgg16": ("batch_size=64",),
    "gpt": ("batch_size=8", "length=1024", "width=768", "heads=12", "layers=12", "words=8192"),
}
"""Workload: its settings."""
OTHERS: dict[str, tuple[str, ...]] = {"resnet18": ("batch_size=128",)}
"""Compared when they are asked for."""


def networks_called(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The networks that are meant with their settings; the standard ones when none is named."""
    known = {**STANDARD, **OTHERS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError("there is no such network here", found=", ".join(unknown), hint=f"one of {', '.join(known)}")
    return {name: known[name] for name in names} if names else dict(STANDARD)


def examples_in(settings: Sequence[str]) -> int:
    """How many examples one step takes."""
    return next(int(setting.split("=")[1]) for setting in settings if setting.startswith("batch_size="))
