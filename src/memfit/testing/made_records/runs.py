"""Made run folders, realistic without any run, for tests, demonstrations and replays.

A made run goes through the same writer as a real one, so every reader is exercised end to end. All numbers follow from
the plan and its seed: the same plan gives the same bytes. Nothing here may be shown as if it had been measured on a
machine; the environment of a made run says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from memfit.runfolder.writer import RunWriter, write_header
from memfit.testing.made_records.ledger import write_ledger
from memfit.units import GIB, MIB

ROOT_PID = 4711
CLOCK_START_NS = 1_000_000_000_000
PHASE_SHARES = {"data": 0.08, "forward": 0.37, "backward": 0.45, "update": 0.10}
_PAGE = 4096

Ending = Literal["done", "failed", "killed", "out of memory", "over the limit", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """The plan of a made run."""

    seconds: float = 12.0
    interval_seconds: float = 0.01
    startup_seconds: float = 2.0
    step_seconds: float = 0.25
    base_bytes: int = 300 * MIB
    step_rise_bytes: int = 160 * MIB
    """How far activations lift the job above its base in every step."""
    num_workers: int = 0
    gpu: bool = False
    energy: Literal["unavailable", "measured", "assumed"] = "unavailable"
    limit_bytes: int | None = None
    ending: Ending = "done"
    marks: bool = True
    ledger: bool = False
    stable: bool = False
    jitter_bytes: int = 256 * 1024
    seed: int = 0
    command: tuple[str, ...] = ("python", "train.py", "--batch-size", "64")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Begin of every phase of every whole step, and the exact peaks, one row per step."""

    edges_seconds: np.ndarray
    """Columns: begin, forward, backward, update, end."""
    peaks_bytes: np.ndarray
    """Columns: data, forward, backward, update."""


def write_made_run(folder: str | Path, plan: MadeRun | None = None) -> Path:
    """Write one run folder and return its path."""
    plan = plan or MadeRun()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    steps = _plan_steps(plan)
    write_header(folder, made_header(plan))
    writer = RunWriter(folder)
    ticks = np.arange(0.0, plan.seconds, plan.interval_seconds) + 0.004
    resident = _resident(plan, steps, ticks)
    _write_samples(writer, plan, ticks, resident)
    _write_events(writer, plan, steps, ticks, resident)
    writer.close()
    if plan.marks:
        _write_marks(folder, plan, steps)
    if plan.ledger and len(steps.edges_seconds):
        write_ledger(folder, ROOT_PID, _traced_step(steps), CLOCK_START_NS)
    return folder


def made_header(plan: MadeRun) -> dict[str, object]:
    """What stands in run.json of a made run."""
    settings = {
        "interval_seconds": plan.interval_seconds,
        "marks": plan.marks,
        "ledger_every": 20 if plan.ledger else None,
        "limit_bytes": plan.limit_bytes,
        "stable": plan.stable,
        "assume_watts": 45.0 if plan.energy == "assumed" else None,
    }
    environment = {
        "memfit": "0.0-made",
        "python": "3.11.7",
        "system": "Linux 6.1 x86_64 (made, not measured)",
        "cpu": "made processor",
        "num_cores": 8,
        "memory_total_bytes": 16 * GIB,
        "libc": "glibc 2.36",
        "transparent_hugepages": "madvise",
        "variables": {"OMP_NUM_THREADS": "4"} | ({"MALLOC_MMAP_THRESHOLD_": "1048576"} if plan.stable else {}),
    }
    return {
        "kind": "measured",
        "run_id": f"made-{plan.seed}",
        "created_at": "2026-03-14T09:26:53+00:00",
        "command": list(plan.command),
        "working_folder": "/home/someone/project",
        "clock_start_ns": CLOCK_START_NS,
        "settings": {name: value for name, value in settings.items() if value is not None},
        "environment": environment,
    }


# ---- the shape of a training -----------------------------------------------------------------------------------------


def _plan_steps(plan: MadeRun) -> _Steps:
    """Whole steps that fit between start-up and end, with a little scatter in time and bytes."""
    rng = np.random.default_rng(plan.seed)
    room = plan.seconds - plan.startup_seconds - 0.2
    num_steps = max(0, int(room / plan.step_seconds)) if plan.marks else 0
    lengths = plan.step_seconds * (1 + 0.03 * rng.standard_normal(num_steps).clip(-2, 2))
    ends = plan.startup_seconds + np.cumsum(lengths)
    kept = ends < plan.seconds - 0.05
    begins, lengths, ends = (ends - lengths)[kept], lengths[kept], ends[kept]
    inner = np.cumsum(list(PHASE_SHARES.values()))[:3]
    edges = np.column_stack([begins, *(begins + lengths * share for share in inner), ends])
    scatter = rng.normal(0, plan.jitter_bytes, (len(begins), 4))
    rise = np.array([0.02, 0.86, 1.0, 0.30]) * plan.step_rise_bytes
    peaks = plan.base_bytes + rise + scatter
    return _Steps(edges_seconds=edges, peaks_bytes=_pages(peaks))


def _pages(num_bytes: np.ndarray) -> np.ndarray:
    return (np.round(np.maximum(num_bytes, 8 * MIB) / _PAGE) * _PAGE).astype(np.int64)


def _resident(plan: MadeRun, steps: _Steps, ticks: np.ndarray) -> np.ndarray:
    """Resident bytes of the main process at every tick: start-up ramp, then one sawtooth per step."""
    ramp_at = np.array([0.0, 0.15, 0.55, 0.6, 0.95, 1.0]) * plan.startup_seconds
    ramp = np.array(
        [9 * MIB, 14 * MIB, 0.72 * plan.base_bytes, 0.72 * plan.base_bytes, plan.base_bytes, plan.base_bytes]
    )
    level = np.interp(ticks, ramp_at, ramp)
    if len(steps.edges_seconds):
        level = level + plan.step_rise_bytes * _sawtooth(steps.edges_seconds, ticks)
    jitter = np.random.default_rng(plan.seed + 1).normal(0, plan.jitter_bytes / 4, len(ticks))
    level = level + np.where(ticks > plan.startup_seconds, jitter, 0)
    highest = steps.peaks_bytes.max() if len(steps.peaks_bytes) else plan.base_bytes
    return np.minimum(_pages(level), int(highest))


def _sawtooth(edges: np.ndarray, ticks: np.ndarray) -> np.ndarray:
    """0 at rest, up to 1 early in the backward pass, for every tick."""
    row = np.clip(np.searchsorted(edges[:, 0], ticks, side="right") - 1, 0, len(edges) - 1)
    begin, forward, backward, update, end = edges[row].T
    share_forward = np.clip((ticks - forward) / (backward - forward), 0, 1)
    share_backward = np.clip((ticks - backward) / (update - backward), 0, 1)
    rising = 0.02 + 0.83 * share_forward
    falling = np.where(share_backward < 0.06, 0.98, 0.98 * (1 - share_backward) + 0.16 * share_backward)
    height = np.where(
        ticks < forward, 0.02, np.where(ticks < backward, rising, np.where(ticks < update, falling, 0.28))
    )
    return np.where((ticks >= begin) & (ticks <= end), height, 0.0)


# ---- what the sampler would have written -----------------------------------------------------------------------------


def _write_samples(writer: RunWriter, plan: MadeRun, ticks: np.ndarray, resident: np.ndarray) -> None:
    late = np.random.default_rng(plan.seed + 2).exponential(80e-6, len(ticks))
    worker = _worker_bytes(plan, ticks)
    alive = ticks >= plan.startup_seconds
    rows = zip(
        (ticks * 1e6).astype(int).tolist(), (late * 1e6).astype(int).tolist(), resident.tolist(),
        worker.tolist(), alive.tolist(), strict=True,
    )  # fmt: skip
    for count, (time_us, late_us, main_bytes, worker_bytes, workers_alive) in enumerate(rows):
        writer.sample(time_us, late_us, 0, 0, main_bytes, 75 * MIB)
        for index in range(1, plan.num_workers + 1 if workers_alive else 1):
            writer.sample(time_us, late_us, index, 0, worker_bytes, 70 * MIB)
        if count % 10_000 == 0:
            writer.flush()
    writer.flush()


def _worker_bytes(plan: MadeRun, ticks: np.ndarray) -> np.ndarray:
    """Resident bytes of a forked data worker: mostly its parent's pages, growing as it touches them."""
    share = np.clip((ticks - plan.startup_seconds) / max(plan.seconds - plan.startup_seconds, 1e-9), 0, 1)
    return _pages(0.8 * plan.base_bytes + 24 * MIB * share)


def _write_events(writer: RunWriter, plan: MadeRun, steps: _Steps, ticks: np.ndarray, resident: np.ndarray) -> None:
    writer.event("process_started", 0, process=0, pid=ROOT_PID, parent_pid=4700, command=" ".join(plan.command))
    started_us = int(plan.startup_seconds * 1e6)
    for index in range(1, plan.num_workers + 1):
        command = f"pt_data_worker {index - 1}"
        writer.event(
            "process_started", started_us, process=index, pid=ROOT_PID + index, parent_pid=ROOT_PID, command=command
        )
    _write_counters(writer, plan, steps, ticks, resident)
    _write_tree_readings(writer, plan, ticks, resident)
    _write_system(writer, plan, ticks, resident)
    if plan.gpu:
        _write_gpu(writer, plan)
    _write_energy(writer, plan)
    if plan.ending != "lost":
        _write_end(writer, plan, steps, resident)


def _write_counters(writer: RunWriter, plan: MadeRun, steps: _Steps, ticks: np.ndarray, resident: np.ndarray) -> None:
    stride = max(1, int(1.0 / plan.interval_seconds))
    high_water = np.maximum.accumulate(resident)
    for row in range(0, len(ticks), stride):
        main = int(resident[row])
        facts = {"anonymous_bytes": max(main - 75 * MIB, MIB), "file_bytes": 74 * MIB, "shmem_bytes": MIB}
        time_us = int(ticks[row] * 1e6)
        writer.event(
            "counters", time_us, process=0, resident_bytes=main, high_water_bytes=int(high_water[row]), **facts
        )
    worker = int(_worker_bytes(plan, ticks[-1:])[0]) if len(ticks) else 0
    for index in range(1, plan.num_workers + 1):
        facts = {"anonymous_bytes": worker - 70 * MIB, "file_bytes": 70 * MIB, "shmem_bytes": 0}
        time_us = int(plan.seconds * 1e6)
        writer.event("counters", time_us, process=index, resident_bytes=worker, high_water_bytes=worker, **facts)
    peak_row = int(resident.argmax())
    rest = int(resident[peak_row]) - 75 * MIB
    parts = {"library_file_bytes": 74 * MIB, "library_data_bytes": 9 * MIB, "stack_bytes": MIB // 4, "shmem_bytes": MIB}
    heap = min(40 * MIB, rest // 3)
    writer.event(
        "maps", int(ticks[peak_row] * 1e6), process=0, heap_bytes=heap, anonymous_bytes=rest - heap - 9 * MIB, **parts
    )


def _write_tree_readings(writer: RunWriter, plan: MadeRun, ticks: np.ndarray, resident: np.ndarray) -> None:
    """Proportional set sizes at the moments the sampler chooses; only a tree needs them."""
    if not plan.num_workers:
        return
    moments = {"workers started": plan.startup_seconds + 0.1, "after warm-up": plan.startup_seconds + 1.0,
               "new maximum": float(ticks[resident.argmax()]), "end": plan.seconds - 0.1}  # fmt: skip
    for reason, at_seconds in moments.items():
        row = min(int(np.searchsorted(ticks, at_seconds)), len(ticks) - 1)
        main, worker = int(resident[row]), int(_worker_bytes(plan, ticks[row : row + 1])[0])
        shared = int(0.62 * plan.base_bytes)
        copies = plan.num_workers + 1
        part = shared // copies
        processes = [[0, main, main - shared + part, main - shared, main - shared + part]]
        for index in range(1, copies):
            processes.append([index, worker, worker - shared + part, worker - shared, worker - shared + part])
        writer.event("tree", int(ticks[row] * 1e6), reason=reason, cost_us=18_500, processes=processes)


def _write_system(writer: RunWriter, plan: MadeRun, ticks: np.ndarray, resident: np.ndarray) -> None:
    rng = np.random.default_rng(plan.seed + 3)
    stride = max(1, int(max(0.5, plan.seconds / 2000) / plan.interval_seconds))
    for row in range(0, len(ticks), stride):
        job = int(resident[row]) + plan.num_workers * 60 * MIB
        background = int(2.1 * GIB + 40 * MIB * np.sin(ticks[row] / 3) + rng.normal(0, 2 * MIB))
        cached, buffers, total = 5 * GIB, 180 * MIB, 16 * GIB
        free = total - cached - buffers - job - background
        writer.event(
            "system", int(ticks[row] * 1e6), total_bytes=total, available_bytes=free + cached, free_bytes=free,
            buffers_bytes=buffers, cached_bytes=cached, active_bytes=int(3.2 * GIB), job_bytes=job,
        )  # fmt: skip


def _write_gpu(writer: RunWriter, plan: MadeRun) -> None:
    for at_seconds in np.arange(0.5, plan.seconds, max(0.5, plan.seconds / 500)):
        own = int(min(3.2, at_seconds) * GIB)
        writer.event(
            "gpu", int(at_seconds * 1e6), device=0, name="Made GPU 24GB", total_bytes=24 * GIB,
            used_bytes=own + 600 * MIB, processes=[[ROOT_PID, own]],
        )  # fmt: skip


def _write_energy(writer: RunWriter, plan: MadeRun) -> None:
    end_us = int(plan.seconds * 1e6)
    window = {"scope": "socket", "window_seconds": plan.seconds}
    if plan.energy == "unavailable":
        reason = "no energy counter under /sys/class/powercap (a virtual machine?); --assume-watts gives an estimate"
        writer.event("energy_unavailable", end_us, reason=reason)
    elif plan.energy == "assumed":
        joules = 45.0 * plan.seconds
        method = "45 W times the duration"
        facts = {"source": "assumed", "method": method, "scope": "machine", "window_seconds": plan.seconds}
        writer.event("energy", end_us, domain="assumed", joules=joules, **facts)
    else:
        method = "powercap counter, read at both ends"
        writer.event("energy", end_us, domain="package-0", joules=31.5 * plan.seconds, method=method, **window)
        writer.event("energy", end_us, domain="dram-0", joules=4.25 * plan.seconds, method=method, **window)


def _write_end(writer: RunWriter, plan: MadeRun, steps: _Steps, resident: np.ndarray) -> None:
    end_us = int(plan.seconds * 1e6)
    for index in range(plan.num_workers, -1, -1):
        writer.event("process_ended", end_us, process=index)
    highest = max(int(resident.max()), int(steps.peaks_bytes.max()) if len(steps.peaks_bytes) else 0)
    exit_code, number = {"done": (0, None), "failed": (1, None), "out of memory": (1, None)}.get(plan.ending, (None, 9))
    if plan.ending == "over the limit":
        facts = {"step": len(steps.edges_seconds) + 1, "phase": "backward"}
        writer.event("limit", end_us, tree_bytes=highest, limit_bytes=plan.limit_bytes or highest - MIB, **facts)
    num_ticks = len(resident)
    writer.event(
        "sampler", end_us, cpu_seconds=plan.seconds * 0.006, wall_seconds=plan.seconds, resident_bytes=13 * MIB,
        num_ticks=num_ticks, num_late_ticks=num_ticks // 500, late_high_us=12_400, num_failed_reads=0,
    )  # fmt: skip
    writer.event(
        "job_ended", end_us, exit_code=exit_code, signal=number, max_resident_bytes=highest, floor_bytes=11 * MIB
    )


# ---- what the job's own process would have written -------------------------------------------------------------------


def _write_marks(folder: Path, plan: MadeRun, steps: _Steps) -> None:
    lines = [f'H {{"format":"memfit-marks","version":1,"pid":{ROOT_PID},"python":"3.11.7"}}']
    for edges, peaks in zip(steps.edges_seconds, steps.peaks_bytes, strict=True):
        at_ns = [CLOCK_START_NS + int(edge * 1e9) for edge in edges[1:]]
        data, forward, backward, update = (int(peak) for peak in peaks)
        lines += [f"F {at_ns[0]} {data}", f"B {at_ns[1]} {forward}", f"U {at_ns[2]} {backward} 0"]
        lines.append(f"S {at_ns[3]} {update} 0")
    end_ns = CLOCK_START_NS + int(plan.seconds * 1e9)
    if plan.ending in ("done", "failed", "out of memory"):
        if plan.ending == "out of memory":
            lines.append('X {"type":"RuntimeError","message":"cannot allocate 2.0 GiB","out_of_memory":true}')
        lines.append(f"P {end_ns} {plan.base_bytes} exit")
    (folder / f"marks-{ROOT_PID}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _traced_step(steps: _Steps) -> tuple[int, float, int]:
    """(number, end in seconds, exact peak) of the step a ledger is made for."""
    row = min(19, len(steps.edges_seconds) - 1)
    return row + 1, float(steps.edges_seconds[row, 4]), int(steps.peaks_bytes[row].max())
