"""How is an unmodified script run on the phantom GPU until it has made enough optimizer steps?

As `python script.py arguments` would run it, in this (child) process. Data loaders load in this process, files go to a
scratch folder, `torch.compile` leaves the model as it is. The run ends by an exception that no `except Exception`
catches.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.data
from torch.utils.data import dataloader

from memfit.predict.phantom.torch_watch import Watch, tensors_in
from memfit.predict.scratch_files import ScratchFiles

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""
IN_THIS_PROCESS = {
    "num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "timeout": 0,
    "multiprocessing_context": None, "worker_init_fn": None,
}  # fmt: skip

Note = Callable[[str, str], None]


class EnoughSteps(BaseException):
    """The script has made the steps that were asked for."""


class NeverStepped(Exception):
    """The script ended without an optimizer step."""


class ScriptLeft(Exception):
    """The script left by itself with an exit code."""


class StepCounter:
    """Ends the run after enough steps of every optimizer that was built."""

    def __init__(self, watch: Watch, num_steps: int) -> None:
        self._watch, self._num_steps = watch, num_steps
        self._built: set[int] = set()
        self.is_done = False

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step."""
        counts = self._watch.num_updates
        most = max(counts.values())
        self._watch.step = most + 1
        all_there = all(counts.get(key, 0) >= self._num_steps for key in self._built | set(counts))
        if all_there or most >= self._num_steps * OTHERS_MAY_LAG:
            self.is_done = True
            raise EnoughSteps

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, optimizers are noticed when they are built."""
        original, counter = torch.optim.Optimizer.__init__, self

        def built(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            counter._built.add(id(self))

        with patch.object(torch.optim.Optimizer, "__init__", built):
            yield


def run_script(
    path: str, arguments: tuple[str, ...], scratch_folder: str, num_steps: int, watch: Watch, note: Note
) -> None:
    """Run it; NeverStepped or ScriptLeft when it does not come to its steps."""
    counter, files = StepCounter(watch, num_steps), ScratchFiles(scratch_folder)
    watch.on_update = counter.stepped
    watch.step = 1
    with counter.listening(), loading_here(watch), left_out(note), files.guarding():
        _run(path, arguments, counter)
    made = max(watch.num_updates.values(), default=0)
    if not made:
        raise NeverStepped
    if not counter.is_done:
        note("script", f"the script ended by itself after {made} of {num_steps} optimizer steps")
    if files.redirected:
        note(
            "script", f"{len(files.redirected)} files that the script writes were kept in a scratch folder and removed"
        )


def _run(path: str, arguments: tuple[str, ...], counter: StepCounter) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with patch.object(sys, "argv", [path, *arguments]), patch.object(sys, "path", [folder, *sys.path]):
            runpy.run_path(path, run_name="__main__")
    except EnoughSteps:
        pass
    except SystemExit as leaving:
        if leaving.code not in (None, 0) and not counter.is_done:
            raise ScriptLeft(str(leaving.code)) from leaving


@contextlib.contextmanager
def loading_here(watch: Watch) -> Iterator[None]:
    """Data loaders work in this process, and what they make belongs to the phase 'data'."""
    make, following = torch.utils.data.DataLoader.__init__, dataloader._BaseDataLoaderIter.__next__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:])
        kwargs.update({name: value for name, value in IN_THIS_PROCESS.items() if name in kwargs})
        make(self, *args, **kwargs)

    def following_batch(self: Any) -> Any:
        with watch.force("data"):
            batch = following(self)
        for tensor in tensors_in(batch):
            watch.claim(tensor, "input")
        return batch

    with (
        patch.object(torch.utils.data.DataLoader, "__init__", made),
        patch.object(dataloader._BaseDataLoaderIter, "__next__", following_batch),
    ):
        yield


@contextlib.contextmanager
def left_out(note: Note) -> Iterator[None]:
    """`torch.compile` starts compilers and `torch.save` writes from C++, past every guard: both are left out."""

    def uncompiled(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        note("script", "torch.compile was left out: the model is predicted as it runs without it")
        return model if model is not None else lambda function: function

    def unsaved(*args: Any, **kwargs: Any) -> None:
        note("script", "a checkpoint was not written")

    with (
        patch.object(torch, "save", unsaved),
        patch.object(torch, "compile", uncompiled),
        patch.object(torch.nn.Module, "compile", lambda self, *args, **kwargs: uncompiled(self) and None),
    ):
        yield
