"""CUDA memory snapshot of PyTorch: its segments at the end, and the events before.

Once it was replayed, also whether the simulated allocator did what the real one did, and the effect of other settings.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.cuda.allocator import AllocationCurve, AllocatorRun, PoolShare, Segment
from memfit.records.figure import Figure

Action = Literal[
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
    "other",
]  # fmt: skip
"""'other' is an event that moves no memory: a snapshot being taken, a note by the user."""


class StackFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a recorded call stack."""

    name: str
    filename: str
    line: int


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing the real allocator did."""

    action: Action
    address: int
    """Where; for 'oom', the bytes the driver had left."""
    num_bytes: int
    """What the program asked for; for segments, their size."""
    stream: int = 0
    stack: int | None = None
    """Which stack of the snapshot's table; None when it was not recorded."""
    time_us: int | None = None


class DeviceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a snapshot."""

    device: int
    segments: tuple[Segment, ...]
    """At the end of the recording, by address."""
    events: tuple[TraceEvent, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A file written by `torch.cuda.memory._dump_snapshot`."""

    name: str
    devices: tuple[DeviceSnapshot, ...]
    settings: str | None
    """The allocator's settings as text for PYTORCH_ALLOC_CONF; None when the file does not say."""
    frames: tuple[StackFrame, ...]
    stacks: tuple[tuple[int, ...], ...]
    """Each a call stack, innermost first, as numbers of frames."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far the simulated allocator did what the recording says."""

    num_allocations: int
    num_same_place: int
    """Allocations at the very address of the recording."""
    num_segments: int
    """Driver calls for more memory in the recording, or in the simulation where those are more."""
    num_same_segments: int
    """Those made by both for the same allocation and of the same size."""
    recorded_reserved_bytes: int
    replayed_reserved_bytes: int
    num_unknown_blocks: int
    """Blocks that lived before the recording began and were freed in it: their size is known to within 1 MiB."""
    num_inferred_blocks: int
    """Of these, how many sizes were worked out from what happened later."""
    ties_by_address: bool
    """The rule for equally good blocks under which the recording could be reproduced best."""
    reason: str = ""
    """Why placements were not compared, where they were not."""

    @property
    def same_reserved(self) -> bool:
        """Whether both hold the same number of bytes at the end."""
        return self.recorded_reserved_bytes == self.replayed_reserved_bytes


class SourceShare(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes alive at the peak that one source line asked for."""

    line: str
    """'file.py:12 in forward'."""
    num_bytes: int
    num_blocks: int


class FailureFound(msgspec.Struct, frozen=True, kw_only=True):
    """An out-of-memory event in the recording."""

    event: int
    requested_bytes: int
    driver_free_bytes: int
    line: str
    memory: MemoryAtFailure | None = None
    reason: str = ""
    """Why the allocator's memory at that moment is not known, where it is not."""


class MemoryAtFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator held when a request failed, after it had given back what it could."""

    reserved_bytes: int
    allocated_bytes: int
    num_free_blocks: int
    free_bytes: int
    """Of free blocks; blocks that another stream still uses are neither free nor allocated."""
    largest_free_bytes: int
    """The largest free block in the pool and on the stream of the request: the only ones it can take."""


class OtherDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the snapshot that is not the one shown."""

    device: int
    num_events: int
    num_failures: int
    reserved_bytes: int
    """At the end of the recording."""


class Replay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recorded run, explained, and what other settings would have made of it."""

    snapshot: str
    device: int
    devices: tuple[int, ...]
    """Every device the file has events or memory of."""
    why_this_device: str
    other_devices: tuple[OtherDevice, ...]
    num_events: int
    duration_seconds: float | None
    settings: str | None
    peaks: dict[str, Figure]
    """'requested', 'allocated', 'active', 'reserved'."""
    pools_at_peak: tuple[PoolShare, ...]
    """When the most was allocated."""
    peak_event: int
    top_lines: tuple[SourceShare, ...]
    unknown_lines_bytes: int
    """Alive at the peak, from before the recording or without a stack."""
    failures: tuple[FailureFound, ...]
    agreement: Agreement
    curve: AllocationCurve
    what_if: tuple[AllocatorRun, ...]
    """Predicted: the same requests, failed ones included, in an empty allocator; the first has the recorded settings
    (the default ones where none are recorded), the others other ones."""
    available_bytes: int | None = None
    """What the allocator could have had at the last failure: reserved, and free at the driver. None without one."""
    notes: tuple[str, ...] = ()
    """What of the recording is not simulated."""
