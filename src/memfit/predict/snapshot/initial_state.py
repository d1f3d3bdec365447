"""State of the allocator when the recording of a snapshot began, worked out backwards.

A snapshot shows the end. Walking back over its events gives the segments there were at the beginning, and two kinds
of blocks: those that lived through the whole recording (their size stands in the snapshot), and those that were freed
in it, of which only the requested size is known. A block of the large pool can be up to 1 MiB larger than that.
Between two blocks less than 1 MiB apart there is no free block (the allocator never makes one that small there), so
the gap belongs to the first. Otherwise the first allocation behind such a block, while it lives, begins where it
ends. What remains open is taken as no gap.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from memfit.predict.allocator.caching import SMALL_SEGMENT_BYTES, round_size
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.allocator.statistics import SMALL_LIMIT_BYTES
from memfit.records.cuda.allocator import Block, PoolName, Segment
from memfit.records.cuda.snapshot import DeviceSnapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialState:
    """The segments at the beginning, and how sure their blocks are."""

    segments: tuple[Segment, ...]
    num_unknown_blocks: int
    num_inferred_blocks: int
    """Blocks of unknown size for which it could be worked out; the others are taken as large as was requested."""


@dataclass(slots=True)
class Shell:
    """A segment without its blocks."""

    address: int
    num_bytes: int
    stream: int
    pool: PoolName


@dataclass(slots=True)
class _Found:
    """A block that lived when the recording began."""

    address: int
    num_bytes: int
    requested_bytes: int
    stack: int | None
    is_unknown: bool


def recover(device: DeviceSnapshot, settings: AllocatorSettings) -> InitialState:
    """Work out the beginning of a recording."""
    shells = _shells_at_start(device)
    blocks = blocks_at_start(device, settings)
    num_unknown = sum(block.is_unknown for block in blocks)
    num_open = _stretch(shells, blocks, device)
    lows = [block.address for block in blocks]
    return InitialState(
        segments=tuple(fill_segment(shell, blocks, lows) for shell in shells),
        num_unknown_blocks=num_unknown,
        num_inferred_blocks=num_unknown - num_open,
    )


def _shells_at_start(device: DeviceSnapshot) -> list[Shell]:
    shells = {s.address: Shell(s.address, s.num_bytes, s.stream, s.pool) for s in device.segments}
    for event in reversed(device.events):
        if event.action == "segment_alloc":
            shells.pop(event.address, None)
        elif event.action == "segment_free":
            pool = "small" if event.num_bytes == SMALL_SEGMENT_BYTES else "large"
            shells[event.address] = Shell(event.address, event.num_bytes, event.stream, pool)
    return sorted(shells.values(), key=lambda shell: shell.address)


def blocks_at_start(device: DeviceSnapshot, settings: AllocatorSettings) -> list[_Found]:
    """Blocks freed in the recording without having been allocated in it, and those it never touched."""
    born: set[int] = set()
    found: dict[int, _Found] = {}
    for event in device.events:
        if event.action == "alloc":
            born.add(event.address)
        elif event.action == "free_completed" and event.address in born:
            born.discard(event.address)
        elif event.action == "free_completed":
            size = round_size(event.num_bytes, settings)
            found[event.address] = _Found(event.address, size, event.num_bytes, event.stack, True)
    for segment in device.segments:
        for block in segment.blocks:
            if block.state != "free" and block.address not in born:
                known = _Found(block.address, block.num_bytes, block.requested_bytes, block.stack, False)
                found[block.address] = known
    return sorted(found.values(), key=lambda block: block.address)


def _stretch(shells: list[Shell], blocks: list[_Found], device: DeviceSnapshot) -> int:
    """Give blocks of unknown size what lies behind them, where that is certain; how many stay open is returned."""
    lows = [shell.address for shell in shells]
    begins = _first_allocation_behind(blocks, device)
    num_open = 0
    for number, block in enumerate(blocks):
        position = bisect_left(lows, block.address + 1) - 1
        if not block.is_unknown or position < 0 or shells[position].pool == "small":
            continue
        limit = shells[position].address + shells[position].num_bytes
        if number + 1 < len(blocks):
            limit = min(limit, blocks[number + 1].address)
        end = block.address + block.num_bytes
        if limit - end <= SMALL_LIMIT_BYTES:
            block.num_bytes = limit - block.address
        elif end <= begins.get(block.address, -1) < limit:
            block.num_bytes = begins[block.address] - block.address
        else:
            num_open += 1
    return num_open


def _first_allocation_behind(blocks: list[_Found], device: DeviceSnapshot) -> dict[int, int]:
    """For blocks of unknown size: where, while they lived, memory within 1 MiB behind them was first handed out."""
    lows = [block.address for block in blocks]
    living = {block.address: block for block in blocks if block.is_unknown}
    begins: dict[int, int] = {}
    for event in device.events:
        if event.action == "free_completed":
            living.pop(event.address, None)
        elif event.action == "alloc" and living and event.address > lows[0]:
            block = living.get(lows[bisect_left(lows, event.address) - 1])
            if block is not None and event.address - block.address - block.num_bytes <= SMALL_LIMIT_BYTES:
                begins.setdefault(block.address, event.address)
    return begins


def fill_segment(shell: Shell, blocks: list[_Found], lows: list[int]) -> Segment:
    """The blocks of a segment with the free ones in between."""
    position, end = shell.address, shell.address + shell.num_bytes
    filled: list[Block] = []
    for block in blocks[bisect_left(lows, shell.address) : bisect_left(lows, end)]:
        if block.address > position:
            filled.append(Block(address=position, num_bytes=block.address - position))
        filled.append(
            Block(
                address=block.address,
                num_bytes=block.num_bytes,
                requested_bytes=block.requested_bytes,
                state="allocated",
                stack=block.stack,
            )
        )
        position = block.address + block.num_bytes
    if position < end:
        filled.append(Block(address=position, num_bytes=end - position))
    return Segment(
        address=shell.address, num_bytes=shell.num_bytes, stream=shell.stream, pool=shell.pool, blocks=tuple(filled)
    )
