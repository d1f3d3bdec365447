"""A run folder put together process by process: any number of samples each, marks or none, walks, faults and an end.

Where `runs` writes what a training looks like, this writes what a busy machine can leave: processes that were
seen and never read, read once, or read without ever being announced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from memfit.runfolder.writer import RunWriter, write_header
from memfit.testing.made_records.runs import CLOCK_START_NS, MadeRun, made_header
from memfit.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeProcess:
    """What is in the record of one process."""

    pid: int
    parent_pid: int = 1
    command: str = "python"
    is_announced: bool = True
    samples: tuple[tuple[int, int], ...] = ()
    """(microseconds, resident bytes)."""
    high_water_bytes: int | None = None
    """Its VmHWM, as read from its status."""
    marked_peaks_bytes: tuple[int, ...] | None = None
    """One step for each; None for no marks file."""
    rank: tuple[int, int] | None = None
    """(rank, number of ranks), as its marks file tells."""
    exit_mark: bool = False
    num_fault_readings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeTree:
    """What is in the record of the whole job."""

    processes: tuple[MadeProcess, ...] = ()
    walks: tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...] = ()
    """(microseconds, rows of (process, resident bytes, share bytes))."""
    reported_bytes: int | None = None
    """`ru_maxrss` at the end; None for a record without the job's end."""
    floor_bytes: int = 10 * MIB


def write_made_tree(folder: str | Path, tree: MadeTree) -> Path:
    """Write one run folder and return its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_header(folder, made_header(MadeRun()))
    writer = RunWriter(folder)
    for index, process in enumerate(tree.processes):
        _write_process(writer, index, process)
        if process.marked_peaks_bytes is not None:
            _write_marks(folder, process, process.marked_peaks_bytes)
    for time_us, rows in tree.walks:
        parts = [[index, resident, share, share, share] for index, resident, share in rows]
        writer.event("tree", time_us, reason="new maximum", cost_us=100, processes=parts)
    if tree.reported_bytes is not None:
        reported = {"max_resident_bytes": tree.reported_bytes, "floor_bytes": tree.floor_bytes}
        writer.event("job_ended", 5_000_000, exit_code=0, **reported)
    writer.close()
    return folder


def _write_process(writer: RunWriter, index: int, process: MadeProcess) -> None:
    if process.is_announced:
        names = {"pid": process.pid, "parent_pid": process.parent_pid, "command": process.command}
        writer.event("process_started", 0, process=index, **names)
    for time_us, resident_bytes in process.samples:
        writer.sample(time_us, 0, index, 0, resident_bytes, 0)
    if process.high_water_bytes is not None:
        sizes = dict.fromkeys(("high_water_bytes", "resident_bytes", "anonymous_bytes"), process.high_water_bytes)
        writer.event("counters", 1000, process=index, file_bytes=0, shmem_bytes=0, **sizes)
    for number in range(process.num_fault_readings):
        writer.event("faults", 1000 * number, processes=[[index, 3 * MIB * number]])


def _write_marks(folder: Path, process: MadeProcess, peaks_bytes: tuple[int, ...]) -> None:
    head: dict[str, object] = {"format": "memfit-marks", "version": 1, "pid": process.pid}
    if process.rank is not None:
        head |= {"rank": process.rank[0], "world_size": process.rank[1]}
    lines = [f"H {json.dumps(head)}", f"P {CLOCK_START_NS} {MIB} data"]
    for number, peak_bytes in enumerate(peaks_bytes):
        begin_ns = CLOCK_START_NS + number * 1_000_000
        lines += [f"F {begin_ns} {MIB}", f"B {begin_ns + 1000} {peak_bytes}", f"U {begin_ns + 2000} {MIB} 0"]
        lines.append(f"S {begin_ns + 3000} {MIB} 0")
    if process.exit_mark:
        lines.append(f"P {CLOCK_START_NS + 10**9} {MIB} exit")
    (folder / f"marks-{process.pid}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
