"""Reader of PyTorch CUDA memory snapshots: both layouts (torch 2.0, and since), plain, .gz or .xz.

Nothing in the file is run, and a file that would unpack to too much is refused. Keys that are not known are passed
over, so that newer files can be read; a block without an address (torch 2.0) lies behind the one before it.
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, get_args

from memfit.errors import DamagedRecord, RecordError
from memfit.predict.snapshot.recorded import RecordedBlock, RecordedEvent, RecordedFrame, RecordedSegment
from memfit.predict.snapshot.safe_pickle import MAX_OBJECT_BYTES, read_plain_pickle
from memfit.records.cuda.allocator import Block, BlockState, Segment
from memfit.records.cuda.snapshot import Action, DeviceSnapshot, Snapshot, StackFrame, TraceEvent
from memfit.regular_file import describe_error, find_zeros, open_regular
from memfit.units import GIB, MIB, format_bytes

MAX_FILE_BYTES = 1 * GIB
_CHUNK_BYTES = 1 * MIB
_XZ_MEMORY_BYTES = 256 * MIB
_ACTIONS: frozenset[str] = frozenset(get_args(Action))
_STATES: dict[str, BlockState] = {
    "active_allocated": "allocated",
    "active_pending_free": "awaiting free",
    "active_awaiting_free": "awaiting free",
    "inactive": "free",
}


class _Unpacker(Protocol):
    """What lzma and zlib have in common."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def read_snapshot(
    path: str | Path, *, max_file_bytes: int = MAX_FILE_BYTES, max_object_bytes: int = MAX_OBJECT_BYTES
) -> Snapshot:
    """Read a file written by `torch.cuda.memory._dump_snapshot`."""
    data = unpack(Path(path), max_file_bytes)
    content = read_plain_pickle(data, max_object_bytes=max_object_bytes)
    return snapshot_of(str(path), content, len(data))


def snapshot_of(name: str, content: object, max_items: int) -> Snapshot:
    """The record of what a pickle held; `max_items` bounds its events and blocks."""
    return _Reader(name, max_items=max_items).snapshot(content)


def unpack(path: Path, max_bytes: int) -> bytes:
    """The bytes of a file, unpacked by what its first bytes say, up to a limit."""
    try:
        with open_regular(path) as file:
            _refuse_hollow(file, max_bytes)
            head = file.read(6)
            file.seek(0)
            return _read_limited(file.read, _unpacker(head), max_bytes)
    except (lzma.LZMAError, zlib.error, EOFError) as error:
        raise DamagedRecord("the packed snapshot cannot be unpacked", found=str(error), hint="copy it again") from None
    except OSError as error:
        found = describe_error(error)
        raise RecordError("the snapshot cannot be opened", found=f"{path}: {found}", hint="check the path") from None


def _refuse_hollow(file: BinaryIO, max_bytes: int) -> None:
    """A file that claims a size and holds zeros is refused before memory is taken for it."""
    zeros_at = find_zeros(file, max_bytes)
    if zeros_at is not None:
        found = f"zeros from byte {zeros_at} on"
        raise DamagedRecord("the snapshot was never written whole", found=found, hint="copy it again")


def _unpacker(head: bytes) -> _Unpacker | None:
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)
    if head.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=31)
    return None


def _read_limited(read: Callable[[int], bytes], unpacker: _Unpacker | None, max_bytes: int) -> bytes:
    """Read on until the end; never hold much more than the limit."""
    parts, total = [], 0
    while chunk := read(_CHUNK_BYTES):
        for part in (chunk,) if unpacker is None else _unpacked(unpacker, chunk):
            parts.append(part)
            total += len(part)
            if total > max_bytes:
                hint = f"the limit is {format_bytes(max_bytes)}; record fewer events (max_entries)"
                raise RecordError("the snapshot is too large", found=f"more than {total} bytes unpacked", hint=hint)
        if unpacker is not None and unpacker.eof:
            break
    if unpacker is not None and not unpacker.eof:
        raise EOFError("the file is cut off")
    return b"".join(parts)


def _unpacked(unpacker: _Unpacker, chunk: bytes) -> Iterator[bytes]:
    """What a chunk unpacks to, in pieces of bounded size."""
    while True:
        yield unpacker.decompress(chunk, _CHUNK_BYTES)
        chunk = getattr(unpacker, "unconsumed_tail", b"")
        if unpacker.eof or not (chunk or not getattr(unpacker, "needs_input", True)):
            return


class _Reader:
    """Turns the dictionaries of a snapshot into records, sharing frames and stacks."""

    def __init__(self, name: str, max_items: int) -> None:
        self.name = name
        self._items_left = max_items
        self.frames: dict[tuple[str, str, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._known: dict[int, int | None] = {}

    def _count(self) -> None:
        """Every event and block takes bytes in the file; more of them than bytes are the same ones again and again."""
        self._items_left -= 1
        if self._items_left < 0:
            raise RecordError("the snapshot repeats itself without end", found="more events than the file has bytes")

    def snapshot(self, content: object) -> Snapshot:
        """The whole file."""
        if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
            parts = sorted(map(str, content))[:5] if isinstance(content, Iterable) else []
            found = f"a {type(content).__name__}" + (f" with {parts}" if parts else "")
            raise RecordError("this pickle is no memory snapshot", found=found, hint="torch.cuda.memory._dump_snapshot")
        try:
            devices = self._devices(content["segments"], content.get("device_traces") or [])
            settings = settings_text(content.get("allocator_settings"))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            found = f"{type(error).__name__}: {error}"
            raise DamagedRecord("the snapshot's contents are not as PyTorch writes them", found=found) from None
        frames = tuple(StackFrame(name=name, filename=file, line=line) for name, file, line in self.frames)
        return Snapshot(name=self.name, devices=devices, settings=settings, frames=frames, stacks=tuple(self.stacks))

    def _devices(
        self, segments: list[RecordedSegment], traces: list[list[RecordedEvent]]
    ) -> tuple[DeviceSnapshot, ...]:
        by_device: dict[int, list[Segment]] = {}
        for segment in segments:
            by_device.setdefault(int(segment.get("device", 0)), []).append(self._segment(segment))
        numbers = sorted(set(by_device) | {number for number, trace in enumerate(traces) if trace})
        return tuple(
            DeviceSnapshot(
                device=number,
                segments=tuple(sorted(by_device.get(number, []), key=lambda segment: segment.address)),
                events=tuple(map(self._event, traces[number] if number < len(traces) else ())),
            )
            for number in numbers
        )

    def _segment(self, segment: RecordedSegment) -> Segment:
        address, blocks = int(segment["address"]), []
        for block in segment["blocks"]:
            address = int(block.get("address", address))
            blocks.append(self._block(block, address))
            address += blocks[-1].num_bytes
        return Segment(
            address=int(segment["address"]),
            num_bytes=int(segment["total_size"]),
            stream=int(segment.get("stream", 0)),
            pool="small" if segment["segment_type"] == "small" else "large",
            is_expandable=bool(segment.get("is_expandable", False)),
            is_private=any(segment.get("segment_pool_id") or ()),
            blocks=tuple(blocks),
        )

    def _block(self, block: RecordedBlock, address: int) -> Block:
        self._count()
        state = _STATES[block["state"]]
        history = block.get("history") or ()
        requested = block.get("requested_size") or (history[0].get("real_size", 0) if history else 0)
        frames = block.get("frames") or (history[0].get("frames") if history else None)
        return Block(
            address=address,
            num_bytes=int(block["size"]),
            requested_bytes=0 if state == "free" else int(requested),
            state=state,
            stack=self._stack(frames),
        )

    def _event(self, event: RecordedEvent) -> TraceEvent:
        self._count()
        action = event["action"]
        time_us = event.get("time_us")
        return TraceEvent(
            action=action if action in _ACTIONS else "other",
            address=int(event.get("addr", event.get("device_free", 0))),
            num_bytes=int(event.get("size", 0)),
            stream=int(event.get("stream", 0)),
            stack=self._stack(event.get("frames")),
            time_us=None if time_us is None else int(time_us),
        )

    def _stack(self, frames: Sequence[RecordedFrame] | None) -> int | None:
        if not frames:
            return None
        known = self._known.get(id(frames))
        if known is None:
            numbers = tuple(map(self._frame, frames))
            known = self._known[id(frames)] = self.stacks.setdefault(numbers, len(self.stacks))
        return known

    def _frame(self, frame: RecordedFrame) -> int:
        known = self._known.get(id(frame))
        if known is None:
            key = (str(frame["name"]), str(frame["filename"]), int(frame["line"]))
            known = self._known[id(frame)] = self.frames.setdefault(key, len(self.frames))
        return known


def settings_text(settings: object) -> str | None:
    """The allocator's settings as they would be written in PYTORCH_ALLOC_CONF."""
    if not isinstance(settings, dict):
        return None
    parts = []
    if settings.get("expandable_segments"):
        parts.append("expandable_segments:True")
    if (split := int(settings.get("max_split_size", -1))) > 0:
        parts.append(f"max_split_size_mb:{split // MIB}")
    if (threshold := float(settings.get("garbage_collection_threshold", 0))) > 0:
        parts.append(f"garbage_collection_threshold:{threshold:g}")
    divisions = settings.get("roundup_power2_divisions") or {}
    if any(divisions.values()):
        listed = ",".join(f"{interval}:{steps}" for interval, steps in divisions.items())
        parts.append(f"roundup_power2_divisions:[{listed}]")
    return ",".join([*parts, *_settings_only_in_text(settings)])


_ONLY_IN_TEXT = ("max_non_split_rounding_mb", "large_segment_size_mb", "per_process_memory_fraction")


def _settings_only_in_text(settings: Mapping[str, object]) -> list[str]:
    """Settings that stand only in the variable the program was started with, which the snapshot keeps as text."""
    text = str(settings.get("PYTORCH_ALLOC_CONF") or settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
    pairs = (part.partition(":") for part in text.replace(" ", "").split(","))
    texts = []
    for key, _, value in pairs:
        if key in _ONLY_IN_TEXT and re.fullmatch(r"[\d.]{1,20}", value):
            texts.append(f"{key}:{value}")
    return texts
