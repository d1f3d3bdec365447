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

The rules, and the range where jobs were measured, were chosen on 79 measured convolutional jobs (docs/accuracy.md,
xMem's jobs). On other cards, and for smaller jobs, the range is wider.

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

from memfit.units import MIB

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
LEAST_MEASURED_BYTES = 512 * MIB
"""About what the smallest of the measured jobs had allocated. In smaller ones a single segment is a large share."""
UNMEASURED_LEAST_SHARE, UNMEASURED_MOST_SHARE = 0.8, 1.5
"""The range elsewhere, at least: what cuDNN 9.24 chose on the phantom A100 came to 0.86 to 1.49 times the point in 41
of 43 jobs, to 1.57 in one of 42 MiB and to 1.77 in one with kernels of 9 x 9. It is also at least from one segment
less to two more, from the lowest of the runs, and up to a run in which every call copies all of its operands."""
SEGMENT_BYTES = 20 * MIB
"""What torch's allocator reserves for a request of 1 to 10 MiB."""


class Scratch(msgspec.Struct, frozen=True, kw_only=True):
    """One call of cuDNN, and what it could take for its length."""

    event: int
    """The event of the timeline before which the call ends."""
    taker: Taker
    num_bytes: int
    most_bytes: int = 0
    """If it copies all its operands, whatever the rules say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedWithCudnn:
    """Reserved bytes of a job that calls cuDNN, with its range."""

    point_bytes: int
    low_bytes: int
    high_bytes: int
    is_measured: bool
    """Whether the range is the one that held 90 % of measured jobs; else it is the wider one."""


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


def is_measured(capability: tuple[int, int], allocated_bytes: int) -> bool:
    """Whether jobs of this size, on cards of this generation, were among the measured ones."""
    return capability in MEASURED_CAPABILITIES and allocated_bytes >= LEAST_MEASURED_BYTES


def copying_all(scratches: Sequence[Scratch]) -> list[tuple[int, int]]:
    """Place and size of the workspaces if every convolution copies all of its operands, rule or not."""
    found = [(scratch.event, max(scratch.num_bytes, scratch.most_bytes)) for scratch in scratches]
    return sorted((pair for pair in found if pair[1]), key=lambda pair: pair[0])


def reserved_of(
    peaks_bytes: Sequence[int],
    allocated_bytes: int,
    capability: tuple[int, int],
    device_bytes: int | None = None,
    *,
    copying_bytes: int = 0,
) -> ReservedWithCudnn:
    """The point from the peaks of all runs, at least what is allocated, and its range, at most the device.

    `copying_bytes` is the peak of the run in which everything is copied.
    """
    share = GENERATION_SHARES.get(capability, 1.0)
    point = max(int(share * sum(peaks_bytes) / len(peaks_bytes)), allocated_bytes)
    measured = is_measured(capability, allocated_bytes)
    if measured:
        low, high = int(point * LEAST_SHARE), int(point * MOST_SHARE) + 1
    else:
        low = min(int(point * UNMEASURED_LEAST_SHARE), point - SEGMENT_BYTES, *peaks_bytes)
        high = max(int(point * UNMEASURED_MOST_SHARE) + 1, point + 2 * SEGMENT_BYTES, copying_bytes, *peaks_bytes)
    low = max(low, min(allocated_bytes, point))
    if device_bytes is not None and point <= device_bytes:
        high = min(high, device_bytes)
    return ReservedWithCudnn(point_bytes=point, low_bytes=low, high_bytes=high, is_measured=measured)


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
    most_bytes = picture_bytes + weight_bytes + result_bytes
    if is_grouped:
        return Scratch(event=event, taker="grouped", num_bytes=picture_bytes + result_bytes, most_bytes=most_bytes)
    if is_last or num_channels < NARROW_CHANNELS:
        return Scratch(event=event, taker="none", num_bytes=0, most_bytes=most_bytes)
    copied = picture_bytes + weight_bytes + (0 if kind == "forward" else result_bytes)
    return Scratch(event=event, taker="tensor cores", num_bytes=copied, most_bytes=most_bytes)
