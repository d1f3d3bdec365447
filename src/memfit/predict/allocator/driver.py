"""Device memory as the CUDA driver hands it out: placement, granularity, and running out of it.

The allocator breaks ties by address, so the order of addresses decides placements. `ChunkedMemory` is the order read
off real allocator snapshots: address space is taken in chunks of whole 32 MiB, each new chunk below the last (holes
of given-back chunks first, the highest first), and a request is served from the lowest free range of any chunk that
fits. `TracedMemory` hands out the addresses of a recorded run instead.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from memfit.units import MIB, TIB

CHUNK_BYTES = 32 * MIB
PAGE_BYTES = 2 * MIB
FIRST_ADDRESS = 64 * TIB
"""Where the first chunk ends by default."""


class DeviceMemory(Protocol):
    """The side of the driver that an allocator sees."""

    total_bytes: int | None
    """The size of the device; None: it never runs out."""

    @property
    def free_bytes(self) -> int | None:
        """What the driver could still hand out; None when the device never runs out."""
        ...

    def allocate(self, num_bytes: int) -> int | None:
        """An address of that many bytes, or None when the device is full."""
        ...

    def free(self, address: int) -> None:
        """Take back what `allocate` gave."""
        ...

    def reserve_range(self, num_bytes: int) -> int:
        """Address space without memory behind it."""
        ...

    def release_range(self, address: int) -> None:
        """Take back address space."""
        ...

    def take_pages(self, num_bytes: int) -> bool:
        """Memory to lay under reserved address space; False when the device is full."""
        ...

    def give_pages(self, num_bytes: int) -> None:
        """Take back memory that lay under reserved address space."""
        ...


class PhysicalMemory:
    """How much of the device is taken; a part may belong to the context from the start."""

    def __init__(self, total_bytes: int | None, context_bytes: int = 0) -> None:
        self.total_bytes = total_bytes
        self._taken_bytes = context_bytes

    @property
    def free_bytes(self) -> int | None:
        """What is left of the device."""
        return None if self.total_bytes is None else max(0, self.total_bytes - self._taken_bytes)

    def take_pages(self, num_bytes: int) -> bool:
        """Count memory as taken, if there is that much."""
        if self.total_bytes is not None and self._taken_bytes + num_bytes > self.total_bytes:
            return False
        self._taken_bytes += num_bytes
        return True

    def give_pages(self, num_bytes: int) -> None:
        """Count memory as free again."""
        self._taken_bytes -= num_bytes


class ChunkedMemory(PhysicalMemory):
    """Addresses in the order of the Linux driver: chunks downwards, the lowest free range that fits inside them."""

    def __init__(
        self, total_bytes: int | None = None, context_bytes: int = 0, *, first_address: int = FIRST_ADDRESS
    ) -> None:
        super().__init__(total_bytes, context_bytes)
        self._bottom = first_address
        self._sizes: dict[int, int] = {}
        self._chunk_starts: list[int] = []
        self._chunk_sizes: dict[int, int] = {}
        self._holes: list[tuple[int, int]] = []
        self._gaps: list[tuple[int, int]] = []

    def allocate(self, num_bytes: int) -> int | None:
        """The lowest range that fits, or a new chunk below all others."""
        whole = _round_up(num_bytes, PAGE_BYTES)
        if not self.take_pages(whole):
            return None
        return self.reserve_range(whole)

    def free(self, address: int) -> None:
        """Take back memory and its addresses."""
        self.give_pages(self._sizes[address])
        self.release_range(address)

    def reserve_range(self, num_bytes: int) -> int:
        """Address space only."""
        whole = _round_up(num_bytes, PAGE_BYTES)
        address = self._from_hole(whole)
        if address is None:
            address = self._from_new_chunk(whole)
        self._sizes[address] = whole
        return address

    def _from_hole(self, num_bytes: int) -> int | None:
        for index, (start, size) in enumerate(self._holes):
            if size >= num_bytes:
                if size == num_bytes:
                    del self._holes[index]
                else:
                    self._holes[index] = (start + num_bytes, size - num_bytes)
                return start
        return None

    def _from_new_chunk(self, num_bytes: int) -> int:
        chunk_bytes = _round_up(num_bytes, CHUNK_BYTES)
        start = self._from_gap(chunk_bytes)
        if start is None:
            self._bottom -= chunk_bytes
            start = self._bottom
        insort(self._chunk_starts, start)
        self._chunk_sizes[start] = chunk_bytes
        if chunk_bytes > num_bytes:
            insort(self._holes, (start + num_bytes, chunk_bytes - num_bytes))
        return start

    def _from_gap(self, chunk_bytes: int) -> int | None:
        for index in range(len(self._gaps) - 1, -1, -1):
            start, size = self._gaps[index]
            if size >= chunk_bytes:
                if size == chunk_bytes:
                    del self._gaps[index]
                else:
                    self._gaps[index] = (start, size - chunk_bytes)
                return start + size - chunk_bytes
        return None

    def release_range(self, address: int) -> None:
        """Join the range to the holes of its chunk; an empty chunk goes back to the address space."""
        size = self._sizes.pop(address)
        position = bisect_left(self._chunk_starts, address + 1) - 1
        chunk = self._chunk_starts[position]
        start, size = _join(self._holes, address, size, chunk, chunk + self._chunk_sizes[chunk])
        if size < self._chunk_sizes[chunk]:
            insort(self._holes, (start, size))
            return
        del self._chunk_starts[position]
        del self._chunk_sizes[chunk]
        insort(self._gaps, _join(self._gaps, start, size, 0, None))


class TracedMemory(PhysicalMemory):
    """The addresses of a recorded run, in their order; address space behind them once they are used up."""

    def __init__(self, addresses: Iterable[int], total_bytes: int | None = None) -> None:
        super().__init__(total_bytes)
        self._addresses = deque(addresses)
        self._beyond = ChunkedMemory(first_address=FIRST_ADDRESS * 3)
        self._sizes: dict[int, int] = {}

    def expect(self, addresses: Iterable[int]) -> None:
        """What the recording hands out next, in place of what was left."""
        self._addresses = deque(addresses)

    def adopt(self, address: int, num_bytes: int) -> None:
        """A segment that was there before the recording began."""
        self._sizes[address] = num_bytes
        self.take_pages(num_bytes)

    def allocate(self, num_bytes: int) -> int | None:
        """The next address of the recording."""
        if not self.take_pages(num_bytes):
            return None
        address = self.reserve_range(num_bytes)
        self._sizes[address] = num_bytes
        return address

    def free(self, address: int) -> None:
        """Count the memory as free again; its address is not handed out a second time."""
        self.give_pages(self._sizes.pop(address))

    def reserve_range(self, num_bytes: int) -> int:
        """The next address of the recording, whatever its size."""
        return self._addresses.popleft() if self._addresses else self._beyond.reserve_range(num_bytes)

    def release_range(self, address: int) -> None:
        """Recorded address space is never given twice."""


def _join(ranges: list[tuple[int, int]], start: int, size: int, low: int, high: int | None) -> tuple[int, int]:
    """Take the neighbours of a range that lie within the bounds out of a sorted list, and return the joined range."""
    index = bisect_left(ranges, (start, 0))
    if index < len(ranges) and ranges[index][0] == start + size and (high is None or start + size < high):
        size += ranges.pop(index)[1]
    if index and sum(ranges[index - 1]) == start and ranges[index - 1][0] >= low and start > low:
        before, before_size = ranges.pop(index - 1)
        start, size = before, size + before_size
    return start, size


def _round_up(num_bytes: int, step_bytes: int) -> int:
    return -(-num_bytes // step_bytes) * step_bytes
