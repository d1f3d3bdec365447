"""Which ResNets are there by depth, and what are their stages called? From 18 to 152 layers, for tables over depths."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.errors import UsageError
from memfit.job.workloads.resnet import ResNet

FAMILY: dict[str, tuple[tuple[int, ...], bool]] = {
    "ResNet-18": ((2, 2, 2, 2), False),
    "ResNet-34": ((3, 4, 6, 3), False),
    "ResNet-50": ((3, 4, 6, 3), True),
    "ResNet-101": ((3, 4, 23, 3), True),
    "ResNet-152": ((3, 8, 36, 3), True),
}
"""Name: blocks in each of the four groups, and whether they are bottlenecks."""


def family_called(names: Sequence[str]) -> tuple[str, ...]:
    """The ResNets that are meant, 'resnet18' or 'ResNet-18'; all of them when none is named."""
    known = {name.lower().replace("-", ""): name for name in FAMILY}
    unknown = [name for name in names if name.lower().replace("-", "") not in known]
    if unknown:
        raise UsageError("there is no such ResNet", found=", ".join(unknown), hint=f"one of {', '.join(FAMILY)}")
    return tuple(dict.fromkeys(known[name.lower().replace("-", "")] for name in names)) or tuple(FAMILY)


def resnet_called(name: str, classes: int = 1000) -> ResNet:
    """One of the family, with new parameters."""
    depths, bottleneck = FAMILY[name]
    return ResNet(depths, bottleneck, classes, False)


def stage_names(model: ResNet) -> tuple[str, ...]:
    """The modules that are called one after the other."""
    return ("stem", *(f"blocks.{index}" for index in range(len(model.blocks))), "head")
