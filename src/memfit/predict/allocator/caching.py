"""PyTorch's CUDA caching allocator: rounding of requests, pools, blocks, segments, splitting and merging.

Requests are rounded up to a multiple of 512 bytes. With `roundup_power2_divisions`, a request that is large enough
goes up to the next of so many equal steps between two powers of two instead, so that requests of nearly the same size
can share a block.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator

from memfit.errors import DoesNotFit
from memfit.predict.allocator.driver import ChunkedMemory, DeviceMemory
from memfit.predict.allocator.settings import DIRECT_SEGMENT_BYTES, NUM_ROUNDUP_INTERVALS, AllocatorSettings
from memfit.predict.allocator.statistics import SMALL_LIMIT_BYTES, AllocatorLog, memory_stats
from memfit.records.cuda.allocator import Block, BlockState, OutOfMemory, Segment
from memfit.units import MIB

MIN_BLOCK_BYTES = 512
_FIRST_INTERVAL_BITS = 20


def round_size(num_bytes: int, settings: AllocatorSettings) -> int:
    """The size of the block that is looked for."""
    if num_bytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    interval = min(max(num_bytes.bit_length() - 1 - _FIRST_INTERVAL_BITS, 0), NUM_ROUNDUP_INTERVALS - 1)
    divisions = settings.roundup_divisions[interval]
    if divisions > 1 and num_bytes > MIN_BLOCK_BYTES * divisions:
        return _next_step(num_bytes, divisions)
    return -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def _next_step(num_bytes: int, divisions: int) -> int:
    """The next of `divisions` equal steps above the power of two below; a power of two stays as it is."""
    floor = 1 << (num_bytes.bit_length() - 1)
    step = floor // divisions
    return -(-num_bytes // step) * step if num_bytes != floor else num_bytes


# Where does PyTorch's CUDA caching allocator put each block, and how much memory does it take from the driver for
# that?
#
# The rules of c10/cuda/CUDACachingAllocator.cpp as of torch 2.14, checked there block by block against the real one:
# sizes are rounded to 512 bytes; requests up to 1 MiB live in segments of 2 MiB, others below 10 MiB in segments of 20
# MiB, larger ones in segments of their own; the smallest free block of the same stream that fits is taken, the lowest
# address first, and split when enough remains; freed neighbours are joined. When the driver has nothing left, whole
# free segments go back and one more try is made. Private pools (CUDA graphs, MemPool) are not simulated.
#
# Blocks are plain integers. The place of a block is its address, with the number of its segment in the bits above where
# ties are broken by the age of segments (PyTorch since May 2026) and not by address (before). A free block is the
# number `size << 72 | place` in a sorted list of its pool, so that the list is in the allocator's own order, and two
# dictionaries find free neighbours by where they begin and end. An event costs O(log n) comparisons and one move within
# a list.

SMALL_SEGMENT_BYTES = 2 * MIB
ROUND_LARGE_BYTES = 2 * MIB
ADDRESS_BITS = 48
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
PLACE_BITS = 72
PLACE_MASK = (1 << PLACE_BITS) - 1


class OutOfDeviceMemory(DoesNotFit):
    """The allocation that failed, as PyTorch would report it."""

    def __init__(self, report: OutOfMemory) -> None:
        super().__init__(report.message, limit_bytes=report.limit_bytes, needed_bytes=report.tried_bytes)
        self.report = report


class Pool:
    """The free blocks of one stream, small or large."""

    __slots__ = ("is_small", "keys", "split_above_bytes", "stream", "unmapped", "unsplit_from_bytes")

    def __init__(self, stream: int, is_small: bool, split_above_bytes: int, unsplit_from_bytes: float) -> None:
        self.stream = stream
        self.is_small = is_small
        self.split_above_bytes = split_above_bytes
        self.unsplit_from_bytes = unsplit_from_bytes
        self.keys: list[int] = []
        self.unmapped: list[int] = []

    def remove(self, size: int, place: int) -> None:
        """Take one free block out of the list."""
        keys = self.keys
        del keys[bisect_left(keys, size << PLACE_BITS | place)]


class CachingAllocator:
    """PyTorch's allocator for one device; a handle is the place of a block."""

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        device_bytes: int | None = None,
        driver: DeviceMemory | None = None,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        if self.settings.expandable_segments and type(self) is CachingAllocator:
            raise TypeError("expandable segments need an ExpandableAllocator; make_allocator chooses the right one")
        self.driver: DeviceMemory = driver or ChunkedMemory(device_bytes)
        self.log = AllocatorLog()
        self._pools: tuple[dict[int, Pool], dict[int, Pool]] = ({}, {})
        self._live: dict[int, tuple[int, int, Pool]] = {}
        self._free_sizes: dict[int, int] = {}
        self._free_ends: dict[int, int] = {}
        self._segments: dict[int, tuple[int, Pool]] = {}
        self._used_elsewhere: set[int] = set()
        self.completes_waiting = True
        """Whether freed blocks that wait for another stream are done by the next allocation; a recording says when."""
        self._waiting: dict[int, tuple[int, int, Pool]] = {}
        self._born: dict[int, int] | None = {} if self._collects_garbage() else None
        self._num_searches = 0
        self._num_registered = 0
        self._max_split = self.settings.max_split_bytes
        self._rounds = any(self.settings.roundup_divisions)
        self._rounded: dict[int, int] = {}
        self._searches_plainly = self._max_split is None and self._born is None

    # --- the three things a program does -------------------------------------------------------------------------

    def allocate(self, num_bytes: int, stream: int = 0) -> int:
        """Hand out a block of at least that many bytes; its place is the handle."""
        if self._waiting and self.completes_waiting:
            self._complete_waiting()
        size = self._round(num_bytes) if self._rounds else (num_bytes + 511) & -512 or 512
        pools = self._pools[size > SMALL_LIMIT_BYTES]
        pool = pools.get(stream) or self._new_pool(stream, size <= SMALL_LIMIT_BYTES)
        keys = pool.keys
        index = bisect_left(keys, size << PLACE_BITS) if self._searches_plainly else self._search(pool, size)
        if index < len(keys):
            key = keys.pop(index)
            place, block_size = key & PLACE_MASK, key >> PLACE_BITS
        else:
            place, block_size = self._after_a_miss(pool, size, num_bytes)
        whole = self._segments.get(place, (0,))[0] == block_size
        rest = block_size - size
        if rest > pool.split_above_bytes and size < pool.unsplit_from_bytes:
            insort(keys, rest << PLACE_BITS | place + size)
            self._free_sizes.pop(place, None)
            self._free_sizes[place + size] = rest
            self._free_ends[place + block_size] = place + size
            if self._born is not None:
                self._born[place + size] = self._num_searches
            block_size = size
            parts = rest + 1 if whole else -size
        else:
            self._free_sizes.pop(place, None)
            self._free_ends.pop(place + block_size, None)
            parts = 0 if whole else -block_size - 1
        self._live[place] = (block_size, num_bytes, pool)
        log = self.log
        log.block_bytes.append(block_size)
        log.requested_bytes.append(num_bytes)
        log.split_parts.append(parts)
        return place

    def free(self, handle: int) -> None:
        """Give a block back; one that another stream used waits until the next allocation."""
        if handle in self._used_elsewhere:
            self.request_free(handle)
            return
        size, requested, pool = self._live.pop(handle)
        log = self.log
        log.block_bytes.append(-size)
        log.requested_bytes.append(-requested)
        log.split_parts.append(self._return_to_pool(handle, size, pool))

    def empty_cache(self) -> None:
        """Give every whole free segment back to the driver."""
        self._release_cached()
        self._note(0, 0, 0)

    # --- blocks that other streams use ---------------------------------------------------------------------------

    def record_stream(self, handle: int, stream: int) -> None:
        """Another stream works on this block: once freed, it waits for that stream."""
        if stream != self._live[handle][2].stream:
            self._used_elsewhere.add(handle)

    def request_free(self, handle: int) -> None:
        """The program gave the block back, but another stream may still use it."""
        self._used_elsewhere.discard(handle)
        block = self._waiting[handle] = self._live.pop(handle)
        self.log.still_active[len(self.log.block_bytes)] = block[0]
        self._note(-block[0], 0, 0)

    def complete_free(self, handle: int) -> None:
        """The other stream is done: now the block can be used again."""
        size, requested, pool = self._waiting.pop(handle)
        parts = self._return_to_pool(handle, size, pool)
        self.log.still_active[len(self.log.block_bytes)] = -size
        self._note(0, -requested, parts)

    def is_waiting(self, handle: int) -> bool:
        """Whether the block was given back and waits for another stream."""
        return handle in self._waiting

    def _complete_waiting(self) -> None:
        for handle in list(self._waiting):
            self.complete_free(handle)

    def _note(self, block_bytes: int, requested_bytes: int, parts: int) -> None:
        self.log.block_bytes.append(block_bytes)
        self.log.requested_bytes.append(requested_bytes)
        self.log.split_parts.append(parts)

    # --- pools ---------------------------------------------------------------------------------------------------

    def _round(self, num_bytes: int) -> int:
        """Sizes repeat, and working one out is dearer than looking it up."""
        size = self._rounded.get(num_bytes)
        if size is None:
            size = self._rounded[num_bytes] = round_size(num_bytes, self.settings)
        return size

    def _new_pool(self, stream: int, is_small: bool) -> Pool:
        if is_small or self.settings.expandable_segments:
            pool = Pool(stream, is_small, 511, math.inf)
        else:
            pool = Pool(stream, is_small, SMALL_LIMIT_BYTES, self._max_split or math.inf)
        self._pools[not is_small][stream] = pool
        return pool

    def _return_to_pool(self, place: int, size: int, pool: Pool) -> int:
        """Join a block with its free neighbours and put it in the list; the change in free parts is returned."""
        free_sizes, free_ends, segments = self._free_sizes, self._free_ends, self._segments
        start, end, parts = place, place + size, 1
        before = free_ends.get(place)
        if before is not None and place not in segments:
            del free_ends[place]
            pool.remove(place - before, before)
            start = before
            parts = 0
        after = free_sizes.get(end)
        if after is not None and end not in segments:
            del free_sizes[end]
            pool.remove(after, end)
            end += after
            parts -= 1
        total = end - start
        free_sizes[start] = total
        free_ends[end] = start
        insort(pool.keys, total << PLACE_BITS | start)
        if self._born is not None:
            self._born[start] = self._num_searches
        if start in segments and segments[start][0] == total:
            return parts - 1 - (total - size)
        return parts + size

    def _search(self, pool: Pool, size: int) -> int:
        """Where in the list the block to take stands; the list's length when there is none."""
        keys = pool.keys
        if self._born is not None and not pool.is_small:
            self._num_searches += 1
        index = bisect_left(keys, size << PLACE_BITS)
        if index == len(keys):
            return index
        return index if self._may_take(keys[index] >> PLACE_BITS, size) else len(keys)

    def _may_take(self, found: int, size: int) -> bool:
        """With a largest split size, a large block is neither cut up nor wasted on a much smaller request."""
        if self._max_split is None:
            return True
        if size < self._max_split:
            return found < self._max_split
        return found < size + self.settings.non_split_rounding_bytes

    # --- when no free block fits ---------------------------------------------------------------------------------

    def _after_a_miss(self, pool: Pool, size: int, num_bytes: int) -> tuple[int, int]:
        """Collect garbage, ask the driver, make room and ask again; the new block, or an error with the report."""
        if self._born is not None:
            self._collect_garbage()
        block = self._grow(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._grow(pool, size)
        if block is None:
            self._release_cached()
            self.log.num_alloc_retries += 1
            block = self._grow(pool, size)
        if block is None:
            self.log.num_ooms += 1
            raise OutOfDeviceMemory(self._report(size, num_bytes))
        return block

    def _grow(self, pool: Pool, size: int) -> tuple[int, int] | None:
        """A new segment from the driver: its address and size."""
        num_bytes = self._segment_bytes(size)
        if self._above_allowed(num_bytes):
            return None
        address = self.driver.allocate(num_bytes)
        if address is None:
            return None
        return self.add_segment(address, num_bytes, pool), num_bytes

    def add_segment(self, address: int, num_bytes: int, pool: Pool) -> int:
        """Enter a segment that came from the driver; its place is returned."""
        place = self._place_of(address)
        self._segments[place] = (num_bytes, pool)
        self.log.reserve(num_bytes, pool.is_small, 1)
        if self._max_split is not None and num_bytes >= self._max_split:
            self.log.oversize_segments.add(1)
        return place

    def _place_of(self, address: int) -> int:
        """Where a new segment stands in the order of ties."""
        if self.settings.ties_by_address:
            return address
        self._num_registered += 1
        return self._num_registered << ADDRESS_BITS | address

    def _segment_bytes(self, size: int) -> int:
        if size <= SMALL_LIMIT_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < DIRECT_SEGMENT_BYTES:
            return self.settings.large_segment_bytes
        return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES

    @property
    def allowed_bytes(self) -> int | None:
        """What this process may reserve; None without a limit of its own."""
        total, fraction = self.driver.total_bytes, self.settings.memory_fraction
        return None if total is None or fraction >= 1 else int(fraction * total)

    def _above_allowed(self, num_bytes: int) -> bool:
        allowed = self.allowed_bytes
        return allowed is not None and self.reserved_bytes + num_bytes > allowed

    def _collects_garbage(self) -> bool:
        return self.settings.garbage_collection_threshold is not None and self.allowed_bytes is not None

    def _collect_garbage(self) -> None:
        """Give back whole large segments that lay idle for longer than the mean, until below the threshold."""
        threshold_bytes = int((self.settings.garbage_collection_threshold or 0) * (self.allowed_bytes or 0))
        target_bytes = self.reserved_bytes - threshold_bytes
        reclaimed = 0
        while reclaimed < target_bytes:
            idle = [(pool, key, self._age(key)) for pool, key in self._whole_segments(large_only=True)]
            mean = sum(age for *_, age in idle) / len(idle) if idle else 0
            old = [(pool, key) for pool, key, age in idle if age >= mean]
            if not old:
                return
            for pool, key in old:
                reclaimed += key >> PLACE_BITS
                self._release_segment(pool, key)

    def _age(self, key: int) -> int:
        return self._num_searches - (self._born or {})[key & PLACE_MASK]

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With a largest split size: give back one block that would have fitted, or several from the largest down."""
        if self._max_split is None:
            return False
        wanted = max(size, self._max_split)
        index = bisect_left(pool.keys, wanted << PLACE_BITS)
        if index < len(pool.keys):
            self._release_segment(pool, pool.keys[index])
            return True
        released = 0
        while released < wanted and pool.keys and pool.keys[-1] >> PLACE_BITS >= self._max_split:
            released += pool.keys[-1] >> PLACE_BITS
            self._release_segment(pool, pool.keys[-1])
        return released >= wanted

    def _release_cached(self) -> None:
        self.log.num_sync_all_streams += 1
        self._complete_waiting()
        for pool, key in list(self._whole_segments()):
            self._release_segment(pool, key)

    def _whole_segments(self, large_only: bool = False) -> Iterator[tuple[Pool, int]]:
        """Every free block that is a whole segment, in the allocator's order: large first, by stream, by size."""
        for pools in (self._pools[1],) if large_only else (self._pools[1], self._pools[0]):
            for stream in sorted(pools):
                for key in pools[stream].keys:
                    if self._segments.get(key & PLACE_MASK, (0,))[0] == key >> PLACE_BITS:
                        yield pools[stream], key

    def _release_segment(self, pool: Pool, key: int) -> None:
        size, place = key >> PLACE_BITS, key & PLACE_MASK
        pool.remove(size, place)
        del self._segments[place], self._free_sizes[place], self._free_ends[place + size]
        self.driver.free(place & ADDRESS_MASK)
        self.log.reserve(-size, pool.is_small, -1)
        if self._max_split is not None and size >= self._max_split:
            self.log.oversize_segments.add(-1)

    # --- beginning in the middle of a run --------------------------------------------------------------------------

    def adopt(self, segment: Segment) -> dict[int, int]:
        """Enter a segment as a snapshot shows it; the handles of its live blocks by address are returned."""
        is_small = segment.pool == "small"
        pool = self._pools[not is_small].get(segment.stream) or self._new_pool(segment.stream, is_small)
        shift = self.add_segment(segment.address, segment.num_bytes, pool) - segment.address
        handles = {}
        for block in segment.blocks:
            place, size = block.address + shift, block.num_bytes
            if block.state == "free":
                self._free_sizes[place] = size
                self._free_ends[place + size] = place
                insort(pool.keys, size << PLACE_BITS | place)
            else:
                self._live[place] = (size, block.requested_bytes, pool)
                self._note(size, block.requested_bytes, 0)
                handles[block.address] = place
        return handles

    def release_segment_at(self, address: int) -> bool:
        """Give one whole free segment back, as a recording says; False when it is not whole and free here."""
        for pool, key in self._whole_segments():
            if key & ADDRESS_MASK == address:
                self._release_segment(pool, key)
                return True
        return False

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def reserved_bytes(self) -> int:
        """Bytes held from the driver."""
        return self.log.reserved["all"].current

    @property
    def allocated_bytes(self) -> int:
        """Bytes of blocks in the program's hands."""
        return sum(size for size, _, _ in self._live.values())

    @property
    def stats(self) -> dict[str, int]:
        """Every figure of `torch.cuda.memory_stats()` by its own name."""
        return memory_stats(self.log, self._max_split, self.settings.expandable_segments)

    def block_bytes(self, handle: int) -> int:
        """The size of a live block after rounding and splitting."""
        return self._live[handle][0]

    def address(self, handle: int) -> int:
        """Where a block lies on the device."""
        return handle & ADDRESS_MASK

    def segments(self) -> tuple[Segment, ...]:
        """Every segment with its blocks, by address, as a memory snapshot lists them."""
        found: list[tuple[int, int, int, BlockState, Pool]] = []
        for place, (size, requested, pool) in self._live.items():
            found.append((place, size, requested, "allocated", pool))
        for place, (size, requested, pool) in self._waiting.items():
            found.append((place, size, requested, "awaiting free", pool))
        for pool in (*self._pools[0].values(), *self._pools[1].values()):
            found.extend((key & PLACE_MASK, key >> PLACE_BITS, 0, "free", pool) for key in pool.keys)
        return group_blocks(sorted(found, key=lambda block: block[0]), self._segments, self.settings)

    def _report(self, size: int, num_bytes: int) -> OutOfMemory:
        return OutOfMemory(
            requested_bytes=num_bytes,
            tried_bytes=self._segment_bytes(size),
            total_bytes=self.driver.total_bytes or 0,
            free_bytes=self.driver.free_bytes or 0,
            allowed_bytes=self.allowed_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
        )


def group_blocks(
    found: list[tuple[int, int, int, BlockState, Pool]],
    starts: dict[int, tuple[int, Pool]],
    settings: AllocatorSettings,
) -> tuple[Segment, ...]:
    """Blocks in order of their places -> segments by address: one begins at a known start, or after a hole."""
    groups: list[tuple[Pool, list[Block]]] = []
    end = -1
    for place, size, requested, state, pool in found:
        if place != end or place in starts:
            groups.append((pool, []))
        block = Block(address=place & ADDRESS_MASK, num_bytes=size, requested_bytes=requested, state=state)
        groups[-1][1].append(block)
        end = place + size
    segments = [
        Segment(
            address=members[0].address,
            num_bytes=sum(block.num_bytes for block in members),
            stream=pool.stream,
            pool="small" if pool.is_small else "large",
            is_expandable=settings.expandable_segments,
            blocks=tuple(members),
        )
        for pool, members in groups
    ]
    return tuple(sorted(segments, key=lambda segment: segment.address))
