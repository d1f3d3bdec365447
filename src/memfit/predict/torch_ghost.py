"""How is an unmodified training script run on fake tensors, until it has made enough optimizer steps?

The script runs in this (child) process under the recording's modes, as `python script.py arguments` would run it.
Data loaders load in this process, files go to a scratch folder, `torch.save` saves shapes only, `torch.compile` leaves
the model as it is. The run ends by an exception that no `except Exception` catches.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.data
from torch._subclasses.fake_tensor import FakeTensor

from memfit.predict.messages import TraceRequest
from memfit.predict.scratch_files import ScratchFiles
from memfit.predict.script_ends import EnoughSteps, NeverStepped, run_as_main
from memfit.predict.torch_checkpoints import Checkpoints
from memfit.predict.torch_fake import Recording, Trace
from memfit.predict.torch_known import keep_shadow
from memfit.predict.torch_loading import loading_here
from memfit.predict.torch_ranks import pretending_ranks
from memfit.predict.torch_shadow import small_copy

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""


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
        run_as_main(request.job.path, request.job.arguments, lambda: counter.is_done)
    trace = recording.finish(time.perf_counter() - started)
    if not counter.is_done:
        _note_end(recording, trace, request.num_steps)
    if files.redirected:
        text = f"{len(files.redirected)} files that the script writes were kept in a scratch folder and removed"
        recording.shadow.answered["script", text, ""] += 1
    trace.assumptions = recording.shadow.assumptions()
    return trace


def _note_end(recording: Recording, trace: Trace, num_steps: int) -> None:
    """The script ended by itself before the steps were made."""
    if not trace.num_steps:
        raise NeverStepped
    text = f"the script ended by itself after {trace.num_steps} of {num_steps} optimizer steps"
    recording.shadow.answered["script", text, ""] += 1


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
        in_data, claim = partial(recording.places.force, "data"), partial(recording.tracker.claim_all, category="input")
        stack.enter_context(loading_here(in_data, claim, pinned=False))
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
            keep_shadow(fake, values)
        recording.tracker.see(fake, original.__name__)
        return fake

    return make


@contextlib.contextmanager
def _optimizers_announced(counter: StepCounter) -> Iterator[None]:
    original = torch.optim.Optimizer.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        counter.made(self)

    with patch.object(torch.optim.Optimizer, "__init__", made):
        yield
