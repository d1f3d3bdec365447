"""Runs an unmodified script on the phantom GPU until it has made enough optimizer steps.

As `python script.py arguments` would run it, in this (child) process. Data loaders load in this process, files go to a
scratch folder. The run ends by an exception that no `except Exception` catches, when it has shown enough
(`steps.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch

from memfit.predict.child.messages import UNSEEN
from memfit.predict.child.run_script import BY_BACKWARDS, NeverStepped, ScriptLeft, run_as_main
from memfit.predict.observe.batches_by_length import BatchChooser
from memfit.predict.observe.child_state import state_of_its_own
from memfit.predict.observe.data_loading import loading_here
from memfit.predict.observe.phase_and_module import tensors_anywhere
from memfit.predict.phantom.in_child.compiler_processes import CompilingFiles
from memfit.predict.phantom.in_child.save_and_load import PhantomCheckpoints
from memfit.predict.phantom.in_child.steps import PhantomSteps
from memfit.predict.phantom.in_child.storage_watch import RunWatch
from memfit.predict.phantom.in_child.values import Values
from memfit.predict.ranks.torch_gpu_count import GpuCount
from memfit.predict.sandbox.absent_packages import standing_alone
from memfit.predict.sandbox.child_python import ChildTrains, refuse_if_it_trained
from memfit.predict.sandbox.compiled_files import opening_for_compiled_code
from memfit.predict.sandbox.processes import Processes
from memfit.predict.sandbox.scratch_imports import ScratchFinder

Note = Callable[[str, str], None]


def run_script(
    path: str,
    arguments: tuple[str, ...],
    scratch_folder: str,
    num_steps: int,
    watch: RunWatch,
    values: Values,
    note: Note,
    chooser: BatchChooser | None = None,
    num_ranks: int = 1,
) -> int:
    """Run it and return the number of its steps; NeverStepped or ScriptLeft when it does not come to its steps."""
    counter, files = PhantomSteps(watch, num_steps, path, note), CompilingFiles(scratch_folder)
    checkpoints = PhantomCheckpoints(values, note)
    watch.step, gpus = 1, GpuCount(num_ranks, note)
    loading = loading_here(partial(watch.force, "data"), partial(_claim_inputs, watch), pinned=True, chooser=chooser)
    in_child = partial(_in_a_child, counter, note)
    processes, compiled = (
        Processes(files, note, in_child=in_child).standing_in(),
        opening_for_compiled_code(files, note),
    )
    with (
        counter.listening(), loading, checkpoints.standing_in(), files.guarding(), ScratchFinder(files).asked_last(),
        processes, compiled, standing_alone(note), gpus.standing_in(),
    ):  # fmt: skip
        was_ended = _run_to_its_end(path, arguments, counter, note, gpus)
    if was_ended:
        counter.note_unseen()
    _note_end(counter, num_steps, note, gpus)
    if files.redirected:
        note(
            "script", f"{len(files.redirected)} files that the script writes were kept in a scratch folder and removed"
        )
    return counter.num_made


def _run_to_its_end(path: str, arguments: tuple[str, ...], counter: PhantomSteps, note: Note, gpus: GpuCount) -> bool:
    """Whether it was ended before its own end; what fails after the steps is listed, unless memory ran out."""
    try:
        return run_as_main(path, arguments, lambda: counter.is_done)
    except torch.OutOfMemoryError:
        raise
    except ScriptLeft as leaving:
        leaving.hint = gpus.hint
        raise
    except Exception as error:
        if not counter.is_done or isinstance(error, ChildTrains):
            raise
        first = (str(error).splitlines() or [""])[0][:120]
        what = f"what the script does after its steps was not followed to the end: {type(error).__name__}: {first}"
        note(UNSEEN, what)
        return True


@contextlib.contextmanager
def _in_a_child(counter: PhantomSteps, note: Note) -> Iterator[None]:
    """Within, a child Python is at work: a training of its own is not for this prediction."""
    before, taken = counter.num_backwards_so_far, _num_taken()
    try:
        with state_of_its_own():
            yield
    finally:
        refuse_if_it_trained(before, counter.num_backwards_so_far)
        if _num_taken() != taken:
            note(UNSEEN, "a child Python took memory on the GPU, which is counted as if the script itself had")


def _num_taken() -> int:
    return torch.cuda.memory_stats().get("allocation.all.allocated", 0)


def _note_end(counter: PhantomSteps, num_steps: int, note: Note, gpus: GpuCount) -> None:
    """How the run ended, where that is not by the steps of an optimizer."""
    if not counter.num_made:
        raise NeverStepped(gpus.hint)
    if counter.num_steps_by_backwards:
        note("script", BY_BACKWARDS)
    if counter.num_made < num_steps:
        note("script", f"the script ended by itself after {counter.num_made} of {num_steps} steps")


def _claim_inputs(watch: RunWatch, batch: object) -> None:
    for tensor in tensors_anywhere(batch):
        watch.claim(tensor, "input")
