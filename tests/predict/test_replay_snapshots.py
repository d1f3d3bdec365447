"""Does a replayed snapshot do what the recording says, made ones and real ones?"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.predict.allocator_settings import AllocatorSettings, parse_allocator_settings
from memfit.predict.caching_allocator import CachingAllocator
from memfit.predict.initial_state import recover
from memfit.predict.replay import agreement_of, run_forward
from memfit.predict.replay_report import best_forward, replay, requests_of
from memfit.predict.simulate import make_allocator, play
from memfit.predict.snapshot_file import read_snapshot
from memfit.records.snapshot import DeviceSnapshot, Frame, Snapshot, TraceEvent
from memfit.units import KIB, MIB

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth" / "cuda_snapshots"
REAL = sorted(TRUTH.glob("*.pickle*"))


def record(events: list[int], told: AllocatorSettings, skip: int = 0) -> DeviceSnapshot:
    """Run events through an allocator and write down what `_record_memory_history` would, from the skipped one on."""
    allocator = CachingAllocator(told)
    handles: list[int] = []
    trace: list[TraceEvent] = []
    for number, event in enumerate(events):
        if number == skip:
            trace.clear()
        known = {segment.address: segment.num_bytes for segment in allocator.segments()}
        if event > 0:
            handles.append(allocator.allocate(event))
        elif event < 0:
            address, requested = allocator.address(handles[-1 - event]), requested_bytes(events, -1 - event)
            allocator.free(handles[-1 - event])
            for action in ("free_requested", "free_completed"):
                trace.append(TraceEvent(action=action, address=address, num_bytes=requested, stack=0))
        else:
            allocator.empty_cache()
        now = {segment.address: segment.num_bytes for segment in allocator.segments()}
        trace += [TraceEvent(action="segment_free", address=a, num_bytes=known[a]) for a in known if a not in now]
        trace += [TraceEvent(action="segment_alloc", address=a, num_bytes=now[a]) for a in now if a not in known]
        if event > 0:
            trace.append(TraceEvent(action="alloc", address=allocator.address(handles[-1]), num_bytes=event, stack=0))
    return DeviceSnapshot(device=0, segments=allocator.segments(), events=tuple(trace if skip < len(events) else []))


def requested_bytes(events: list[int], number: int) -> int:
    return [event for event in events if event > 0][number]


def snapshot_of(device: DeviceSnapshot, told: str = "") -> Snapshot:
    frames = (
        Frame(name="at::empty", filename="??", line=0),
        Frame(name="linear", filename="/lib/site-packages/torch/nn/functional.py", line=3),
        Frame(name="forward", filename="/home/me/model.py", line=12),
    )
    return Snapshot(name="made", devices=(device,), settings=told, frames=frames, stacks=((0, 1, 2),))


@st.composite
def runs(draw: st.DrawFn) -> list[int]:
    menu = draw(st.lists(st.integers(1, 40 * MIB) | st.integers(1, 4 * KIB), min_size=1, max_size=5))
    events: list[int] = []
    live: list[int] = []
    count = 0
    for choice in draw(st.lists(st.integers(0, 11), min_size=1, max_size=50)):
        if choice == 11:
            events.append(0)
        elif choice > 6 and live:
            events.append(-1 - live.pop(choice % len(live)))
        else:
            events.append(menu[choice % len(menu)])
            live.append(count)
            count += 1
    return events


@settings(deadline=None)
@given(runs(), st.booleans())
def test_a_recording_from_the_first_event_on_is_replayed_to_the_address(events: list[int], by_address: bool):
    told = AllocatorSettings(ties_by_address=by_address)
    device = record(events, told)
    forward = run_forward(device, told)
    agreement = agreement_of(forward, device, told)
    assert agreement.num_same_place == agreement.num_allocations == sum(event > 0 for event in events)
    assert agreement.num_same_segments == agreement.num_segments
    assert agreement.same_reserved
    assert forward.allocator.segments() == device.segments


@settings(deadline=None)
@given(runs(), st.integers(0, 40))
def test_the_recovered_beginning_has_the_segments_and_live_blocks_that_were_there(events: list[int], skip: int):
    told = AllocatorSettings(ties_by_address=True)
    skip = min(skip, len(events) - 1)
    before = play(events[:skip], CachingAllocator(told)).allocator.segments()
    found = recover(record(events, told, skip), told)
    assert [(s.address, s.num_bytes, s.pool) for s in found.segments] == [
        (s.address, s.num_bytes, s.pool) for s in before
    ]
    for mine, true in zip(found.segments, before, strict=True):
        live = {block.address: block for block in mine.blocks if block.state == "allocated"}
        assert set(live) == {block.address for block in true.blocks if block.state == "allocated"}
        for block in true.blocks:
            if block.state == "allocated":
                assert 0 <= block.num_bytes - live[block.address].num_bytes <= MIB
        assert sum(block.num_bytes for block in mine.blocks) == mine.num_bytes


def test_a_block_of_unknown_size_gets_the_gap_that_is_too_small_to_be_free():
    told = AllocatorSettings(ties_by_address=True)
    events = [20 * MIB - 600 * KIB, 30 * MIB, -1, -2, 0]
    device = record(events, told, skip=2)
    found = recover(device, told)
    assert (found.num_unknown_blocks, found.num_inferred_blocks) == (2, 2)
    assert sorted(block.num_bytes for segment in found.segments for block in segment.blocks) == [20 * MIB, 30 * MIB]


def test_the_report_names_peaks_lines_pools_and_other_settings():
    events = [30 * MIB, 5 * MIB, 700, -1, 31 * MIB, -2]
    report = replay(
        snapshot_of(record(events, AllocatorSettings(ties_by_address=True))), settings=["max_split_size_mb:30"]
    )
    assert report.peaks["allocated"].value == (32 + 5) * MIB + 1024  # 31 MiB lie unsplit in their segment
    assert report.peaks["reserved"].value == (30 + 20 + 2 + 32) * MIB
    assert {figure.source for figure in report.peaks.values()} == {"measured"}
    assert report.peak_event == 9
    assert [(line.line, line.num_blocks) for line in report.top_lines] == [("model.py:12 in forward", 3)]
    assert sum(share.allocated_bytes for share in report.pools_at_peak) == report.peaks["allocated"].value
    assert [run.settings for run in report.what_if[:2]] == ["", "expandable_segments:True"]
    assert "max_split_size_mb:30" in [run.settings for run in report.what_if]
    assert report.what_if[0].peak_reserved_bytes == report.peaks["reserved"].value


@settings(deadline=None, max_examples=30)
@given(runs())
def test_the_requests_of_a_recording_are_those_that_were_made(events: list[int]):
    device = record(events, AllocatorSettings(ties_by_address=True))
    again = play(requests_of(device).events, make_allocator())
    true = play([event for event in events if event], make_allocator())
    assert again.allocator.stats["requested_bytes.all.peak"] == true.allocator.stats["requested_bytes.all.peak"]
    assert again.allocator.stats["allocation.all.current"] == true.allocator.stats["allocation.all.current"]


def test_a_failure_in_the_recording_is_found_with_its_line():
    device = record([5 * MIB], AllocatorSettings())
    failed = TraceEvent(action="oom", address=7 * MIB, num_bytes=1 << 30, stack=0)
    report = replay(snapshot_of(DeviceSnapshot(device=0, segments=device.segments, events=(*device.events, failed))))
    (failure,) = report.failures
    assert (failure.requested_bytes, failure.driver_free_bytes) == (1 << 30, 7 * MIB)
    assert failure.line == "model.py:12 in forward"


def test_a_recording_with_expandable_segments_says_that_it_was_not_replayed():
    events = (
        TraceEvent(action="segment_map", address=0, num_bytes=20 * MIB),
        TraceEvent(action="alloc", address=0, num_bytes=5 * MIB),
    )
    segments = play([5 * MIB], make_allocator(AllocatorSettings(expandable_segments=True))).allocator.segments()
    report = replay(snapshot_of(DeviceSnapshot(device=0, segments=segments, events=events), "expandable_segments:True"))
    assert "expandable" in report.agreement.reason
    assert report.peaks["allocated"].value == 5 * MIB
    assert report.peaks["reserved"].value == 20 * MIB


def test_a_snapshot_without_events_is_explained_as_it_stands():
    device = record([5 * MIB, 700], AllocatorSettings())
    report = replay(snapshot_of(DeviceSnapshot(device=0, segments=device.segments, events=())))
    assert "no events" in report.agreement.reason
    assert report.peaks["allocated"].value == 5 * MIB + 1024


def test_a_device_that_is_not_there_is_refused_with_those_that_are():
    device = record([5 * MIB], AllocatorSettings())
    with pytest.raises(UsageError, match="it has 0"):
        replay(snapshot_of(device), device=2)
    with pytest.raises(UsageError, match="no memory and no events"):
        replay(Snapshot(name="empty", devices=(), settings=None, frames=(), stacks=()))


@pytest.mark.skipif(not REAL, reason="the real measurements (../shared/truth) are not beside this checkout")
def test_the_real_snapshots_are_all_there():
    assert len(REAL) == 8


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.split(".")[0])
def test_a_real_recording_is_replayed_to_the_address(path: Path):
    snapshot = read_snapshot(path)
    for device in snapshot.devices:
        _, agreement = best_forward(device, parse_allocator_settings(snapshot.settings or ""))
        assert agreement.num_same_place == agreement.num_allocations
        assert agreement.num_same_segments == agreement.num_segments
        assert agreement.same_reserved
        assert agreement.ties_by_address
