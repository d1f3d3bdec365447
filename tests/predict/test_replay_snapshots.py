"""Does a replayed snapshot do what the recording says, made ones and real ones?"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.predict.allocator.caching import CachingAllocator
from memfit.predict.allocator.play import make_allocator, play
from memfit.predict.allocator.settings import AllocatorSettings, parse_allocator_settings
from memfit.predict.snapshot.initial_state import recover
from memfit.predict.snapshot.reader import read_snapshot
from memfit.predict.snapshot.replay import agreement_of, run_forward
from memfit.predict.snapshot.report import best_forward, replay, requests_of
from memfit.records.cuda.snapshot import DeviceSnapshot, Snapshot, StackFrame, TraceEvent
from memfit.show.terminal.replay import replay_text
from memfit.units import KIB, MIB

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth" / "cuda_snapshots"
REAL = sorted(TRUTH.glob("*.pickle*"))


def pages_of(allocator: CachingAllocator) -> dict[int, int]:
    """Mapped pages of 2 MiB of an expandable allocator."""
    step = 2 * MIB
    starts = [(s.address, s.address + s.num_bytes) for s in allocator.segments()]
    return {page: step for low, high in starts for page in range(low, high, step)}


def runs_of(pages: list[int]) -> list[tuple[int, int]]:
    """Neighbouring pages as (address, size)."""
    runs: list[tuple[int, int]] = []
    for page in sorted(pages):
        if runs and sum(runs[-1]) == page:
            runs[-1] = (runs[-1][0], runs[-1][1] + 2 * MIB)
        else:
            runs.append((page, 2 * MIB))
    return runs


def record_expandable(events: list[int], told: AllocatorSettings, skip: int = 0) -> DeviceSnapshot:
    """The same for expandable segments: pages that are mapped and given back."""
    allocator = make_allocator(told)
    handles: list[int] = []
    trace: list[TraceEvent] = []
    for number, event in enumerate(events):
        if number == skip:
            trace.clear()
        known = pages_of(allocator)
        if event > 0:
            handles.append(allocator.allocate(event))
        elif event < 0:
            address, requested = allocator.address(handles[-1 - event]), requested_bytes(events, -1 - event)
            allocator.free(handles[-1 - event])
            for action in ("free_requested", "free_completed"):
                trace.append(TraceEvent(action=action, address=address, num_bytes=requested, stack=0))
        else:
            allocator.empty_cache()
        now = pages_of(allocator)
        gone, new = [p for p in known if p not in now], [p for p in now if p not in known]
        trace += [TraceEvent(action="segment_unmap", address=a, num_bytes=n) for a, n in runs_of(gone)]
        trace += [TraceEvent(action="segment_map", address=a, num_bytes=n) for a, n in runs_of(new)]
        if event > 0:
            trace.append(TraceEvent(action="alloc", address=allocator.address(handles[-1]), num_bytes=event, stack=0))
    return DeviceSnapshot(device=0, segments=allocator.segments(), events=tuple(trace if skip < len(events) else []))


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
        StackFrame(name="at::empty", filename="??", line=0),
        StackFrame(name="linear", filename="/lib/site-packages/torch/nn/functional.py", line=3),
        StackFrame(name="forward", filename="/home/me/model.py", line=12),
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


@settings(deadline=None, max_examples=60)
@example(events=[1048577, 1, 1, -1, 1, 0], skip=4)
@given(runs(), st.integers(0, 40))
def test_a_recording_with_expandable_segments_is_replayed_to_the_address(events: list[int], skip: int):
    told = AllocatorSettings(ties_by_address=True, expandable_segments=True)
    device = record_expandable(events, told, min(skip, len(events) - 1))
    _, agreement = best_forward(device, told)
    assert agreement.num_same_place == agreement.num_allocations
    if not agreement.reason:
        assert agreement.same_reserved
        assert run_forward(device, told).allocator.segments() == device.segments


def test_a_recording_whose_settings_changed_between_kinds_of_segments_says_that_it_was_not_replayed():
    told = AllocatorSettings(expandable_segments=True)
    grown, whole = record_expandable([5 * MIB], told), record([30 * MIB], AllocatorSettings())
    mixed = DeviceSnapshot(device=0, segments=(*grown.segments, *whole.segments), events=(*grown.events, *whole.events))
    report = replay(snapshot_of(mixed, "expandable_segments:True"))
    assert "some are not" in report.agreement.reason
    assert report.peaks["allocated"].value == 35 * MIB


# --- failures -------------------------------------------------------------------------------------------------------


def with_failure(device: DeviceSnapshot, num_bytes: int, driver_free: int, number: int = 0, time_us: int | None = None):
    failed = TraceEvent(action="oom", address=driver_free, num_bytes=num_bytes, stack=0, time_us=time_us)
    return DeviceSnapshot(device=number, segments=device.segments, events=(*device.events, failed))


def fragmented() -> DeviceSnapshot:
    """Two blocks of 40 MiB free, each below a living one of 60 MiB: 80 MiB lie unused, in two pieces."""
    return record([100 * MIB, 100 * MIB, -1, -2, 60 * MIB, 60 * MIB], AllocatorSettings(ties_by_address=True))


def test_a_failure_shows_what_lay_free_and_that_it_was_fragmentation():
    report = replay(snapshot_of(with_failure(fragmented(), 70 * MIB, 10 * MIB)))
    (failure,) = report.failures
    assert failure.memory is not None
    assert failure.memory.reserved_bytes == 200 * MIB
    assert failure.memory.allocated_bytes == 120 * MIB
    assert (failure.memory.num_free_blocks, failure.memory.free_bytes) == (2, 80 * MIB)
    assert failure.memory.largest_free_bytes == 40 * MIB
    text = " ".join(replay_text(report, width=200).split())
    assert "the largest block it could take: 40.0 MiB" in text
    assert "enough: fragmentation" in text
    short = replay(snapshot_of(with_failure(fragmented(), 170 * MIB, 10 * MIB)))
    assert "80.0 MiB would have been missing" in replay_text(short, width=200)


def test_the_failed_request_counts_in_the_least_memory_and_says_which_settings_would_have_fitted():
    report = replay(snapshot_of(with_failure(fragmented(), 70 * MIB, 10 * MIB)))
    served = replay(snapshot_of(fragmented()))
    assert served.available_bytes is None
    assert report.available_bytes == 210 * MIB
    by_name = {run.settings: run for run in report.what_if}
    plain, grown = by_name[""].smallest_device_bytes, by_name["expandable_segments:True"].smallest_device_bytes
    assert plain is not None
    assert grown is not None
    assert plain == (200 + 70) * MIB
    assert grown <= 210 * MIB
    assert (served.what_if[0].smallest_device_bytes or 0) < plain
    rows = [line.split() for line in replay_text(report, width=200).split("\n") if "MiB" in line]
    assert next(row[-1] for row in rows if row[:2] == ["default", "(recorded)"]) == "no"
    assert next(row[-1] for row in rows if row[:1] == ["expandable_segments:True"]) == "yes"


def test_of_two_devices_the_one_that_failed_is_shown_and_the_other_named():
    busy = record([5 * MIB, 6 * MIB, 7 * MIB, 8 * MIB], AllocatorSettings())
    failed = with_failure(record([5 * MIB], AllocatorSettings()), 1 << 30, 0, number=1)
    snapshot = snapshot_of(busy)
    both = Snapshot(name="two", devices=(busy, failed), settings="", frames=snapshot.frames, stacks=snapshot.stacks)
    report = replay(both)
    assert report.device == 1
    assert "ran out of memory" in report.why_this_device
    assert [(other.device, other.num_failures) for other in report.other_devices] == [(0, 0)]
    text = replay_text(report, width=200)
    assert "not shown: device 0" in text
    assert "--device 0" in text
    assert replay(both, device=0).device == 0
    assert replay(both, device=0).other_devices[0].num_failures == 1


def test_of_two_devices_that_failed_the_last_one_is_shown():
    made = record([5 * MIB], AllocatorSettings())
    devices = (with_failure(made, MIB, 0, 0, time_us=20), with_failure(made, MIB, 0, 1, time_us=10))
    snapshot = snapshot_of(made)
    both = Snapshot(name="two", devices=devices, settings="", frames=snapshot.frames, stacks=snapshot.stacks)
    assert replay(both).device == 0


def test_changes_are_against_the_recorded_settings():
    told = "max_split_size_mb:32"
    report = replay(snapshot_of(record([30 * MIB, 5 * MIB], parse_allocator_settings(told)), told))
    assert [run.settings for run in report.what_if[:2]] == [told, ""]
    lines = replay_text(report, width=200).split("\n")
    (mine,) = [line for line in lines if f"{told} (recorded)" in line]
    assert "+" not in mine
    (default,) = [line for line in lines if line.startswith("default")]
    assert "+0 B" in default
    silent = snapshot_of(record([MIB], AllocatorSettings()))
    unknown = Snapshot(name="x", devices=silent.devices, settings=None, frames=silent.frames, stacks=silent.stacks)
    assert "default (taken as recorded)" in replay_text(replay(unknown), width=200)


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


LARGE_BYTES = 100_000
"""Files above this size take seconds; the longer tests read them."""
MARKED = [
    pytest.param(path, marks=pytest.mark.slow if path.stat().st_size > LARGE_BYTES else (), id=path.name.split(".")[0])
    for path in REAL
]


@pytest.mark.slow
@pytest.mark.parametrize("path", MARKED)
def test_a_real_recording_is_replayed_to_the_address(path: Path):
    snapshot = read_snapshot(path)
    for device in snapshot.devices:
        _, agreement = best_forward(device, parse_allocator_settings(snapshot.settings or ""))
        assert agreement.num_same_place == agreement.num_allocations
        assert agreement.num_same_segments == agreement.num_segments
        assert agreement.same_reserved
        assert agreement.ties_by_address
