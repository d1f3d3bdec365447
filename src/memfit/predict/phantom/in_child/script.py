"""How is an unmodified script run on the phantom GPU until it has made enough optimizer steps?

As `python script.py arguments` would run it, in this (child) process. Data loaders load in this process, files go to a
scratch folder. The run ends by an exception that no `except Exception` catches.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.data

from memfit.predict.child.messages import UNSEEN
from memfit.predict.child.script_ends import EnoughSteps, NeverStepped, run_as_main
from memfit.predict.observe.batches import BatchChooser
from memfit.predict.observe.data_loading import loading_here
from memfit.predict.observe.places import is_called_by_library, speaks_of_evaluation, tensors_anywhere
from memfit.predict.phantom.in_child.compiling_files import CompilingFiles
from memfit.predict.phantom.in_child.watch import Watch
from memfit.predict.sandbox.absent_packages import standing_alone
from memfit.predict.sandbox.compiled_files import opening_for_compiled_code
from memfit.predict.sandbox.processes import Processes
from memfit.predict.sandbox.scratch_imports import ScratchFinder

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""
AFTER_THE_STEPS = (
    "the phantom run ends after its steps: an evaluation after them, if there is one, is not in the figures; "
    "--engine fake follows it"
)
Note = Callable[[str, str], None]


class StepCounter:
    """Ends the run after enough steps of every optimizer that was built."""

    def __init__(self, watch: Watch, num_steps: int) -> None:
        self._watch, self._num_steps = watch, num_steps
        self._built: set[int] = set()
        self.in_library = False
        """Whether the loop stands in a library's file."""
        self.is_done = False

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step."""
        self.in_library |= is_called_by_library()
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
    path: str,
    arguments: tuple[str, ...],
    scratch_folder: str,
    num_steps: int,
    watch: Watch,
    note: Note,
    chooser: BatchChooser | None = None,
) -> None:
    """Run it; NeverStepped or ScriptLeft when it does not come to its steps."""
    counter, files = StepCounter(watch, num_steps), CompilingFiles(scratch_folder)
    modules_before = set(sys.modules)
    watch.on_update = counter.stepped
    watch.step = 1
    loading = loading_here(partial(watch.force, "data"), partial(_claim_inputs, watch), pinned=True, chooser=chooser)
    processes, compiled = Processes(files, note).standing_in(), opening_for_compiled_code(files, note)
    with (
        counter.listening(), loading, unsaved(note), files.guarding(), ScratchFinder(files).asked_last(), processes,
        compiled, standing_alone(note),
    ):  # fmt: skip
        was_ended = run_as_main(path, arguments, lambda: counter.is_done)
    if was_ended and (counter.in_library or speaks_of_evaluation(path, modules_before)):
        note(UNSEEN, AFTER_THE_STEPS)
    made = max(watch.num_updates.values(), default=0)
    if not made:
        raise NeverStepped
    if not counter.is_done:
        note("script", f"the script ended by itself after {made} of {num_steps} optimizer steps")
    if files.redirected:
        note(
            "script", f"{len(files.redirected)} files that the script writes were kept in a scratch folder and removed"
        )


def _claim_inputs(watch: Watch, batch: Any) -> None:
    for tensor in tensors_anywhere(batch):
        watch.claim(tensor, "input")


@contextlib.contextmanager
def unsaved(note: Note) -> Iterator[None]:
    """`torch.save` writes from C++, past every guard: it is left out."""

    def leave(*args: Any, **kwargs: Any) -> None:
        note("script", "a checkpoint was not written")

    with patch.object(torch, "save", leave):
        yield
