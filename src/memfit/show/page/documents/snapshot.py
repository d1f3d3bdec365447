"""Document of a CUDA memory snapshot: segments and blocks as columns, pools, and the replay of its events."""

from __future__ import annotations

from memfit.records.cuda.allocator import pool_shares
from memfit.records.cuda.snapshot import DeviceSnapshot, Replay, Snapshot
from memfit.show.as_json import plain
from memfit.show.page.documents.document import Body, Document, codes, numbers
from memfit.units import format_bytes

STATES = ("allocated", "awaiting free", "free")
POOLS = ("small", "large")


def snapshot_document(snapshot: Snapshot, device: DeviceSnapshot, replay: Replay | None) -> Document:
    """Everything the page draws of one device of a snapshot; without a replay, its end alone."""
    blocks = [block for segment in device.segments for block in segment.blocks]
    firsts, total = [], 0
    for segment in device.segments:
        firsts.append(total)
        total += len(segment.blocks)
    body: Body = {
        "sentence": snapshot_sentence(device, replay),
        "segments": {
            "num_bytes": numbers([segment.num_bytes for segment in device.segments]),
            "first_block": numbers(firsts),
            "pool": codes([segment.pool for segment in device.segments], POOLS),
        },
        "blocks": {
            "num_bytes": numbers([block.num_bytes for block in blocks]),
            "state": codes([block.state for block in blocks], STATES),
            "line": codes([_line(snapshot, block.stack) for block in blocks]),
        },
        "pools": [
            plain(share) | {"free_bytes": share.reserved_bytes - share.allocated_bytes}
            for share in pool_shares(device.segments)
        ],
        "replay": None if replay is None else plain(replay),
    }
    return Document(kind="snapshot", title=snapshot.name.rsplit("/", 1)[-1], body=body)


def _line(snapshot: Snapshot, stack: int | None) -> str:
    """The innermost line of Python code of a call stack."""
    if stack is None:
        return ""
    frames = [snapshot.frames[number] for number in snapshot.stacks[stack]]
    python = [frame for frame in frames if frame.filename.endswith(".py")]
    own = [frame for frame in python if "site-packages" not in frame.filename and "/torch/" not in frame.filename]
    for frame in (*own, *python):
        return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.line} in {frame.name}"
    return ""


def snapshot_sentence(device: DeviceSnapshot, replay: Replay | None) -> str:
    """The peak, how much of what was reserved was in use at the end, and whether it ran out of memory."""
    reserved = sum(segment.num_bytes for segment in device.segments)
    used = sum(segment.allocated_bytes for segment in device.segments)
    end = f"at the end {format_bytes(used)} of {format_bytes(reserved)} reserved are allocated"
    if replay is None:
        return f"GPU {device.device}: {end}."
    peak = replay.peaks["allocated"].value or 0.0
    words = f"GPU {device.device} had at most {format_bytes(peak)} allocated, {end}"
    failed = f"; it ran out of memory {len(replay.failures)} times" if replay.failures else ""
    return f"{words}{failed}."
