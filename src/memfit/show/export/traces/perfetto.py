"""Export to Perfetto's own format: memory as counters in bytes, steps and phases as slices.

The same tracks as in the chrome trace, which Perfetto reads too, with what that format cannot say: a unit for every
counter, times to the nanosecond and no rounding of bytes (fields as in perfetto 0.55: TracePacket, TrackDescriptor,
TrackEvent). Packets are in the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator

from memfit.records.run import RunRecord
from memfit.show.export.protobuf_wire import double, message, text, varint, whole
from memfit.show.export.traces.chrome_trace import Event, trace_events

_SEQUENCE = 1
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_UNIT_BYTES = 3


def perfetto_trace(run: RunRecord) -> bytes:
    """The whole trace."""
    events = list(trace_events(run))
    tracks: dict[tuple[str, int, str], int] = {}
    heads = list(_descriptors(events, tracks))
    timed = [packet for event in events for packet in _packets(event, tracks)]
    timed.sort(key=lambda packet: packet[:2])
    return b"".join(message(1, packet) for packet in [*heads, *(packet for _, _, packet in timed)])


def _descriptors(events: list[Event], tracks: dict[tuple[str, int, str], int]) -> Iterator[bytes]:
    """A track per process, per counter of a process, and one for its steps."""
    for event in events:
        pid = int(event["pid"])
        if event["ph"] == "M":
            own = _new(tracks, ("process", pid, ""))
            process = whole(1, pid + 1 if pid == 0 else pid) + text(6, str(event["args"]["name"]))
            name = text(2, str(event["args"]["name"]))
            yield _descriptor(whole(1, own) + (message(3, process) if pid else name))
        key = _key(event)
        if key is not None and key not in tracks:
            parent = tracks.get(("process", pid, ""), 0)
            track = whole(1, _new(tracks, key)) + text(2, key[2] or "steps") + whole(5, parent)
            yield _descriptor(track + (message(8, whole(3, _UNIT_BYTES)) if key[0] == "counter" else b""))


def _new(tracks: dict[tuple[str, int, str], int], key: tuple[str, int, str]) -> int:
    return tracks.setdefault(key, len(tracks) + 1)


def _key(event: Event) -> tuple[str, int, str] | None:
    if event["ph"] == "C":
        return ("counter", int(event["pid"]), str(event["name"]))
    return ("slices", int(event["pid"]), "") if event["ph"] == "X" else None


def _descriptor(track: bytes) -> bytes:
    return varint(10 << 3) + varint(_SEQUENCE) + message(60, track)


def _packets(event: Event, tracks: dict[tuple[str, int, str], int]) -> Iterator[tuple[int, int, bytes]]:
    """(nanoseconds, place among packets of one moment, packet): what ends comes before what begins."""
    key = _key(event)
    if key is None:
        return
    at, track = round(event["ts"] * 1000), whole(11, tracks[key])
    if event["ph"] == "C":
        value = float(event["args"]["bytes"])
        number = whole(30, int(value)) if value.is_integer() else double(44, value)
        yield at, 2, _packet(at, whole(9, _COUNTER) + track + number)
        return
    note = b"".join(message(4, text(10, name) + double(5, float(value))) for name, value in event["args"].items())
    end, is_step = at + round(event["dur"] * 1000), event["cat"] == "step"
    if end == at:  # no slice: what begins at that moment would seem to lie inside of it
        yield at, 5, _packet(at, whole(9, _INSTANT) + track + text(23, event["name"]) + note)
        return
    # Of slices that begin together the step holds the phase; of those that end together the phase ends first.
    yield at, 3 if is_step else 4, _packet(at, whole(9, _BEGIN) + track + text(23, event["name"]) + note)
    yield end, 1 if is_step else 0, _packet(end, whole(9, _END) + track)


def _packet(at: int, track_event: bytes) -> bytes:
    return varint(8 << 3) + varint(at) + varint(10 << 3) + varint(_SEQUENCE) + message(11, track_event)
