"""Report on a snapshot: peaks, who held memory there, unused bytes, and the effect of other settings.

What stands in the recording is measured; block sizes come from replaying it, which is checked to the address. The
rows of other settings are predicted: the same requests, beginning with the blocks that were alive at the start, in an
empty allocator. A request that failed in the recording counts at its moment, as if it had been served and given back
at once. Where a recording cannot be replayed, its curves are read from the events alone, every block as large as its
rounded request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from memfit.errors import UsageError
from memfit.predict.allocator.caching import round_size
from memfit.predict.allocator.play import DEVICE_STEP_BYTES, simulate, thin_curve
from memfit.predict.allocator.settings import AllocatorSettings, parse_allocator_settings
from memfit.predict.allocator.statistics import SMALL_LIMIT_BYTES, allocated_after_each_event, memory_stats
from memfit.predict.snapshot.replay import Forward, agreement_of, run_forward
from memfit.records.cuda.allocator import AllocatorRun, PoolShare, pool_shares
from memfit.records.cuda.snapshot import (
    Agreement,
    DeviceSnapshot,
    FailureFound,
    MemoryAtFailure,
    OtherDevice,
    Replay,
    Snapshot,
    SourceShare,
    TraceEvent,
)  # fmt: skip
from memfit.records.figure import Figure, measured
from memfit.units import format_bytes

WHAT_IF = ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8")
COLLECTED = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99"
MAX_POINTS = 2000
MAX_LINES = 12
MOST_EVENTS_FOR_SMALLEST = 100_000
MOST_FAILURES = 5
"""Of so many failures, the last ones, the allocator's memory is worked out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """What the program asked for, free of where it was put."""

    events: list[int]
    streams: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """The recording after each of its events."""

    allocated: np.ndarray
    reserved: np.ndarray
    peaks: dict[str, Figure]


def replay(
    snapshot: Snapshot, device: int | None = None, settings: Sequence[str] = (), memory_bytes: int | None = None
) -> Replay:
    """Explain one device of a snapshot, and predict other settings (`settings` besides the usual ones)."""
    chosen, why = choose_device(snapshot, device)
    own = parse_allocator_settings(snapshot.settings or "")
    if _is_expandable(chosen):
        own = replace(own, expandable_segments=True)
    forward, agreement = best_forward(chosen, own)
    curves = _curves_of_forward(forward, agreement, chosen) if forward else _curves_of_events(chosen, own)
    peak_event = int(curves.allocated.argmax()) if len(curves.allocated) else 0
    lines, unknown_bytes = lines_alive_at(snapshot, chosen, own, peak_event)
    failures = _failures(snapshot, chosen, own, agreement)
    last = failures[-1] if failures else None
    return Replay(
        snapshot=snapshot.name,
        device=chosen.device,
        devices=tuple(one.device for one in snapshot.devices),
        why_this_device=why,
        other_devices=tuple(_other(one) for one in snapshot.devices if one is not chosen),
        num_events=len(chosen.events),
        duration_seconds=_duration(chosen.events),
        settings=snapshot.settings,
        peaks=curves.peaks,
        pools_at_peak=_pools_at(chosen, own, agreement, peak_event),
        peak_event=peak_event,
        top_lines=lines,
        unknown_lines_bytes=unknown_bytes,
        failures=failures,
        agreement=agreement,
        curve=thin_curve(curves.allocated, curves.reserved, MAX_POINTS),
        what_if=predict_settings(chosen, snapshot.settings or "", settings, memory_bytes),
        available_bytes=last.memory.reserved_bytes + last.driver_free_bytes if last and last.memory else None,
        notes=_notes(chosen),
    )


def choose_device(snapshot: Snapshot, device: int | None) -> tuple[DeviceSnapshot, str]:
    """The device that was asked for, else the one that ran out of memory last, else the one with the most events."""
    if not snapshot.devices:
        raise UsageError("the snapshot holds no memory and no events", found=snapshot.name, hint="record a step first")
    if device is None:
        failed = [one for one in snapshot.devices if _num_failures(one)]
        if failed:
            return max(failed, key=_last_failure), "it ran out of memory" + (" last" if len(failed) > 1 else "")
        busiest = max(snapshot.devices, key=lambda one: (len(one.events), len(one.segments)))
        return busiest, "the only one" if len(snapshot.devices) == 1 else "it has the most events"
    for one in snapshot.devices:
        if one.device == device:
            return one, "asked for"
    known = ", ".join(str(one.device) for one in snapshot.devices)
    raise UsageError("the snapshot has nothing of this device", found=f"device {device}", hint=f"it has {known}")


def _num_failures(device: DeviceSnapshot) -> int:
    return sum(event.action == "oom" for event in device.events)


def _last_failure(device: DeviceSnapshot) -> tuple[int, int]:
    """When, where times are recorded; else how near to the end of the recording."""
    number, event = [(n, event) for n, event in enumerate(device.events) if event.action == "oom"][-1]
    return (-1 if event.time_us is None else event.time_us), number - len(device.events)


def _other(device: DeviceSnapshot) -> OtherDevice:
    return OtherDevice(
        device=device.device,
        num_events=len(device.events),
        num_failures=_num_failures(device),
        reserved_bytes=sum(segment.num_bytes for segment in device.segments),
    )


def _is_expandable(device: DeviceSnapshot) -> bool:
    """Whether the recording shows growing segments, whatever the settings say."""
    mapped = any(event.action in ("segment_map", "segment_unmap") for event in device.events)
    return mapped or any(segment.is_expandable for segment in device.segments)


def _is_mixed(device: DeviceSnapshot) -> bool:
    whole = any(event.action in ("segment_alloc", "segment_free") for event in device.events)
    return _is_expandable(device) and (whole or not all(segment.is_expandable for segment in device.segments))


def _notes(device: DeviceSnapshot) -> tuple[str, ...]:
    private = [segment for segment in device.segments if segment.is_private]
    if not private:
        return ()
    held = format_bytes(sum(segment.num_bytes for segment in private))
    whose = "private pools (CUDA graphs, MemPool), which are simulated as if they were the common one"
    return (f"{len(private)} segments with {held} belong to {whose}",)


def best_forward(device: DeviceSnapshot, settings: AllocatorSettings) -> tuple[Forward | None, Agreement]:
    """Replay under both rules for ties (older and newer PyTorch) and keep the better one."""
    if _is_mixed(device):
        return None, _not_compared(device, "some segments are expandable and some are not: the setting changed")
    if not device.events:
        return None, _not_compared(device, "no events were recorded: call _record_memory_history() before the run")
    found = []
    for by_address in (True, False):
        rules = replace(settings, ties_by_address=by_address)
        forward = run_forward(device, rules)
        found.append((forward, agreement_of(forward, device, rules)))
        if found[-1][1].num_same_place == found[-1][1].num_allocations:
            return found[-1]
    return max(found, key=lambda pair: pair[1].num_same_place)


def _not_compared(device: DeviceSnapshot, reason: str) -> Agreement:
    reserved = sum(segment.num_bytes for segment in device.segments)
    return Agreement(
        num_allocations=sum(event.action == "alloc" for event in device.events), num_same_place=0,
        num_segments=0, num_same_segments=0, recorded_reserved_bytes=reserved, replayed_reserved_bytes=reserved,
        num_unknown_blocks=0, num_inferred_blocks=0, ties_by_address=True, reason=reason,
    )  # fmt: skip


# --- curves ---------------------------------------------------------------------------------------------------------


def _curves_of_forward(forward: Forward, agreement: Agreement, device: DeviceSnapshot) -> Curves:
    log = forward.allocator.log
    allocated = np.concatenate(([0], allocated_after_each_event(log)))[forward.log_of_event]
    stats = memory_stats(log)
    if agreement.num_same_place == agreement.num_allocations:
        method = "from the recording, replayed to the address"
    else:
        method = f"from the recording; {agreement.num_same_place} of {agreement.num_allocations} placements reproduced"
    names = ("requested", "allocated", "active")
    peaks = {name: measured(stats[f"{name}_bytes.all.peak"], "bytes", method) for name in names}
    reserved = _reserved_by_event(device)
    peaks["reserved"] = measured(int(reserved.max()), "bytes", "segments in the recording")
    return Curves(allocated=allocated, reserved=reserved, peaks=peaks)


def _reserved_by_event(device: DeviceSnapshot) -> np.ndarray:
    """Reserved bytes after each event, walked back from the end."""
    sign = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes = np.array([sign.get(event.action, 0) * event.num_bytes for event in device.events], dtype=np.int64)
    final = sum(segment.num_bytes for segment in device.segments)
    return final - changes.sum() + np.cumsum(changes)


def _curves_of_events(device: DeviceSnapshot, settings: AllocatorSettings) -> Curves:
    """Where nothing is replayed: every block counts as its rounded request."""
    sign = {"alloc": 1, "free_requested": -1}
    requested = np.array([sign.get(event.action, 0) * event.num_bytes for event in device.events], dtype=np.int64)
    rounded = np.array(
        [sign.get(e.action, 0) * round_size(e.num_bytes, settings) for e in device.events], dtype=np.int64
    )
    final = sum(segment.allocated_bytes for segment in device.segments)
    final_requested = sum(b.requested_bytes for s in device.segments for b in s.blocks if b.state == "allocated")
    allocated = final - rounded.sum() + np.cumsum(rounded)
    asked = final_requested - requested.sum() + np.cumsum(requested)
    reserved = _reserved_by_event(device)
    now = sum(segment.num_bytes for segment in device.segments)
    method = "from the recording, each block as large as its rounded request"
    values = {"requested": (asked, final_requested), "allocated": (allocated, final), "reserved": (reserved, now)}
    peaks = {
        name: measured(int(curve.max()) if len(curve) else end, "bytes", method)
        for name, (curve, end) in values.items()
    }
    return Curves(allocated=allocated, reserved=reserved, peaks=peaks)


def _pools_at(
    device: DeviceSnapshot, settings: AllocatorSettings, agreement: Agreement, event: int
) -> tuple[PoolShare, ...]:
    """How well the pools were used when the most was allocated; at the end, where nothing could be replayed."""
    if agreement.reason:
        return pool_shares(device.segments)
    rules = replace(settings, ties_by_address=agreement.ties_by_address)
    return pool_shares(run_forward(device, rules, stop_at=event + 1).allocator.segments())


def _duration(events: Sequence[TraceEvent]) -> float | None:
    times = [event.time_us for event in events if event.time_us is not None]
    return (max(times) - min(times)) / 1e6 if times else None


# --- who ------------------------------------------------------------------------------------------------------------


def lines_alive_at(
    snapshot: Snapshot, device: DeviceSnapshot, settings: AllocatorSettings, event: int
) -> tuple[tuple[SourceShare, ...], int]:
    """Rounded bytes alive after an event by the source line that asked for them, and those without a known line."""
    alive: dict[int, tuple[int, int | None]] = {}
    for block in (block for segment in device.segments for block in segment.blocks):
        if block.state == "allocated":
            alive[block.address] = (block.num_bytes, block.stack)
    for one in reversed(device.events[event + 1 :]):
        if one.action == "alloc":
            alive.pop(one.address, None)
        elif one.action == "free_requested":
            alive[one.address] = (round_size(one.num_bytes, settings), None)
    born = {one.address: one.stack for one in device.events[: event + 1] if one.action == "alloc"}
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for address, (num_bytes, stack) in alive.items():
        stack = born.get(address, stack)
        line = source_line(snapshot, stack) if stack is not None else ""
        sizes[line] += num_bytes
        counts[line] += 1
    unknown = sizes.pop("", 0)
    top = sizes.most_common(MAX_LINES)
    return tuple(SourceShare(line=line, num_bytes=size, num_blocks=counts[line]) for line, size in top), unknown


def source_line(snapshot: Snapshot, stack: int) -> str:
    """The innermost line of the user's own Python code; of a library's, where there is none."""
    python = [frame for number in snapshot.stacks[stack] if (frame := snapshot.frames[number]).filename.endswith(".py")]
    own = [frame for frame in python if "site-packages" not in frame.filename and "/torch/" not in frame.filename]
    for frame in (*own, *python):
        return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.line} in {frame.name}"
    return ""


def _failures(
    snapshot: Snapshot, device: DeviceSnapshot, settings: AllocatorSettings, agreement: Agreement
) -> tuple[FailureFound, ...]:
    found = []
    numbers = [number for number, event in enumerate(device.events) if event.action == "oom"]
    for number in numbers:
        event = device.events[number]
        memory, reason = None, f"worked out for the last {MOST_FAILURES} failures only"
        if number in numbers[-MOST_FAILURES:]:
            memory, reason = _memory_at(device, settings, agreement, number)
        found.append(
            FailureFound(
                event=number,
                requested_bytes=event.num_bytes,
                driver_free_bytes=event.address,
                line=source_line(snapshot, event.stack) if event.stack is not None else "",
                memory=memory,
                reason=reason,
            )
        )
    return tuple(found)


def _memory_at(
    device: DeviceSnapshot, settings: AllocatorSettings, agreement: Agreement, number: int
) -> tuple[MemoryAtFailure | None, str]:
    """The allocator's memory when an event failed: replayed, or as it stands where nothing happened afterwards."""
    if not agreement.reason:
        rules = replace(settings, ties_by_address=agreement.ties_by_address)
        segments = run_forward(device, rules, stop_at=number).allocator.segments()
    elif all(event.action in ("oom", "other") for event in device.events[number:]):
        segments = device.segments
    else:
        return None, f"not replayed: {agreement.reason}"
    failed = device.events[number]
    pool = "small" if round_size(failed.num_bytes, settings) <= SMALL_LIMIT_BYTES else "large"
    mine = [segment for segment in segments if segment.pool == pool and segment.stream == failed.stream]
    memory = MemoryAtFailure(
        reserved_bytes=sum(segment.num_bytes for segment in segments),
        allocated_bytes=sum(segment.allocated_bytes for segment in segments),
        num_free_blocks=sum(block.state == "free" for segment in segments for block in segment.blocks),
        free_bytes=sum(segment.free_bytes for segment in segments),
        largest_free_bytes=max((segment.largest_free_bytes for segment in mine), default=0),
    )
    return memory, ""


# --- other settings -------------------------------------------------------------------------------------------------


def requests_of(device: DeviceSnapshot) -> Requests:
    """The program's requests: first what was alive at the beginning, by address, then the recording's own.

    One that failed is served and given back at once: what would have become of it is not recorded.
    """
    born: set[int] = set()
    before: dict[int, tuple[int, int]] = {}
    for event in device.events:
        if event.action == "alloc":
            born.add(event.address)
        elif event.action == "free_completed" and event.address not in born:
            before[event.address] = (event.num_bytes, event.stream)
        elif event.action == "free_completed":
            born.discard(event.address)
    for segment in device.segments:
        for block in segment.blocks:
            if block.state != "free" and block.address not in born:
                before[block.address] = (block.requested_bytes or block.num_bytes, segment.stream)
    return _as_requests(device, before)


def _as_requests(device: DeviceSnapshot, before: dict[int, tuple[int, int]]) -> Requests:
    numbers = {address: number for number, address in enumerate(sorted(before))}
    events = [before[address][0] for address in sorted(before)]
    streams = [before[address][1] for address in sorted(before)]
    for event in device.events:
        if event.action == "alloc" and event.num_bytes > 0:
            numbers[event.address] = len(streams)
            events.append(event.num_bytes)
            streams.append(event.stream)
        elif event.action == "free_completed" and event.address in numbers:
            events.append(-1 - numbers.pop(event.address))
        elif event.action == "oom" and event.num_bytes > 0:
            events += [event.num_bytes, -1 - len(streams)]
            streams.append(event.stream)
    return Requests(events=events, streams=streams)


def predict_settings(
    device: DeviceSnapshot, own: str, extra: Sequence[str], memory_bytes: int | None
) -> tuple[AllocatorRun, ...]:
    """The same requests under the recorded settings and under others; garbage collection needs a limit, so it gets
    the recorded settings' own peak."""
    requests = requests_of(device)
    if not requests.events:
        return ()
    smallest = len(requests.events) <= MOST_EVENTS_FOR_SMALLEST
    texts = list(dict.fromkeys([own, *WHAT_IF, *extra]))
    runs = [_predict(requests, text, memory_bytes, smallest) for text in texts]
    limit = memory_bytes or int(runs[0].peak_reserved_bytes / 0.99) + DEVICE_STEP_BYTES
    return (*runs, _predict(requests, COLLECTED, limit, False))


def _predict(requests: Requests, text: str, memory_bytes: int | None, smallest: bool) -> AllocatorRun:
    settings = parse_allocator_settings(text)
    return simulate(
        requests.events, settings, memory_bytes, streams=requests.streams, text=text, smallest=smallest, max_points=1,
        keep_segments=False,
    )  # fmt: skip
