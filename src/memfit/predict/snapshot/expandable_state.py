"""The address ranges of expandable segments when a recording began, worked out from its end and its events.

A snapshot lists runs of mapped pages, not the ranges they lie in. Walking back over the map and unmap events gives the
pages at the beginning. In these ranges a block is exactly as large as its rounded request (every rest of 512 bytes is
split off), so that no size is open. What the file does not say is where a range begins and ends: it is taken to begin
at the lowest page seen in it (had there been unmapped room below, the next page that was needed would have been laid
there, and be seen) and to end before the next range, or never.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from memfit.predict.allocator.caching import SMALL_SEGMENT_BYTES, round_size
from memfit.predict.allocator.expandable import UNLIMITED_RANGE_BYTES
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.allocator.statistics import SMALL_LIMIT_BYTES
from memfit.predict.snapshot.initial_state import Shell, blocks_at_start, fill_segment
from memfit.records.cuda.allocator import PoolName, Segment
from memfit.records.cuda.snapshot import DeviceSnapshot, TraceEvent

_Key = tuple[int, PoolName]
"""Stream and pool: each has one range."""
_Runs = list[tuple[int, int]]
"""Begin and end of stretches of mapped pages, by address, none touching another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialRange:
    """One range at the beginning of a recording."""

    address: int
    num_bytes: int
    stream: int
    pool: PoolName
    segments: tuple[Segment, ...]
    """Its runs of mapped pages, with their blocks."""


def recover_ranges(device: DeviceSnapshot, settings: AllocatorSettings) -> tuple[InitialRange, ...]:
    """Every range that had a mapped page when the recording began, by address."""
    owners = _owners(device, settings)
    at_start = _pages_at_start(device, owners)
    starts = {key: _lowest_page(key, runs, device, owners) for key, runs in at_start.items() if runs}
    mapped = {event.address for event in device.events if event.action == "segment_map"}
    every_start = sorted({*starts.values(), *mapped, *(segment.address for segment in device.segments)})
    blocks = blocks_at_start(device, settings)
    lows = [block.address for block in blocks]
    found = []
    for (stream, pool), start in starts.items():
        runs = at_start[stream, pool]
        above = [place for place in every_start if place >= runs[-1][1] and owners.at(place) != (stream, pool)]
        length = min(UNLIMITED_RANGE_BYTES, min(above, default=start + UNLIMITED_RANGE_BYTES) - start)
        segments = tuple(fill_segment(Shell(low, high - low, stream, pool), blocks, lows) for low, high in runs)
        found.append(InitialRange(address=start, num_bytes=length, stream=stream, pool=pool, segments=segments))
    return tuple(sorted(found, key=lambda one: one.address))


class _Owners:
    """Which range an address belongs to, found by the nearest address below it that is known."""

    def __init__(self, known: dict[int, _Key], large_page_bytes: int, most_bytes: int) -> None:
        self._known = known
        self._most_bytes = most_bytes
        """All pages that are spoken of: what lies further apart is in two ranges."""
        self._large_page_bytes = large_page_bytes
        self._places = sorted(known)

    def at(self, address: int) -> _Key | None:
        position = bisect_right(self._places, address)
        return self._known[self._places[max(position - 1, 0)]] if self._places else None

    def of(self, event: TraceEvent) -> _Key:
        """Of an event about pages: known inside it, or near below it on the same stream; else by its size."""
        by_size = (event.stream, "large" if event.num_bytes % self._large_page_bytes == 0 else "small")
        position = bisect_right(self._places, event.address + event.num_bytes - 1)
        for place in self._places[max(position - 1, 0) : position]:
            is_near = event.address - place <= self._most_bytes
            if self._known[place][0] == event.stream and (is_near or self._known[place] == by_size):
                return self._known[place]
        return by_size


def _owners(device: DeviceSnapshot, settings: AllocatorSettings) -> _Owners:
    known: dict[int, _Key] = {}
    for event in device.events:
        if event.action == "segment_map":
            pool = "small" if event.num_bytes == SMALL_SEGMENT_BYTES else "large"
            known[event.address] = (event.stream, pool)
        elif event.action in ("alloc", "free_completed"):
            pool = "small" if round_size(event.num_bytes, settings) <= SMALL_LIMIT_BYTES else "large"
            known[event.address] = (event.stream, pool)
    for segment in device.segments:
        known[segment.address] = (segment.stream, segment.pool)
        known |= {block.address: (segment.stream, segment.pool) for block in segment.blocks}
    moved_bytes = sum(event.num_bytes for event in device.events if event.action in ("segment_map", "segment_unmap"))
    most_bytes = moved_bytes + sum(segment.num_bytes for segment in device.segments)
    return _Owners(known, settings.large_segment_bytes, most_bytes)


def _pages_at_start(device: DeviceSnapshot, owners: _Owners) -> dict[_Key, _Runs]:
    pages: dict[_Key, _Runs] = {}
    for segment in device.segments:
        key = (segment.stream, segment.pool)
        pages[key] = _with(pages.get(key, []), segment.address, segment.address + segment.num_bytes)
    for event in reversed(device.events):
        if event.action in ("segment_map", "segment_unmap"):
            key = owners.of(event)
            change = _without if event.action == "segment_map" else _with
            pages[key] = change(pages.get(key, []), event.address, event.address + event.num_bytes)
    return pages


def _lowest_page(key: _Key, runs: _Runs, device: DeviceSnapshot, owners: _Owners) -> int:
    """The lowest page seen in a range, up to the moment at which it has none left and is given up."""
    lowest, mapped = runs[0][0], sum(high - low for low, high in runs)
    for event in device.events:
        if event.action not in ("segment_map", "segment_unmap") or owners.of(event) != key:
            continue
        lowest = min(lowest, event.address)
        mapped += event.num_bytes if event.action == "segment_map" else -event.num_bytes
        if mapped <= 0:
            break
    return lowest


def _with(runs: _Runs, low: int, high: int) -> _Runs:
    """The runs and one more stretch."""
    apart = [run for run in runs if run[1] < low or run[0] > high]
    joined = [run for run in runs if not (run[1] < low or run[0] > high)]
    merged = (min([low, *(run[0] for run in joined)]), max([high, *(run[1] for run in joined)]))
    return sorted([*apart, merged])


def _without(runs: _Runs, low: int, high: int) -> _Runs:
    """The runs without a stretch."""
    parts = []
    for begin, end in runs:
        parts += [(begin, min(end, low)), (max(begin, high), end)] if begin < high and end > low else [(begin, end)]
    return sorted((begin, end) for begin, end in parts if begin < end)
