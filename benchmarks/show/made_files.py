"""Large made records for the benchmark: studies, a run of ten million samples, a snapshot of a gigabyte."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import numpy as np

from memfit.records.files import layout
from memfit.records.run_parts.samples import SAMPLE_DTYPE
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_mixed_study

MIB = 2**20


def study_file(folder: Path, num_trials: int) -> Path:
    """A made study in one JSON file."""
    path = folder / f"study-{num_trials}.json"
    path.write_bytes(msgspec.json.encode(made_mixed_study(num_trials)))
    return path


def long_run(folder: Path, num_samples: int) -> tuple[Path, int]:
    """A run folder with so many samples of one process, and its one highest sample."""
    run = write_made_run(folder / "long-run", MadeRun(seconds=5.0, marks=False))
    rng = np.random.default_rng(1)
    rows = np.zeros(num_samples, dtype=SAMPLE_DTYPE)
    rows["time_us"] = np.arange(num_samples, dtype=np.uint64) * 100
    wave = np.sin(np.arange(num_samples) / 700.0)
    rows["resident_bytes"] = (400 * MIB + 80 * MIB * wave + rng.integers(0, MIB, num_samples)).astype(np.uint64)
    peak = 900 * MIB + 4096
    rows["resident_bytes"][num_samples * 2 // 3] = peak
    (run / layout.SAMPLES_FILE).write_bytes(rows.tobytes())
    return run, peak


def large_snapshot(folder: Path, num_bytes: int) -> Path:
    """A snapshot of at least so many bytes: one batch of real events, again and again, as the pickler batches them."""
    frame = {"name": "forward", "filename": "/home/someone/model.py", "line": 12}
    base = 0x7F0000000000
    segments = [
        {
            "device": 0, "address": base + number * 20 * MIB, "total_size": 20 * MIB, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
            "blocks": [
                {"address": base + number * 20 * MIB + k * MIB, "size": MIB, "requested_size": MIB - 512 * (k % 2),
                 "state": "inactive" if k % 5 == 4 else "active_allocated", "frames": [frame]} for k in range(20)
            ],
        } for number in range(1500)
    ]  # fmt: skip
    events = [
        {"action": action, "addr": base + number * 512, "size": 512, "stream": 0, "time_us": number, "frames": [frame]}
        for number in range(500)
        for action in ("alloc", "free_requested")
    ]
    head = pickle.dumps({"segments": segments, "device_traces": [events], "allocator_settings": {}}, protocol=4)
    # A pickle of protocol 4 stands in frames; without them it is the same pickle, and a batch can be repeated.
    plain = _without_frames(head)
    begin = plain.index(b"(", plain.index(b"device_traces") + 14)
    end = plain.index(b"e", _end_of_batch(plain, begin)) + 1
    batch = plain[begin:end]
    path = folder / "large.pickle"
    with open(path, "wb") as file:
        file.write(plain[:begin])
        for _ in range(num_bytes // len(batch) + 1):
            file.write(batch)
        file.write(plain[end:])
    return path


def _without_frames(data: bytes) -> bytes:
    """The same pickle without the marks of its frames."""
    parts, place = [data[:2]], 2
    while place < len(data):
        if data[place] != 0x95:
            parts.append(data[place:])
            break
        size = int.from_bytes(data[place + 1 : place + 9], "little")
        parts.append(data[place + 9 : place + 9 + size])
        place += 9 + size
    return b"".join(parts)


def _end_of_batch(data: bytes, begin: int) -> int:
    """Where the first batch of appended events ends, found by walking over the operations."""
    import pickletools

    depth = 0
    for operation, _, place in pickletools.genops(data):
        if place is None or place < begin:
            continue
        if operation.name == "MARK":
            depth += 1
        elif operation.name in ("APPENDS", "SETITEMS", "TUPLE"):
            depth -= 1
            if depth == 0:
                return place
    raise ValueError("no batch of events")
