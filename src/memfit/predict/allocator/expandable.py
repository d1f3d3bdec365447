"""The CUDA caching allocator with `expandable_segments:True`: placement of blocks in growing segments.

Instead of one segment for each driver call, every stream and pool has one long range of addresses (9/8 of the
device), under which pages are laid as they are needed: 2 MiB each for small blocks, 20 MiB for large ones. A request
that no free block fits takes the lowest free and unmapped stretch that is long enough; only its missing pages are
mapped. When memory runs out, wholly free pages are given back. A free block in front of unmapped addresses counts,
for best fit, as long as it could grow.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from memfit.predict.allocator.caching import (
    ADDRESS_MASK,
    PLACE_BITS,
    PLACE_MASK,
    SMALL_SEGMENT_BYTES,
    CachingAllocator,
    Pool,
)
from memfit.predict.allocator.driver import DeviceMemory
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.records.cuda.allocator import Segment
from memfit.units import TIB

UNLIMITED_RANGE_BYTES = 1 * TIB
"""The length of a range on a device that never runs out."""


class ExpandableAllocator(CachingAllocator):
    """The allocator whose segments grow."""

    def __init__(
        self,
        settings: AllocatorSettings,
        device_bytes: int | None = None,
        driver: DeviceMemory | None = None,
    ) -> None:
        super().__init__(settings, device_bytes, driver)
        self._searches_plainly = False
        self._unmapped_sizes: dict[int, int] = {}
        self._unmapped_ends: dict[int, int] = {}

    def _collect_garbage(self) -> None:
        """Only whole segments are collected, and these have none."""

    def _search(self, pool: Pool, size: int) -> int:
        """As without expandable segments, but a block that can grow gives way to one that grows less."""
        keys = pool.keys
        if self._born is not None and not pool.is_small:
            self._num_searches += 1
        index = bisect_left(keys, size << PLACE_BITS)
        if index == len(keys):
            return index
        while index + 1 < len(keys) and self._grown(keys[index + 1]) < self._grown(keys[index]):
            index += 1
        return index if self._may_take(keys[index] >> PLACE_BITS, size) else len(keys)

    def _grown(self, key: int) -> int:
        """The size a free block could grow to."""
        size = key >> PLACE_BITS
        end = (key & PLACE_MASK) + size
        return size if end in self._segments else size + self._unmapped_sizes.get(end, 0)

    def _page_bytes(self, pool: Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.is_small else self.settings.large_segment_bytes

    # --- mapping -------------------------------------------------------------------------------------------------

    def _grow(self, pool: Pool, size: int) -> tuple[int, int] | None:
        """Map pages under the lowest stretch that is long enough, and take the block out of the pool."""
        if self._above_allowed(self._segment_bytes(size)):
            return None
        start = self._find_stretch(pool, size)
        if start in self._unmapped_sizes and not self._map(pool, start, min(self._unmapped_sizes[start], size)):
            return None
        while (have := self._free_sizes[start]) < size:
            missing = min(size - have, self._unmapped_sizes[start + have])
            if not self._map(pool, start + have, missing):
                return None
        pool.remove(have, start)
        return start, have

    def _find_stretch(self, pool: Pool, size: int) -> int:
        for unmapped in pool.unmapped:
            before = None if unmapped in self._segments else self._free_ends.get(unmapped)
            start = unmapped if before is None else before
            if self._has_room(start, size):
                return start
        return self._new_range(pool)

    def _has_room(self, start: int, size: int) -> bool:
        have, position = 0, start
        while have < size:
            part = self._free_sizes.get(position) or self._unmapped_sizes.get(position)
            if part is None:
                return False
            have, position = have + part, position + part
            if position in self._segments:
                break
        return have >= size

    def _new_range(self, pool: Pool) -> int:
        page, total = self._page_bytes(pool), self.driver.total_bytes
        length = UNLIMITED_RANGE_BYTES if total is None else total + total // 8
        num_bytes = max(-(-length // page), 1) * page
        start = self._place_of(self.driver.reserve_range(num_bytes))
        self._segments[start] = (num_bytes, pool)
        self._add_unmapped(pool, start, num_bytes)
        return start

    def _map(self, pool: Pool, start: int, num_bytes: int) -> bool:
        """Lay pages under an unmapped block from its beginning on, all or none."""
        page = self._page_bytes(pool)
        num_pages = -(-num_bytes // page)
        for done in range(num_pages):
            if not self.driver.take_pages(page):
                self.driver.give_pages(done * page)
                return False
        mapped, length = num_pages * page, self._unmapped_sizes[start]
        self._remove_unmapped(pool, start)
        if mapped < length:
            self._add_unmapped(pool, start + mapped, length - mapped)
        self._return_to_pool(start, mapped, pool)
        self.log.reserve(mapped, pool.is_small, 0)
        return True

    # --- giving back ---------------------------------------------------------------------------------------------

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Blocks of growing segments are never given back one by one."""
        return False

    def _release_cached(self) -> None:
        self.log.num_sync_all_streams += 1
        self._complete_waiting()
        for pools in (self._pools[1], self._pools[0]):
            for key, pool in [(key, pools[stream]) for stream in sorted(pools) for key in pools[stream].keys]:
                self._unmap(pool, key & PLACE_MASK, key >> PLACE_BITS)

    def _unmap(self, pool: Pool, start: int, size: int) -> None:
        """Give back the pages that lie wholly inside a free block."""
        page, base = self._page_bytes(pool), self._range_of(start)
        first = base + -(-(start - base) // page) * page
        last = base + (start + size - base) // page * page
        if first < last:
            self._unmap_pages(pool, start, size, first, last)

    def _unmap_pages(self, pool: Pool, start: int, size: int, first: int, last: int) -> None:
        """Give back the pages from `first` to `last` of a free block."""
        pool.remove(size, start)
        del self._free_sizes[start], self._free_ends[start + size]
        for left, right in ((start, first), (last, start + size)):
            if right > left:
                self._add_free(pool, left, right - left)
        self.driver.give_pages(last - first)
        self.log.reserve(first - last, pool.is_small, 0)
        self._return_unmapped(pool, first, last)

    # --- beginning in the middle of a run --------------------------------------------------------------------------

    def adopt_range(
        self, address: int, num_bytes: int, stream: int, is_small: bool, segments: tuple[Segment, ...]
    ) -> dict[int, int]:
        """Enter a range with its runs of mapped pages, by address; the handles of live blocks are returned."""
        pool = self._pools[not is_small].get(stream) or self._new_pool(stream, is_small)
        start = position = self._place_of(address)
        self._segments[start] = (num_bytes, pool)
        handles = {}
        for segment in segments:
            place = start + segment.address - address
            if place > position:
                self._add_unmapped(pool, position, place - position)
            handles |= self._adopt_blocks(pool, segment, place - segment.address)
            self.log.reserve(segment.num_bytes, is_small, 0)
            position = place + segment.num_bytes
        if position < start + num_bytes:
            self._add_unmapped(pool, position, start + num_bytes - position)
        return handles

    def _adopt_blocks(self, pool: Pool, segment: Segment, shift: int) -> dict[int, int]:
        handles = {}
        for block in segment.blocks:
            place = block.address + shift
            if block.state == "free":
                self._add_free(pool, place, block.num_bytes)
            else:
                self._live[place] = (block.num_bytes, block.requested_bytes, pool)
                self._note(block.num_bytes, block.requested_bytes, 0)
                handles[block.address] = place
        return handles

    def unmap_at(self, address: int, num_bytes: int) -> bool:
        """Give pages back, as a recording says; False when they are not mapped and free here."""
        for pool in (*self._pools[1].values(), *self._pools[0].values()):
            for key in pool.keys:
                place, size = key & PLACE_MASK, key >> PLACE_BITS
                first = place + address - (place & ADDRESS_MASK)
                if place <= first and first + num_bytes <= place + size:
                    self._unmap_pages(pool, place, size, first, first + num_bytes)
                    return True
        return False

    def _range_of(self, address: int) -> int:
        starts = sorted(self._segments)
        return starts[bisect_left(starts, address + 1) - 1]

    def _add_free(self, pool: Pool, start: int, size: int) -> None:
        self._free_sizes[start] = size
        self._free_ends[start + size] = start
        insort(pool.keys, size << PLACE_BITS | start)
        if self._born is not None:
            self._born[start] = self._num_searches

    def _return_unmapped(self, pool: Pool, first: int, last: int) -> None:
        """Join unmapped neighbours; a range without any page goes back to the driver."""
        if first not in self._segments and first in self._unmapped_ends:
            before = self._unmapped_ends[first]
            self._remove_unmapped(pool, before)
            first = before
        if last not in self._segments and last in self._unmapped_sizes:
            after = self._unmapped_sizes[last]
            self._remove_unmapped(pool, last)
            last += after
        if first in self._segments and self._segments[first][0] == last - first:
            del self._segments[first]
            self.driver.release_range(first & ADDRESS_MASK)
        else:
            self._add_unmapped(pool, first, last - first)

    def _add_unmapped(self, pool: Pool, start: int, size: int) -> None:
        self._unmapped_sizes[start] = size
        self._unmapped_ends[start + size] = start
        insort(pool.unmapped, start, key=_address_of)

    def _remove_unmapped(self, pool: Pool, start: int) -> None:
        size = self._unmapped_sizes.pop(start)
        del self._unmapped_ends[start + size]
        pool.unmapped.remove(start)


def _address_of(place: int) -> int:
    return place & ADDRESS_MASK
