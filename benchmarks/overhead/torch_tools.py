"""How is each tool that lives inside the training process switched on around a block of steps, and off again?

A tool has four moments: `start` and `stop` around the block, `before` and `after` around each step. Only what happens
between the first `before` and the last `after` counts as "in the loop"; start and stop are reported apart.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.torch_models import Training
from memfit.measure.in_process import load_inside


class Off:
    """Nothing is switched on."""

    def __init__(self, training: Training, folder: str) -> None:
        self.training = training
        self.folder = folder

    def start(self) -> None:
        """Begin a block."""

    def before(self) -> None:
        """A step follows."""

    def after(self) -> None:
        """A step is over."""

    def stop(self) -> list[int]:
        """End a block; returns the steps of the block (from 1) that were found to be traced."""
        return []


class Marks(Off):
    """memfit's marks of steps and phases with the exact peak of each, as `memfit measure` puts them into any job."""

    every: int | None = None

    def start(self) -> None:
        load_inside().start_marks(self.folder, self.every)

    def stop(self) -> list[int]:
        load_inside().stop_marks()
        for path in Path(self.folder).glob("marks-*.txt"):
            path.unlink()
        return []


class KeptMarks(Off):
    """The same as it is in the middle of a run: between blocks only the hooks are taken out, and put back in."""

    def start(self) -> None:
        inside = load_inside()
        if not inside.start_marks(self.folder):
            inside.this_process._torch_hooks.install()

    def stop(self) -> list[int]:
        load_inside().this_process._torch_hooks.remove()
        return []


class Ledger(Marks):
    """memfit's marks and its ledger, at the default of one traced step in 50."""

    every = 50

    def stop(self) -> list[int]:
        super().stop()
        for path in Path(self.folder).glob("ledger-*.jsonl"):
            path.unlink()
        return []


class OftenLedger(Ledger):
    """The same with one traced step in 10: more of them to time."""

    every = 10


class LedgerProbe(OftenLedger):
    """Finds out which steps that ledger traces, by looking for its dispatch mode in forward passes; not to be timed."""

    def start(self) -> None:
        super().start()
        self._step, self._traced = 0, []
        self._handle = self.training.model.register_forward_hook(self._look)

    def before(self) -> None:
        self._step += 1

    def _look(self, *_: object) -> None:
        if torch._C._len_torch_dispatch_stack():
            self._traced.append(self._step)

    def stop(self) -> list[int]:
        self._handle.remove()
        super().stop()
        return self._traced


class Memray(Off):
    """memray's tracker of every allocation."""

    def start(self) -> None:
        memray = importlib.import_module("memray")
        self._file = tempfile.mktemp(suffix=".bin", dir=self.folder)
        self._tracker = memray.Tracker(self._file)
        self._tracker.__enter__()

    def stop(self) -> list[int]:
        self._tracker.__exit__(None, None, None)
        Path(self._file).unlink()
        return []


class TorchProfiler(Off):
    """torch.profiler with memory, shapes and stacks: what its per-module memory view needs."""

    def start(self) -> None:
        self.profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
        )
        self.profile.start()

    def stop(self) -> list[int]:
        self.profile.stop()
        return []


class MemTracker(Off):
    """torch's own tracker of memory by module and category; it must be reset for every step."""

    def start(self) -> None:
        from torch.distributed._tools.mem_tracker import MemTracker

        self.tracker = MemTracker()
        self.tracker.track_external(self.training.model, self.training.optimizer, *self.training.batch)

    def before(self) -> None:
        self.tracker.reset_mod_stats()
        self.tracker.__enter__()

    def after(self) -> None:
        self.tracker.__exit__(None, None, None)

    def peak_bytes(self) -> int:
        """Tensor bytes at the highest moment, all categories together."""
        snapshot: dict[Any, dict[str, int]] = self.tracker.get_tracker_snapshot("peak")
        return max(parts["Total"] for parts in snapshot.values())


INSIDE: dict[str, Callable[[Training, str], Off]] = {
    "off": Off,
    "marks": Marks,
    "kept marks": KeptMarks,
    "ledger": Ledger,
    "ledger 10": OftenLedger,
    "ledger probe": LedgerProbe,
    "memray": Memray,
    "torch.profiler": TorchProfiler,
    "MemTracker": MemTracker,
}
