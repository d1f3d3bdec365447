"""Shapes of what `torch.cuda.memory._snapshot` gives: the keys that are read, as torch writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Required, TypedDict

from memfit.records.cuda.snapshot import Action


class RecordedFrame(TypedDict):
    """One line of a stack."""

    name: str
    filename: str
    line: int


class RecordedHistory(TypedDict, total=False):
    """What lay in a block before (torch 2.0)."""

    real_size: int
    frames: list[RecordedFrame]


class RecordedBlock(TypedDict, total=False):
    """One block of a segment."""

    state: Required[str]
    size: Required[int]
    address: int
    requested_size: int
    frames: list[RecordedFrame]
    history: list[RecordedHistory]


class RecordedSegment(TypedDict, total=False):
    """Memory that the allocator took from the driver at once."""

    address: Required[int]
    total_size: Required[int]
    segment_type: Required[str]
    blocks: Required[list[RecordedBlock]]
    device: int
    stream: int
    is_expandable: bool
    segment_pool_id: tuple[int, int]


class RecordedEvent(TypedDict, total=False):
    """One entry of the history; where memory was out, it has `device_free` in place of `addr`."""

    action: Required[Action]
    addr: Required[int]
    size: Required[int]
    device_free: int
    stream: int
    time_us: int
    frames: Sequence[RecordedFrame]
    user_metadata: str
