"""Do page walks keep to their budget, with one process and with several, with the ledger and without?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from memfit.measure.counters import proc
from memfit.measure.sampler import shared_pages
from memfit.measure.sampler.process_tree import ProcessTree
from memfit.measure.sampler.shared_pages import TreeWalks
from memfit.runfolder.writer import RunWriter

WALK_US = 8_000
RUN_US = 60_000_000


class Clock:
    """A CPU clock on which every walk takes its time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.num_walks = 0

    def walk_one(self, _pid: int) -> tuple[proc.SharedCounters, dict[str, int]]:
        self.now_ns += WALK_US * 1000
        self.num_walks += 1
        return proc.SharedCounters(1 << 28, 1 << 28, 1 << 28, 0, 0), {}


def made_tree(num_processes: int) -> Any:
    processes = {
        pid: SimpleNamespace(
            pid=pid, index=pid, parent_pid=0, born_us=0, resident_bytes=1 << 28, overlap_bytes=None,
            fault_bytes=None,
        )
        for pid in range(num_processes)
    }  # fmt: skip
    return SimpleNamespace(processes=processes)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("num_processes", [1, 3])
def test_the_walks_of_a_run_that_keeps_growing_stay_within_what_is_promised(
    monkeypatch, full: bool, num_processes: int
):
    clock = Clock()
    monkeypatch.setattr(shared_pages.time, "process_time_ns", lambda: clock.now_ns)
    monkeypatch.setattr(proc, "read_maps", clock.walk_one)
    monkeypatch.setattr(proc, "read_rollup", lambda pid: clock.walk_one(pid)[0])
    monkeypatch.setattr(proc, "read_fault_bytes", lambda _: 0)
    writer = cast(RunWriter, SimpleNamespace(event=lambda *_, **__: None))
    walks, tree = TreeWalks(writer, full=full), made_tree(num_processes)
    size = 1 << 28
    for now_us in range(0, RUN_US, 500_000):
        size = int(size * 1.02)
        walks.consider(cast(ProcessTree, tree), now_us, size)
    share = 0.001 if num_processes == 1 else 0.01
    allowance_us = 10_000 if num_processes == 1 else 60_000
    assert clock.num_walks > 1
    assert clock.now_ns / 1000 <= allowance_us + RUN_US * share + WALK_US * num_processes
