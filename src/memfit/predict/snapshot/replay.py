"""Replays a recorded snapshot on the simulated allocator, with its own settings and with others.

The recording is run forward from its recovered beginning: the program's requests are given to the simulation, the
driver answers with the recorded addresses, and every placement and every new segment is compared. Nothing is
corrected on the way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from memfit.predict.allocator.caching import CachingAllocator
from memfit.predict.allocator.driver import TracedMemory
from memfit.predict.allocator.expandable import ExpandableAllocator
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.snapshot.expandable_state import recover_ranges
from memfit.predict.snapshot.initial_state import InitialState, recover
from memfit.records.cuda.snapshot import Agreement, DeviceSnapshot


@dataclass(slots=True)
class Forward:
    """A recording run forward in the simulation."""

    allocator: CachingAllocator
    initial: InitialState
    handles: dict[int, int]
    """Recorded address -> the simulation's handle."""
    num_allocations: int = 0
    num_same_place: int = 0
    recorded_segments: list[tuple[int, int]] = field(default_factory=list)
    """(number of the allocation, size) of each new segment, or mapping of pages, in the recording."""
    replayed_segments: list[tuple[int, int]] = field(default_factory=list)
    mapped_addresses: list[int] = field(default_factory=list)
    """Where pages were mapped since the last allocation."""
    first_difference: tuple[int, int, int] | None = None
    """(event, recorded address, simulated address) of the first other placement."""
    log_of_event: list[int] = field(default_factory=list)
    """How many changes the simulation had noted after each event of the recording."""


def run_forward(device: DeviceSnapshot, settings: AllocatorSettings, stop_at: int | None = None) -> Forward:
    """Run a recording from its beginning, up to an event or to its end."""
    forward = (_begin_expandable if settings.expandable_segments else _begin)(device, settings)
    for number, event in enumerate(device.events[:stop_at]):
        _step(forward, number, event.action, event.address, event.num_bytes, event.stream)
        forward.log_of_event.append(len(forward.allocator.log.block_bytes))
    return forward


def _begin(device: DeviceSnapshot, settings: AllocatorSettings) -> Forward:
    initial = recover(device, settings)
    memory = TracedMemory(event.address for event in device.events if event.action == "segment_alloc")
    allocator = CachingAllocator(settings, driver=memory)
    allocator.completes_waiting = False
    forward = Forward(allocator=allocator, initial=initial, handles={})
    for segment in initial.segments:
        memory.adopt(segment.address, segment.num_bytes)
        forward.handles |= allocator.adopt(segment)
    return forward


def _begin_expandable(device: DeviceSnapshot, settings: AllocatorSettings) -> Forward:
    ranges = recover_ranges(device, settings)
    allocator = ExpandableAllocator(settings, driver=TracedMemory(()))
    allocator.completes_waiting = False
    segments = tuple(segment for one in ranges for segment in one.segments)
    initial = InitialState(segments=segments, num_unknown_blocks=0, num_inferred_blocks=0)
    forward = Forward(allocator=allocator, initial=initial, handles={})
    for one in ranges:
        handles = allocator.adopt_range(one.address, one.num_bytes, one.stream, one.pool == "small", one.segments)
        forward.handles |= handles
    return forward


def _step(forward: Forward, number: int, action: str, address: int, num_bytes: int, stream: int) -> None:
    allocator, handles = forward.allocator, forward.handles
    if action == "alloc":
        _allocate(forward, number, address, num_bytes, stream)
    elif action == "free_requested" and address in handles:
        allocator.request_free(handles[address])
    elif action == "free_completed" and address in handles:
        _complete(allocator, handles.pop(address))
    elif action in ("segment_alloc", "segment_map"):
        forward.recorded_segments.append((forward.num_allocations, num_bytes))
        forward.mapped_addresses.append(address)
    elif action == "segment_free":
        allocator.release_segment_at(address)
    elif action == "segment_unmap" and isinstance(allocator, ExpandableAllocator):
        allocator.unmap_at(address, num_bytes)


def _complete(allocator: CachingAllocator, handle: int) -> None:
    """The request may have been made before the recording began."""
    if not allocator.is_waiting(handle):
        allocator.request_free(handle)
    allocator.complete_free(handle)


def _allocate(forward: Forward, number: int, address: int, num_bytes: int, stream: int) -> None:
    allocator = forward.allocator
    changes = allocator.log.reserved_changes
    before, reserved = len(changes), allocator.reserved_bytes
    if isinstance(allocator, ExpandableAllocator) and isinstance(allocator.driver, TracedMemory):
        allocator.driver.expect(forward.mapped_addresses[:1])
    forward.mapped_addresses.clear()
    handle = allocator.allocate(num_bytes, stream)
    for _, after in changes[before:]:
        forward.replayed_segments.append((forward.num_allocations, after - reserved))
        reserved = after
    forward.num_allocations += 1
    if allocator.address(handle) == address:
        forward.num_same_place += 1
    elif forward.first_difference is None:
        forward.first_difference = (number, address, allocator.address(handle))
    forward.handles[address] = handle


def agreement_of(forward: Forward, device: DeviceSnapshot, settings: AllocatorSettings) -> Agreement:
    """How far recording and simulation went together."""
    recorded, replayed = forward.recorded_segments, forward.replayed_segments
    return Agreement(
        num_allocations=forward.num_allocations,
        num_same_place=forward.num_same_place,
        num_segments=max(len(recorded), len(replayed)),
        num_same_segments=(Counter(recorded) & Counter(replayed)).total(),
        recorded_reserved_bytes=sum(segment.num_bytes for segment in device.segments),
        replayed_reserved_bytes=forward.allocator.reserved_bytes,
        num_unknown_blocks=forward.initial.num_unknown_blocks,
        num_inferred_blocks=forward.initial.num_inferred_blocks,
        ties_by_address=settings.ties_by_address,
    )
