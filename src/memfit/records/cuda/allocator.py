"""State of a CUDA allocator: segments, blocks, results of a simulated run, and the allocation that failed."""

from __future__ import annotations

from typing import Literal

import msgspec

PoolName = Literal["small", "large"]
BlockState = Literal["allocated", "awaiting free", "free"]


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a segment that is handed out or free as a whole."""

    address: int
    num_bytes: int
    requested_bytes: int = 0
    """What the program asked for; 0 for a free block."""
    state: BlockState = "free"
    stack: int | None = None
    """Who allocated it: which stack of a snapshot's table; None when it was not recorded."""


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of memory taken from the driver (or one run of mapped pages of an expandable segment)."""

    address: int
    num_bytes: int
    stream: int
    pool: PoolName
    is_expandable: bool = False
    is_private: bool = False
    """It belongs to a pool of a CUDA graph or a MemPool."""
    blocks: tuple[Block, ...]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of blocks in the program's hands."""
        return sum(block.num_bytes for block in self.blocks if block.state == "allocated")

    @property
    def free_bytes(self) -> int:
        """Bytes of free blocks."""
        return sum(block.num_bytes for block in self.blocks if block.state == "free")

    @property
    def largest_free_bytes(self) -> int:
        """The largest block that could be handed out without asking the driver."""
        return max((block.num_bytes for block in self.blocks if block.state == "free"), default=0)


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An allocation that failed after everything was tried."""

    requested_bytes: int
    tried_bytes: int
    """The segment the driver was asked for."""
    total_bytes: int
    free_bytes: int
    allowed_bytes: int | None = None
    """What the process may reserve, when it limited itself."""
    allocated_bytes: int
    reserved_bytes: int
    event: int | None = None

    @property
    def limit_bytes(self) -> int:
        """What it ran against: the process's own limit, or the device."""
        return self.total_bytes if self.allowed_bytes is None else min(self.total_bytes, self.allowed_bytes)

    @property
    def message(self) -> str:
        """The figures in the order in which PyTorch's own message gives them."""
        allowed = "" if self.allowed_bytes is None else f"{torch_size(self.allowed_bytes)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {torch_size(self.tried_bytes)}. GPU 0 has a total capacity of "
            f"{torch_size(self.total_bytes)} of which {torch_size(self.free_bytes)} is free. {allowed}"
            f"Of the allocated memory {torch_size(self.allocated_bytes)} is allocated by PyTorch, and "
            f"{torch_size(self.reserved_bytes - self.allocated_bytes)} is reserved by PyTorch but unallocated."
        )


class PoolShare(msgspec.Struct, frozen=True, kw_only=True):
    """How well one pool was used at one moment."""

    pool: PoolName
    num_segments: int
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int

    @property
    def unused_bytes(self) -> int:
        """Reserved and not allocated."""
        return self.reserved_bytes - self.allocated_bytes


class AllocationCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Allocated and reserved bytes after events; thinned, each point holds the largest of its stretch."""

    events: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


class AllocatorRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one sequence of requests did to an allocator with given settings."""

    settings: str
    """The text as for PYTORCH_ALLOC_CONF; empty for the defaults."""
    device_bytes: int | None
    """The size of the device; None: it never ran out."""
    num_events: int
    """How many events were run: all, or those before the failure."""
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    peak_allocated_event: int
    peak_reserved_event: int
    """The first event at which that much was reserved."""
    final_allocated_bytes: int
    final_reserved_bytes: int
    num_segments: int
    """The most there were at once; with expandable segments, runs of mapped pages at the peak."""
    num_alloc_retries: int
    num_driver_calls: int
    curve: AllocationCurve
    pools_at_peak: tuple[PoolShare, ...] = ()
    """At the first event at which the most was reserved."""
    segments_at_peak: tuple[Segment, ...] = ()
    failed: OutOfMemory | None = None
    smallest_device_bytes: int | None = None
    """The least memory, in steps of 2 MiB, on which the same sequence still runs; None when it was not looked for."""

    @property
    def unused_at_peak_bytes(self) -> int:
        """Reserved and not allocated when the most was reserved."""
        return sum(share.unused_bytes for share in self.pools_at_peak)


def torch_size(num_bytes: int) -> str:
    """A size as PyTorch writes it in its own messages: '1.50 GiB', '512 bytes'."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes > factor:
            return f"{num_bytes / factor:.2f} {unit}"
    return f"{num_bytes} bytes"


def pool_shares(segments: tuple[Segment, ...]) -> tuple[PoolShare, ...]:
    """How well each pool is used."""
    shares = []
    for pool in ("small", "large"):
        mine = [segment for segment in segments if segment.pool == pool]
        shares.append(
            PoolShare(
                pool=pool,
                num_segments=len(mine),
                reserved_bytes=sum(segment.num_bytes for segment in mine),
                allocated_bytes=sum(segment.allocated_bytes for segment in mine),
                largest_free_bytes=max((segment.largest_free_bytes for segment in mine), default=0),
            )
        )
    return tuple(shares)
