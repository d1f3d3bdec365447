"""How is an unmodified training script run on fake tensors, until it has made enough optimizer steps?

The script runs in this (child) process under the recording's modes, as `python script.py arguments` would run it.
Data loaders load in this process, files go to a scratch folder, `torch.save` saves shapes only, `torch.compile` leaves
the model as it is. The run ends by an exception that no `except Exception` catches.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import runpy
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.data
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import dataloader

from memfit.predict.messages import Failure, TraceRequest
from memfit.predict.scratch_files import ProcessRefused, ScratchFiles
from memfit.predict.torch_checkpoints import Checkpoints
from memfit.predict.torch_fake import Recording, Trace
from memfit.predict.torch_ranks import pretending_ranks
from memfit.predict.torch_shadow import small_copy

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""


class EnoughSteps(BaseException):
    """The script has made the steps that were asked for."""


class NeverStepped(Exception):
    """The script ended without an optimizer step."""


class ScriptLeft(Exception):
    """The script left by itself with an exit code."""


class StepCounter:
    """Ends the run after enough steps of every optimizer."""

    def __init__(self, recording: Recording, num_steps: int) -> None:
        self._recording = recording
        self._num_steps = num_steps
        self._waiting: set[int] = set()
        self._leader: Any = None
        self.is_done = False

    def made(self, optimizer: Any) -> None:
        """An optimizer was built; it is waited for."""
        self._waiting.add(id(optimizer))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step."""
        counts = self._recording.num_updates
        most = max(counts.values())
        self._recording.places.step = most + 1
        all_there = all(counts.get(key, 0) >= self._num_steps for key in self._waiting | set(counts))
        if all_there or most >= self._num_steps * OTHERS_MAY_LAG:
            self.is_done = True
            raise EnoughSteps
        if optimizer is self._leader or self._leader is None:
            self._leader = optimizer
            self._recording.tracker.work.reset()


def trace_script(request: TraceRequest, recording: Recording) -> Trace:
    """Run the script as a ghost."""
    started = time.perf_counter()
    counter = StepCounter(recording, request.num_steps)
    recording.on_update = counter.stepped
    recording.places.step = 1
    files = ScratchFiles(request.scratch_folder)
    with (
        recording.running(),
        _pretending(recording, counter),
        pretending_ranks(request.num_ranks, recording.shadow.note),
        files.guarding(),
    ):
        _run(request, counter)
    trace = recording.finish(time.perf_counter() - started)
    if not counter.is_done:
        _note_end(recording, trace, request.num_steps)
    if files.redirected:
        text = f"{len(files.redirected)} files that the script writes were kept in a scratch folder and removed"
        recording.shadow.answered["script", text, ""] += 1
    trace.assumptions = recording.shadow.assumptions()
    return trace


def _run(request: TraceRequest, counter: StepCounter) -> None:
    path = request.job.path
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with patch.object(sys, "argv", [path, *request.job.arguments]), patch.object(sys, "path", [folder, *sys.path]):
            runpy.run_path(path, run_name="__main__")
    except EnoughSteps:
        pass
    except SystemExit as leaving:
        if leaving.code not in (None, 0) and not counter.is_done:
            raise ScriptLeft(str(leaving.code)) from leaving


def _note_end(recording: Recording, trace: Trace, num_steps: int) -> None:
    """The script ended by itself before the steps were made."""
    if not trace.num_steps:
        raise NeverStepped
    text = f"the script ended by itself after {trace.num_steps} of {num_steps} optimizer steps"
    recording.shadow.answered["script", text, ""] += 1


def ghost_failure(error: BaseException) -> Failure | None:
    """What only a script can do wrong; None for everything else."""
    if isinstance(error, NeverStepped):
        return Failure(
            kind="no step", what="the script ended without an optimizer step", found="no call of optimizer.step()",
            hint="check its arguments behind `--`; a step function can be predicted as FILE:function",
        )  # fmt: skip
    if isinstance(error, ScriptLeft):
        return Failure(
            kind="script", what="the script left by itself before its steps were made", found=f"exit code {error}",
            hint="its last output is above; its arguments stand behind `--`",
        )  # fmt: skip
    refused = error if isinstance(error, ProcessRefused) else error.__cause__ or error.__context__
    if isinstance(refused, ProcessRefused):
        return Failure(
            kind="processes", what="the script starts processes of its own", found=str(refused),
            hint="predict what one of its processes does: a script or function that trains in one process",
        )  # fmt: skip
    return None


# ---- what the script meets instead -----------------------------------------------------------------------


@contextlib.contextmanager
def _pretending(recording: Recording, counter: StepCounter) -> Iterator[None]:
    shadow = recording.shadow

    def unsaved(*args: Any, **kwargs: Any) -> None:
        shadow.note("script", "a checkpoint was not written")

    def uncompiled(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        shadow.note("script", "torch.compile was left out: the model is predicted as it runs without it")
        return model if model is not None else lambda function: function

    checkpoints = Checkpoints(shadow.note)
    replacements: list[tuple[Any, str, Any]] = [
        (torch, "save", checkpoints.save),
        (torch, "load", checkpoints.load),
        (torch, "compile", uncompiled),
        (torch.nn.Module, "compile", lambda self, *args, **kwargs: uncompiled(self) and None),
        *((torch, name, _faked(recording, getattr(torch, name))) for name in ("from_numpy", "as_tensor", "frombuffer")),
        *((module, name, unsaved) for module, name in _savers()),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in replacements:
            stack.enter_context(patch.object(owner, name, function))
        stack.enter_context(_loading_here(recording))
        stack.enter_context(_optimizers_announced(counter))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _savers() -> Iterator[tuple[Any, str]]:
    """Functions of other libraries that write checkpoints in compiled code, where no `open` of Python is seen."""
    for library, names in {
        "safetensors.torch": ("save_file", "save_model"),
        "safetensors.numpy": ("save_file",),
    }.items():
        if importlib.util.find_spec(library.partition(".")[0]) is not None:
            module = importlib.import_module(library)
            yield from ((module, name) for name in names)


def _faked(recording: Recording, original: Any) -> Any:
    """A maker of real tensors that hands out fake ones, with the values of small integers."""

    def make(*args: Any, **kwargs: Any) -> Any:
        real = original(*args, **kwargs)
        if isinstance(real, FakeTensor):
            return real
        fake = recording.mode.from_tensor(real)
        values = small_copy(real)
        if values is not None:
            fake._memfit_shadow = values  # pyright: ignore[reportAttributeAccessIssue]
        recording.tracker.see(fake, original.__name__)
        return fake

    return make


@contextlib.contextmanager
def _loading_here(recording: Recording) -> Iterator[None]:
    """Data loaders work in this process, and what they make belongs to the phase 'data'."""
    loader = torch.utils.data.DataLoader
    iterator = dataloader._BaseDataLoaderIter
    make, following = loader.__init__, iterator.__next__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:])
        kwargs.update({name: value for name, value in _ALONE.items() if name in kwargs})
        make(self, *args, **kwargs)

    def following_batch(self: Any) -> Any:
        with recording.places.force("data"):
            batch = following(self)
        recording.tracker.claim_all(batch, "input")
        return batch

    with patch.object(loader, "__init__", made), patch.object(iterator, "__next__", following_batch):
        yield


_ALONE = {
    "num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "timeout": 0, "pin_memory": False,
    "multiprocessing_context": None, "worker_init_fn": None,
}  # fmt: skip


@contextlib.contextmanager
def _optimizers_announced(counter: StepCounter) -> Iterator[None]:
    original = torch.optim.Optimizer.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        counter.made(self)

    with patch.object(torch.optim.Optimizer, "__init__", made):
        yield
