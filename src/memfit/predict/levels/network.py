"""Memory of NCCL beside torch's allocator: an assumed range for every communicator of a rank; pure.

A group of ranks gets its communicator, with buffers and a part of the GPU's memory of its own, at its first transfer.
How much that is depends on NCCL's release, the links and the number of channels. Reports for one group: 544 and 688 MB
(NVIDIA/nccl issue 964); the least are the buffers of two channels with three protocols of 4 MiB.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from memfit.predict.engine import Traced
from memfit.records.figure import Figure
from memfit.records.prediction import Assumption, Level
from memfit.units import format_bytes

LEAST_BYTES = 2 * 3 * 4 * 1024**2
MOST_BYTES = 688 * 10**6
"""Of one communicator."""


def with_network(traced: Traced) -> Traced:
    """What was traced, with a level for the communicators of a GPU's rank."""
    count = len(traced.evidence.communicators)
    if not count or traced.device.kind != "cuda":
        return traced
    low, high = count * LEAST_BYTES, count * MOST_BYTES
    figure = Figure(value=None, unit="bytes", source="assumed", low=low, high=high, reason="NCCL decides")
    meaning = f"{count} communicators of NCCL, beside the allocator"
    levels: list[Level] = []
    for level in traced.levels:
        if level.name == "device":
            levels.append(Level(name="network", figure=figure, meaning=meaning))
            levels.append(msgspec.structs.replace(level, figure=_widened(level.figure, low, high)))
        else:
            levels.append(level)
    text = f"NCCL takes {format_bytes(LEAST_BYTES)} to {format_bytes(MOST_BYTES)} for each of {count} communicators"
    said = Assumption(
        kind="network",
        text=f"{text}: an assumed range; the least is in the figure of the device, the most in its range",
    )
    return replace(traced, levels=tuple(levels), assumptions=(*traced.assumptions, said))


def _widened(figure: Figure, low: int, high: int) -> Figure:
    """A figure with the least that NCCL takes, and a range with the most."""
    if figure.value is None:
        return figure
    least = figure.value if figure.low is None else figure.low
    most = figure.value if figure.high is None else figure.high
    return msgspec.structs.replace(figure, value=figure.value + low, low=least + low, high=most + high)
