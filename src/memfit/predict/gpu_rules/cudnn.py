"""Bytes of cuDNN besides the tensors a program sees, and their effect on reserved memory; pure.

Convolutions. A workspace is taken for the length of a call; which plan cuDNN chooses, so how large it is, hangs on the
card and the library. Two decisions move reserved bytes, and for neither is the outcome known without the library:

- *Tensor cores* work in channels-last order. Where both channel counts are 64 or more, and the tensors are in the plain
  order, a plan for them copies its operands: picture and weights forwards, all three backwards.
- *Grouped* convolutions copy picture and result in all passes. Depthwise ones in single precision and plain order are
  torch's own kernels, without a workspace; in channels-last order they are cuDNN's (torch 2.6 to 2.14).

So the allocator is run four times, each decision taken and not taken, and the point is the mean: a workspace raises
reserved bytes by its own size, or lowers them, because the block it leaves is used again by later gradients. On a card
of known size a workspace that does not fit is left out, as torch does when it tries the next plan.

The rules, and the two figures below, were chosen on 79 measured convolutional jobs (docs/accuracy.md, xMem's jobs).

Batch normalisation is cuDNN's only in channels-last order; it keeps no reserve, and takes up to one bit per element and
a few sums for the length of a call (asked of cuDNN 9.24 by the phantom GPU).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Literal

import msgspec

Pass = Literal["forward", "input gradient", "weight gradient"]
Taker = Literal["tensor cores", "grouped", "batch norm", "none"]
"""Which decision a workspace hangs on; one of batch normalisation is always taken."""

OPEN_TAKERS: tuple[Taker, ...] = ("tensor cores", "grouped")
NARROW_CHANNELS = 64
WITHOUT_RULE = "unknown for convolutions of fewer than 64 channels or in channels-last order, which have no rule"
SUMS_BYTES = 4096
GENERATION_SHARES: Mapping[tuple[int, int], float] = MappingProxyType({(8, 6): 0.972})
"""Real over mean of the four runs, by compute capability: the median of the tuning jobs on an RTX 3060; 1 for others,
as on an RTX 4060."""
MEASURED_CAPABILITIES = frozenset({(8, 6), (8, 9)})
"""Of the cards on which the rules were compared with real jobs: RTX 3060 and 4060."""
LEAST_SHARE, MOST_SHARE = 0.95, 1.165
"""Real over predicted reserved bytes: the tuning jobs without the three outermost on either side, which is the 90 %
range of split conformal prediction (Vovk et al., 2005) for that many. RTX 3060 and 4060, torch 2.6."""


class Scratch(msgspec.Struct, frozen=True, kw_only=True):
    """One call of cuDNN, and what it could take for its length."""

    event: int
    """The event of the timeline before which the call ends."""
    taker: Taker
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedWithCudnn:
    """Reserved bytes of a job that calls cuDNN, with the range that held 90 % of measured jobs."""

    point_bytes: int
    low_bytes: int
    high_bytes: int


def decisions_of(scratches: Sequence[Scratch]) -> list[frozenset[Taker]]:
    """Every combination of the decisions that these calls leave open, from nothing taken to all."""
    named = {scratch.taker for scratch in scratches}
    open_ones: list[Taker] = [taker for taker in OPEN_TAKERS if taker in named]
    return [
        frozenset(taker for taker, taken in zip(open_ones, choice, strict=True) if taken)
        for choice in product((False, True), repeat=len(open_ones))
    ]


def taken_by(scratches: Sequence[Scratch], decided: frozenset[Taker]) -> list[tuple[int, int]]:
    """Place and size of the workspaces that are taken, in order."""
    always: frozenset[Taker] = frozenset({"batch norm"})
    takers = decided | always
    found = [(s.event, s.num_bytes) for s in scratches if s.taker in takers and s.num_bytes > 0]
    return sorted(found, key=lambda pair: pair[0])


def reserved_of(
    peaks_bytes: Sequence[int], allocated_bytes: int, capability: tuple[int, int], device_bytes: int | None = None
) -> ReservedWithCudnn:
    """The point from the peaks of all runs, at least what is allocated, and its range, at most the device."""
    share = GENERATION_SHARES.get(capability, 1.0)
    point = max(int(share * sum(peaks_bytes) / len(peaks_bytes)), allocated_bytes)
    low, high = max(int(point * LEAST_SHARE), min(allocated_bytes, point)), int(point * MOST_SHARE) + 1
    if device_bytes is not None and point <= device_bytes:
        high = min(high, device_bytes)
    return ReservedWithCudnn(point_bytes=point, low_bytes=low, high_bytes=high)


def batch_norm_scratch(event: int, num_elements: int) -> Scratch:
    """The workspace of batch normalisation, forwards or backwards."""
    return Scratch(event=event, taker="batch norm", num_bytes=num_elements // 8 + SUMS_BYTES)


def convolution_scratch(
    event: int,
    kind: Pass,
    *,
    picture_bytes: int,
    weight_bytes: int,
    result_bytes: int,
    num_channels: int,
    is_grouped: bool,
    is_last: bool,
) -> Scratch:
    """One pass of a convolution of cuDNN over a picture (its input) to a result.

    `num_channels` is the smaller count of both sides, `is_last` whether the tensors are in channels-last order.
    """
    if is_grouped:
        return Scratch(event=event, taker="grouped", num_bytes=picture_bytes + result_bytes)
    if is_last or num_channels < NARROW_CHANNELS:
        return Scratch(event=event, taker="none", num_bytes=0)
    copied = picture_bytes + weight_bytes + (0 if kind == "forward" else result_bytes)
    return Scratch(event=event, taker="tensor cores", num_bytes=copied)
