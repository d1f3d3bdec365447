"""Which laws hold for the simulated CUDA allocator, whatever it is asked for?"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memfit.predict.allocator.caching import CachingAllocator, OutOfDeviceMemory, round_size
from memfit.predict.allocator.driver import ChunkedMemory, TracedMemory
from memfit.predict.allocator.play import events_of, make_allocator, play, simulate
from memfit.predict.allocator.settings import AllocatorSettings, parse_allocator_settings
from memfit.records.timeline import LiveSpan, Timeline
from memfit.units import KIB, MIB

TEXTS = st.sampled_from(
    ["", "expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:4", "large_segment_size_mb:30"]
)


@st.composite
def sequences(draw: st.DrawFn) -> list[int]:
    """Requests and frees as `simulate` takes them."""
    menu = draw(st.lists(st.integers(1, 60 * MIB) | st.integers(1, 4 * KIB), min_size=1, max_size=6))
    events: list[int] = []
    live: list[int] = []
    count = 0
    for choice in draw(st.lists(st.integers(0, 11), max_size=60)):
        if choice == 11:
            events.append(0)
        elif choice > 6 and live:
            events.append(-1 - live.pop(choice % len(live)))
        else:
            events.append(menu[choice % len(menu)])
            live.append(count)
            count += 1
    return events


@given(sequences(), TEXTS)
def test_live_blocks_never_overlap_and_segments_are_full_of_blocks(events: list[int], text: str):
    allocator = play(events, make_allocator(parse_allocator_settings(text))).allocator
    segments = allocator.segments()
    ends = [0]
    for segment in segments:
        position = segment.address
        assert position >= ends[-1]
        for block in segment.blocks:
            assert block.address == position
            assert block.state != "allocated" or block.num_bytes >= block.requested_bytes
            position += block.num_bytes
        assert position == segment.address + segment.num_bytes
        ends.append(position)
    assert sum(segment.num_bytes for segment in segments) == allocator.reserved_bytes


@given(sequences(), TEXTS)
def test_two_free_blocks_are_never_neighbours(events: list[int], text: str):
    for segment in play(events, make_allocator(parse_allocator_settings(text))).allocator.segments():
        states = [block.state for block in segment.blocks]
        assert ("free", "free") not in set(pairwise(states))


@given(sequences(), TEXTS)
def test_freeing_everything_and_emptying_the_cache_gives_all_back(events: list[int], text: str):
    freed = {-1 - event for event in events if event < 0}
    count = sum(event > 0 for event in events)
    rest = [-1 - number for number in range(count) if number not in freed]
    allocator = play([*events, *rest, 0], make_allocator(parse_allocator_settings(text))).allocator
    assert allocator.reserved_bytes == 0
    assert allocator.segments() == ()
    stats = allocator.stats
    current = {name: value for name, value in stats.items() if name.endswith(".current")}
    assert set(current.values()) == {0}
    assert all(
        stats[name.replace(".current", ".allocated")] == stats[name.replace(".current", ".freed")] for name in current
    )


@given(sequences(), st.sampled_from(["", "expandable_segments:True"]), st.integers(20, 400), st.integers(0, 200))
def test_the_peak_of_reserved_bytes_never_falls_when_the_limit_is_raised(
    events: list[int], text: str, low_mib: int, more_mib: int
):
    told = parse_allocator_settings(text)
    small = play(events, make_allocator(told, low_mib * MIB)).allocator.stats
    large = play(events, make_allocator(told, (low_mib + more_mib) * MIB)).allocator.stats
    assert small["reserved_bytes.all.peak"] <= large["reserved_bytes.all.peak"]
    assert small["reserved_bytes.all.peak"] <= low_mib * MIB


@given(sequences(), st.sampled_from(["", "expandable_segments:True", "roundup_power2_divisions:4"]))
@example([40 * MIB, -1, 60 * MIB, -2, 35 * MIB, 30 * MIB], "")
@settings(max_examples=40, deadline=None)
def test_it_runs_on_the_smallest_device_and_not_on_one_step_less(events: list[int], text: str):
    told = parse_allocator_settings(text)
    run = simulate(events, told, smallest=True)
    least = run.smallest_device_bytes
    assert least is not None
    if run.peak_reserved_bytes:
        assert run.peak_allocated_bytes <= least
        assert play(events, make_allocator(told, least)).failed is None
        assert play(events, make_allocator(told, least - 2 * MIB)).failed is not None


@given(sequences(), TEXTS)
def test_the_record_is_that_of_the_run(events: list[int], text: str):
    run = simulate(events, parse_allocator_settings(text), text=text)
    assert run.num_events == len(events) == len(run.curve.events)
    assert max(run.curve.reserved_bytes, default=0) == run.peak_reserved_bytes
    assert max(run.curve.allocated_bytes, default=0) == run.peak_allocated_bytes
    assert run.peak_requested_bytes <= run.peak_allocated_bytes <= run.peak_reserved_bytes
    assert sum(segment.num_bytes for segment in run.segments_at_peak) == run.peak_reserved_bytes
    assert sum(share.reserved_bytes for share in run.pools_at_peak) == run.peak_reserved_bytes
    thin = simulate(events, parse_allocator_settings(text), max_points=3).curve
    assert len(thin.events) <= 3
    assert max(thin.reserved_bytes, default=0) == run.peak_reserved_bytes


@given(st.integers(1, 1 << 40), st.sampled_from([0, 1, 2, 4, 8, 64]))
def test_rounding_never_shrinks_and_is_done_once(num_bytes: int, divisions: int):
    told = AllocatorSettings(roundup_divisions=(divisions,) * 16)
    rounded = round_size(num_bytes, told)
    assert rounded >= num_bytes
    assert rounded % 512 == 0
    assert round_size(rounded, told) == rounded
    if divisions > 1 and num_bytes > 512 * divisions:
        assert rounded - num_bytes < (1 << num_bytes.bit_length() - 1) / divisions


def test_requests_of_each_size_open_segments_of_their_kind():
    allocator = CachingAllocator()
    for num_bytes in (1, 10 * MIB, 21 * MIB + 1, MIB + 1):
        allocator.allocate(num_bytes)
    assert sorted(segment.num_bytes // MIB for segment in allocator.segments()) == [2, 10, 20, 22]


def test_blocks_are_reused_on_their_own_stream_only():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(5 * MIB, stream=1))
    allocator.allocate(5 * MIB, stream=2)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.allocate(5 * MIB, stream=1)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_block_used_on_another_stream_stays_active_until_the_next_allocation():
    allocator = CachingAllocator()
    handle = allocator.allocate(4 * MIB)
    allocator.record_stream(handle, 3)
    allocator.free(handle)
    assert (allocator.stats["allocated_bytes.all.current"], allocator.stats["active_bytes.all.current"]) == (0, 4 * MIB)
    assert allocator.segments()[0].blocks[0].state == "awaiting free"
    allocator.allocate(512)
    assert allocator.stats["active_bytes.all.current"] == 512


def test_a_failure_reads_as_pytorch_writes_it():
    allocator = CachingAllocator(device_bytes=100 * MIB)
    allocator.allocate(60 * MIB)
    with pytest.raises(OutOfDeviceMemory) as caught:
        allocator.allocate(50 * MIB)
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 100.00 MiB of which "
        "40.00 MiB is free. Of the allocated memory 60.00 MiB is allocated by PyTorch, and 0 bytes is reserved by "
        "PyTorch but unallocated."
    )


def test_a_share_of_the_device_is_a_limit_of_its_own():
    told = AllocatorSettings(memory_fraction=0.5)
    failed = play([30 * MIB, 30 * MIB], CachingAllocator(told, device_bytes=100 * MIB)).failed
    assert failed is not None
    assert failed.limit_bytes == 50 * MIB
    assert "50.00 MiB allowed" in failed.message


def test_whole_free_segments_are_given_back_before_it_fails():
    played = play([40 * MIB, -1, 60 * MIB], CachingAllocator(device_bytes=64 * MIB))
    assert played.failed is None
    assert played.allocator.stats["num_alloc_retries"] == 1
    assert played.allocator.reserved_bytes == 60 * MIB


def test_the_smallest_device_is_found_below_the_peak_of_reserved_bytes():
    run = simulate([40 * MIB, -1, 60 * MIB], smallest=True)
    assert (run.peak_reserved_bytes, run.smallest_device_bytes) == (100 * MIB, 60 * MIB)


def test_an_empty_sequence_is_an_empty_run():
    run = simulate([], smallest=True)
    assert (run.num_events, run.peak_reserved_bytes, run.failed) == (0, 0, None)


def test_the_plain_allocator_refuses_to_stand_in_for_the_growing_one():
    with pytest.raises(TypeError, match="make_allocator"):
        CachingAllocator(AllocatorSettings(expandable_segments=True))


def test_a_timeline_becomes_requests_in_its_own_order():
    spans = (
        LiveSpan(start=0, end=3, num_bytes=100, category="activation", phase="forward", device="cuda:0"),
        LiveSpan(start=1, end=None, num_bytes=200, category="parameter", phase="setup", device="cuda:0"),
        LiveSpan(start=2, end=4, num_bytes=300, category="activation", phase="forward", device="cpu"),
        LiveSpan(start=5, end=6, num_bytes=0, category="temporary", phase="forward", device="cuda:0"),
    )
    assert events_of(Timeline(spans=spans, num_events=7), "cuda:0") == [100, 200, -1]


def test_chunks_go_downwards_and_holes_are_filled_from_below():
    memory = ChunkedMemory(first_address=1 << 40)
    first, second, third = (memory.allocate(20 * MIB) for _ in range(3))
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert isinstance(third, int)
    assert first - second == second - third == 32 * MIB
    assert memory.allocate(4 * MIB) == third + 20 * MIB
    memory.free(second)
    assert memory.allocate(30 * MIB) == second


@given(st.lists(st.integers(0, 9), max_size=80))
def test_addresses_of_the_driver_never_overlap(choices: list[int]):
    memory = ChunkedMemory(400 * MIB)
    held: dict[int, int] = {}
    for choice in choices:
        if choice > 5 and held:
            address = sorted(held)[choice % len(held)]
            del held[address]
            memory.free(address)
        elif (address := memory.allocate((choice * 7 + 1) * 2 * MIB)) is not None:
            held[address] = (choice * 7 + 1) * 2 * MIB
        ranges = sorted(held.items())
        assert all(low + size <= high for (low, size), (high, _) in pairwise(ranges))
    assert memory.free_bytes == 400 * MIB - sum(held.values())


def test_a_recorded_driver_hands_out_its_addresses_in_order():
    memory = TracedMemory([4096, 8192], total_bytes=8 * MIB)
    assert [memory.allocate(2 * MIB), memory.allocate(2 * MIB)] == [4096, 8192]
    assert memory.allocate(6 * MIB) is None
    memory.free(4096)
    assert memory.free_bytes == 6 * MIB
