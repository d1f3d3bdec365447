"""Export to PyTorch's memory viewer: a snapshot written from the ledger's timeline.

The layout is the dictionary that `torch.cuda.memory._snapshot()` gives (read in torch 2.13): `segments` with their
blocks, and `device_traces` with the allocations and releases that led there. The viewer reads protocol-4 pickles of
plain containers. Addresses are made up: storages are laid out first-fit, because the timeline knows sizes and
lifetimes but no addresses. The devices stand in the order of `memfit_devices`, so a CPU run shows as device 0.
"""

from __future__ import annotations

import pickle
from typing import Any

from memfit.errors import DamagedRecord, UsageError
from memfit.records.run import RunRecord
from memfit.records.run_parts.ledger import LedgerFacts
from memfit.records.timeline import LiveSpan, Timeline

BASE_ADDRESS = 0x7F00_0000_0000
GRAIN_BYTES = 512
SEGMENT_BYTES = 2 * 1024**2


def memory_viewer_pickle(run: RunRecord) -> bytes:
    """The snapshot of the traced step with the highest tensor peak."""
    return pickle.dumps(snapshot_of(run), protocol=4)


def snapshot_of(run: RunRecord) -> dict[str, object]:
    """The snapshot as plain containers; one device after the other."""
    chosen: dict[str, LedgerFacts] = {}
    for facts in run.ledger_facts:
        best = chosen.get(facts.device)
        if facts.timeline is not None and (best is None or facts.tensor_peak_bytes > best.tensor_peak_bytes):
            chosen[facts.device] = facts
    if not chosen:
        raise UsageError(
            "this run holds no timeline of tensors",
            found=f"{len(run.ledger_facts)} traced steps in {run.folder}",
            hint="measure again with --ledger",
        )
    return snapshot_of_timelines({name: facts.timeline for name, facts in chosen.items() if facts.timeline})


def snapshot_of_timelines(timelines: dict[str, Timeline]) -> dict[str, Any]:
    """Lay out every device's spans and write down what happened to them."""
    segments, traces = [], []
    for number, timeline in enumerate(timelines.values()):
        segment, trace = _Layout(number, timeline).play()
        segments.append(segment)
        traces.append(trace)
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {},
        "memfit_devices": list(timelines),
    }


class _Layout:
    """Plays the events of one device in order, giving each living span an address."""

    def __init__(self, device: int, timeline: Timeline) -> None:
        self.device = device
        self.timeline = timeline
        self.base = BASE_ADDRESS + device * 2**40
        self.free: list[tuple[int, int]] = [(self.base, 2**40)]
        """Holes as (address, size), in order of address."""
        self.living: dict[int, tuple[int, LiveSpan]] = {}
        self.trace: list[dict[str, Any]] = []
        self.top = self.base

    def play(self) -> tuple[dict[str, object], list[dict[str, object]]]:
        events = [(span.start, 1, row) for row, span in enumerate(self.timeline.spans)]
        events += [(span.end, 0, row) for row, span in enumerate(self.timeline.spans) if span.end is not None]
        for event, is_start, row in sorted(events):
            span = self.timeline.spans[row]
            if is_start:
                self._allocate(row, span, event)
            elif row in self.living:
                self._release(row, event)
        return self._segment(), self._opening() + self.trace

    def _allocate(self, row: int, span: LiveSpan, event: int) -> None:
        size = _rounded(span.num_bytes)
        hole = next((number for number, (_, room) in enumerate(self.free) if room >= size), None)
        if hole is None:
            raise DamagedRecord(
                "the timeline holds more than a device can address", found=f"a tensor of {span.num_bytes} bytes",
                hint="measure again with --ledger",
            )  # fmt: skip
        address, room = self.free[hole]
        self.free[hole : hole + 1] = [(address + size, room - size)] if room > size else []
        self.living[row] = (address, span)
        self.top = max(self.top, address + size)
        self._note("alloc", address, span, event)

    def _release(self, row: int, event: int) -> None:
        address, span = self.living.pop(row)
        self._note("free_requested", address, span, event)
        self._note("free_completed", address, span, event)
        self.free = _joined([*self.free, (address, _rounded(span.num_bytes))])

    def _note(self, action: str, address: int, span: LiveSpan, event: int) -> None:
        self.trace.append(
            {
                "action": action, "addr": address, "size": _rounded(span.num_bytes), "stream": 0,
                "time_us": self._time_us(event), "frames": _frames(span),
            }
        )  # fmt: skip

    def _time_us(self, event: int) -> int:
        seconds = self.timeline.event_seconds
        return round(seconds[min(event, len(seconds) - 1)] * 1e6) if seconds else event

    def _opening(self) -> list[dict[str, object]]:
        size = self._total_bytes()
        entry = {"action": "segment_alloc", "addr": self.base, "size": size, "stream": 0, "time_us": 0, "frames": []}
        return [entry]

    def _total_bytes(self) -> int:
        used = max(self.top - self.base, 1)
        return -(-used // SEGMENT_BYTES) * SEGMENT_BYTES

    def _segment(self) -> dict[str, object]:
        blocks, cursor = [], self.base
        for address, span in sorted(self.living.values(), key=lambda item: item[0]):
            if address > cursor:
                blocks.append(_block(cursor, address - cursor, "inactive", 0, []))
            size = _rounded(span.num_bytes)
            blocks.append(_block(address, size, "active_allocated", span.num_bytes, _frames(span)))
            cursor = address + size
        end = self.base + self._total_bytes()
        if end > cursor:
            blocks.append(_block(cursor, end - cursor, "inactive", 0, []))
        allocated = sum(_rounded(span.num_bytes) for _, span in self.living.values())
        requested = sum(span.num_bytes for _, span in self.living.values())
        return {
            "device": self.device, "address": self.base, "total_size": self._total_bytes(), "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "allocated_size": allocated,
            "active_size": allocated, "requested_size": requested, "frames": [], "blocks": blocks,
        }  # fmt: skip


def _rounded(num_bytes: int) -> int:
    return max(-(-num_bytes // GRAIN_BYTES), 1) * GRAIN_BYTES


def _joined(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Holes in order, neighbours made one."""
    joined: list[tuple[int, int]] = []
    for address, size in sorted(holes):
        if joined and sum(joined[-1]) == address:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((address, size))
    return joined


def _block(address: int, size: int, state: str, requested: int, frames: list[dict[str, object]]) -> dict[str, object]:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def _frames(span: LiveSpan) -> list[dict[str, object]]:
    """What the viewer shows as a stack: operator, module, then category and phase."""
    file, _, line = span.line.rpartition(":")
    number = int(line) if line.isdigit() else 0
    rows = [span.operator or "allocation", span.module or "(outside of modules)", f"{span.category}, {span.phase}"]
    return [{"name": name, "filename": file or "unknown", "line": number} for name in rows]
