"""Curves over time of a run, and the resolution at which each is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from memfit.records.run import RunRecord
from memfit.show.views.decimate import DecimationLevel, pyramid
from memfit.show.wording import cut

Role = Literal["tree", "upper bound", "process", "used", "background", "device", "predicted", "imports"]
MAX_DRAWN_PROCESSES = 24
_SAME_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Bytes over time, at one or more resolutions (finest first)."""

    name: str
    role: Role
    index: int
    """The process or device it belongs to; 0 where there is only one."""
    levels: tuple[DecimationLevel, ...]
    source: str = "measured"


def curves_of(run: RunRecord, *, max_rows: int) -> tuple[tuple[Curve, ...], int]:
    """All curves of a run, and how many processes were left out because they are too many to draw."""
    processes, num_hidden = _process_curves(run, max_rows)
    return (*_tree_curves(run, max_rows), *processes, *_system_curves(run), *_gpu_curves(run)), num_hidden


def _tree_curves(run: RunRecord, max_rows: int) -> list[Curve]:
    tree = run.tree
    if not len(tree.time_seconds):
        return []
    source = run.header.kind
    name = "job" if len(run.processes) <= 1 else "whole tree"
    curves = [_curve(name, "tree", 0, tree.time_seconds, tree.tree_bytes, max_rows, source)]
    if np.any(tree.summed_resident_bytes - tree.tree_bytes > _SAME_BYTES):
        rows = max(max_rows // 4, 512)
        summed = tree.summed_resident_bytes
        curves.append(
            _curve("summed resident (upper bound)", "upper bound", 0, tree.time_seconds, summed, rows, source)
        )
    return curves


def imports_curve(tree: Curve, num_bytes: int) -> Curve:
    """The part of the job's curve below what its interpreter and imports take in the end."""
    levels = tuple(
        replace(level, low=np.minimum(level.low, num_bytes), high=np.minimum(level.high, num_bytes))
        for level in tree.levels
    )
    return Curve(name="interpreter and imports", role="imports", index=0, levels=levels, source=tree.source)


def _process_curves(run: RunRecord, max_rows: int) -> tuple[list[Curve], int]:
    """One curve per process, the largest first; a lone process is the tree itself."""
    if len(run.processes) <= 1:
        return [], 0
    order = sorted(run.processes, key=lambda process: -(process.peak.value or 0))
    drawn = sorted(order[:MAX_DRAWN_PROCESSES], key=lambda process: process.index)
    rows = max(min(max_rows, 2 * max_rows // max(len(drawn), 1)), 256)
    curves = []
    for process in drawn:
        own = run.samples.of_process(process.index)
        if len(own):
            name = f"{process.pid} {cut(process.command, 40)}"
            curves.append(_curve(name, "process", process.index, own.time_seconds, own.resident_bytes, rows))
    return curves, len(run.processes) - len(drawn)


def _system_curves(run: RunRecord, max_rows: int = 2048) -> list[Curve]:
    if not run.system:
        return []
    times = np.array([reading.time_seconds for reading in run.system])
    used = np.array([reading.used_bytes for reading in run.system])
    background = np.array([reading.background_bytes for reading in run.system])
    return [
        _curve("system used", "used", 0, times, used, max_rows),
        _curve("background (system used minus this job)", "background", 0, times, background, max_rows),
    ]


def _gpu_curves(run: RunRecord, max_rows: int = 2048) -> list[Curve]:
    curves = []
    for device in sorted({reading.device for reading in run.gpus}):
        rows = [reading for reading in run.gpus if reading.device == device]
        times, used = np.array([r.time_seconds for r in rows]), np.array([r.used_bytes for r in rows])
        curves.append(_curve(f"GPU {device} {rows[0].name}", "device", device, times, used, max_rows))
    return curves


def _curve(
    name: str, role: Role, index: int, times: np.ndarray, values: np.ndarray, max_rows: int, source: str = "measured"
) -> Curve:
    levels = pyramid(times, values, max_rows=max_rows)
    return Curve(name=name, role=role, index=index, levels=levels, source=source)
