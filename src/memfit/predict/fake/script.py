"""Runs an unmodified training script on fake tensors until it has made enough optimizer steps.

The script runs in this (child) process under the recording's modes, as `python script.py arguments` would run it.
Data loaders load in this process, files go to a scratch folder, `torch.save` saves shapes only, `torch.compile` leaves
the model as it is. The run ends by an exception that no `except Exception` catches.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
import torch.jit._builtins
import torch.utils.data
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.child.messages import COMPILER_LEFT_OUT, UNSEEN, TraceRequest
from memfit.predict.child.run_script import BY_BACKWARDS, NeverStepped, ScriptLeft, run_as_main
from memfit.predict.fake.patches.default_device import default_device_of
from memfit.predict.fake.patches.process_group import pretending_ranks
from memfit.predict.fake.patches.save_and_load import Checkpoints, SafeOpened
from memfit.predict.fake.patches.shared_memory import SharedTensors
from memfit.predict.fake.probe.threads import variables_heeded
from memfit.predict.fake.recording import Recording, Trace
from memfit.predict.fake.stand_in_batches import StandInBatches
from memfit.predict.fake.steps import StepCounter
from memfit.predict.fake.values.lists import of_numbers
from memfit.predict.observe.batches_by_length import BatchChooser
from memfit.predict.observe.child_state import state_of_its_own, threads_of_its_own
from memfit.predict.observe.data_loading import loading_here
from memfit.predict.observe.known_values import keep_shadow
from memfit.predict.observe.own_threads import OVERLAP
from memfit.predict.observe.phase_and_module import is_drawn_by_tensorboard
from memfit.predict.ranks.torch_gpu_count import GpuCount
from memfit.predict.sandbox.absent_packages import standing_alone
from memfit.predict.sandbox.child_python import ChildTrains, refuse_if_it_trained
from memfit.predict.sandbox.compiled_files import opening_for_compiled_code
from memfit.predict.sandbox.processes import Processes
from memfit.predict.sandbox.scratch_files import ScratchFiles
from memfit.predict.sandbox.scratch_imports import ScratchFinder

COMPILED = (
    f"{COMPILER_LEFT_OUT}: the model is predicted as it runs without it, and neither the steps that compile nor the "
    "compiler's own memory are in the figures; for a GPU, --engine phantom compiles it"
)
SHARE_MEMORY = ("from_numpy", "as_tensor", "frombuffer")


def trace_script(request: TraceRequest, recording: Recording) -> Trace:
    """Run the script as a ghost."""
    started = time.perf_counter()
    counter = StepCounter(recording, request.num_steps, request.job.path)
    recording.places.step = 1
    files = ScratchFiles(request.scratch_folder)
    note, shared = recording.shadow.note, SharedTensors(recording.tracker)
    gpus = GpuCount(request.options.this_rank.count, note)
    chooser = None
    if request.options.choose_batches:
        chooser = BatchChooser(lambda: recording.places.step, recording.places.line)
    with (
        recording.running(),
        _pretending(recording, chooser, counter),
        counter.listening(),
        pretending_ranks(request.options.this_rank, note, recording.facts),
        gpus.standing_in(),
        files.guarding(),
        ScratchFinder(files).asked_last(),
        shared.standing_in(),
        Processes(
            files, note, shared.in_another_process, partial(_in_a_child, recording, counter), threads_of_its_own
        ).standing_in(),
        opening_for_compiled_code(files, note),
        standing_alone(note),
        variables_heeded(),
        recording.tracker.garbage.watched(),
    ):
        was_ended = True
        try:
            was_ended = run_as_main(request.job.path, request.job.arguments, lambda: counter.is_done)
        except ScriptLeft as leaving:
            leaving.hint = gpus.hint
            raise
        except Exception as error:
            if not counter.is_done or isinstance(error, ChildTrains):
                raise
            recording.shadow.answered[UNSEEN, _failed_later(error), ""] += 1
    counter.note_unseen(was_ended)
    trace = recording.finish(time.perf_counter() - started)
    trace.data_bytes = recording.tracker.outside.peak_bytes
    _note_end(recording, trace, counter, request.num_steps, gpus)
    if recording.tracker.turns.are_taken:
        recording.shadow.answered[UNSEEN, OVERLAP, ""] += 1
    if text := recording.tracker.garbage.text:
        recording.shadow.answered[UNSEEN, text, ""] += 1
    if files.redirected:
        text = f"{len(files.redirected)} files that the script writes were kept in a scratch folder and removed"
        recording.shadow.answered["script", text, ""] += 1
    if chooser is not None:
        trace.survey = chooser.found()
    trace.assumptions = recording.shadow.assumptions()
    return trace


@contextlib.contextmanager
def _in_a_child(recording: Recording, counter: StepCounter) -> Iterator[None]:
    """Within, a child Python is at work: its tensors are not of this process, and a training is not for this one."""
    before = counter.num_backwards_so_far
    with recording.tracker.outside.made_here():
        try:
            with state_of_its_own():
                yield
        finally:
            refuse_if_it_trained(before, counter.num_backwards_so_far)


def _failed_later(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0][:120]
    return f"what the script does after its steps was not followed to the end: {type(error).__name__}: {first}"


def _note_end(recording: Recording, trace: Trace, counter: StepCounter, num_steps: int, gpus: GpuCount) -> None:
    """How the run ended, where that is not by its steps."""
    made = counter.num_steps_made or trace.num_steps or counter.num_steps_by_backwards
    if not made:
        raise NeverStepped(gpus.hint)
    trace.num_steps = made
    if counter.num_steps_by_backwards:
        recording.shadow.answered["script", BY_BACKWARDS, ""] += 1
    if made < num_steps:
        how = "prediction ended, for time," if counter.is_done else "script ended by itself"
        text = f"the {how} after {made} of {num_steps} steps"
        recording.shadow.answered["script", text, ""] += 1


# ---- what the script meets instead -----------------------------------------------------------------------


@contextlib.contextmanager
def _weights_loaded_here() -> Iterator[None]:
    """Hugging Face loads weights in threads, where no mode of this thread is on; what a script sets itself is left."""
    name = "HF_DEACTIVATE_ASYNC_LOAD"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextlib.contextmanager
def _pretending(recording: Recording, chooser: BatchChooser | None, counter: StepCounter) -> Iterator[None]:
    shadow = recording.shadow
    batches = StandInBatches(recording.tracker, counter.is_passing, shadow.note)

    def uncompiled(model: object = None, *args: object, **kwargs: object) -> object:
        shadow.note(UNSEEN, COMPILED)
        return model if model is not None else lambda function: function

    outside = recording.tracker.outside.made_here
    checkpoints = Checkpoints(shadow.note, outside)
    replacements: list[tuple[Any, str, Any]] = [
        (torch, "save", checkpoints.save),
        (torch, "load", checkpoints.load),
        (torch, "compile", uncompiled),
        (torch.jit, "trace", partial(_untraced, torch.jit.trace, shadow.note, recording.recorded_models.recorded)),
        (torch.nn.Module, "compile", lambda self, *args, **kwargs: uncompiled(self) and None),
        *((torch, name, _faked(recording, getattr(torch, name))) for name in SHARE_MEMORY),
        (torch, "tensor", partial(of_numbers, torch.tensor)),
        *_savers(checkpoints),
        *((module, "safe_open", opened) for module, opened in _openers(outside)),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in replacements:
            _known_to_torchscript(getattr(owner, name), function)
            stack.enter_context(patch.object(owner, name, function))
        stack.enter_context(_weights_loaded_here())
        in_data, claim = partial(recording.places.force, "data"), partial(recording.tracker.claim_all, category="input")
        stack.enter_context(
            loading_here(in_data, claim, pinned=False, chooser=chooser, in_worker=outside, follow=batches.follow)
        )
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _untraced(
    original: Callable[..., object],
    note: Callable[[str, str], None],
    recorded: Callable[[object], None],
    function: Callable[..., object],
    example_inputs: object = None,
    *args: object,
    **kwargs: object,
) -> object:
    """The model itself: torch's tracer records sizes as tensors, which fake tensors do not take.

    torch runs it without gradients: once to record it, then, to check that, once more on a copy of its inputs, and the
    model and both records on copies of their own (read in torch 2.13). TensorBoard, which draws what was recorded, gets
    a graph of nothing.
    """
    note("script", "torch.jit.trace was left out: the model runs as it is")
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    if kwargs.get("example_kwarg_inputs") is None:
        with torch.no_grad():
            function(*inputs)
            if kwargs.get("check_trace", True):
                copied = _copied(inputs)
                function(*copied)
                compared = [function(*_copied(inputs)) for _ in range(3)]
                del copied, compared
    recorded(function)
    if not is_drawn_by_tensorboard():
        return function
    with _disable_current_modes():
        return original(torch.nn.Identity(), torch.zeros(1))


def _copied(inputs: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in inputs)


def _known_to_torchscript(original: object, replacement: object) -> None:
    """TorchScript knows the functions of torch by their identity (torch 2.13): it compiles the original one."""
    table = torch.jit._builtins._get_builtin_table()
    if id(original) in table:
        table[id(replacement)] = table[id(original)]


def _savers(checkpoints: Checkpoints) -> Iterator[tuple[object, str, object]]:
    """Functions of Hugging Face's file format that read the memory of tensors, and what stands for them."""
    if importlib.util.find_spec("safetensors") is not None:
        module = importlib.import_module("safetensors.torch")
        yield module, "save_file", checkpoints.save_file
        yield module, "save_model", checkpoints.save_model
        yield module, "load_model", checkpoints.load_model


def _openers(outside: Callable[[], object]) -> Iterator[tuple[object, object]]:
    """Where Hugging Face's file format is opened, and what opens it with fake tensors."""
    for library in ("safetensors", "safetensors.torch"):
        if importlib.util.find_spec("safetensors") is not None:
            module = importlib.import_module(library)
            own = {"open": module.safe_open, "outside": staticmethod(outside)}
            yield module, type("SafeOpened", (SafeOpened,), own)


def _faked(recording: Recording, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A maker of real tensors that hands out fake ones, with the values of small integers."""

    def make(*args: object, **kwargs: object) -> torch.Tensor:
        if args and isinstance(args[0], (list, tuple)):
            return of_numbers(original, *args, **kwargs)
        if not args or isinstance(args[0], (torch.Tensor, int, float)):
            return original(*args, **kwargs)
        device = cast("torch.device | str | None", kwargs.pop("device", None) or default_device_of(original))
        with _disable_current_modes():
            real = original(*args, **kwargs)
        fake = recording.mode.from_tensor(real)
        keep_shadow(fake, real)  # whoever changes the array changes the tensor, and the other way round
        with recording.tracker.outside.made_here() if _shares(real, args) else contextlib.nullcontext():
            recording.tracker.see(fake, original.__name__)
        return fake if device is None else fake.to(device)

    return make


def _shares(real: torch.Tensor, args: tuple[object, ...]) -> bool:
    """Whether a tensor lies in the memory of the array or buffer that it was made of."""
    if not args or isinstance(args[0], (torch.Tensor, list, tuple, int, float)):
        return False
    try:
        given = cast("np.ndarray | bytes | memoryview", args[0])
        memory = np.frombuffer(given, np.uint8) if not isinstance(given, np.ndarray) else given
        start, end = np.lib.array_utils.byte_bounds(memory)
    except (TypeError, ValueError, BufferError):
        return False
    return start <= real.data_ptr() < end
