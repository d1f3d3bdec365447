"""Predicts a Python callable of the calling process, on copies, without changing that process.

The process forks; in the copy every live tensor is swapped for a fake one with its identity kept (so models,
optimizers and closures stay as they are), and the callable is traced there. It may be a step that uses existing
objects, or a function that builds a job. The reply comes back as data through a pipe; the copy is then gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memfit.errors import MemfitError
from memfit.job.description import SettingValue
from memfit.job.training import Training, as_training
from memfit.predict.child.die_with_parent import ending_with_this_process
from memfit.predict.child.messages import Failure, Reply, TraceRequest
from memfit.predict.child.parent import name_of_end, signal_of_end
from memfit.predict.fake.child_main import answer_with, keep_from_writing, trace_ranked, with_guard_noted
from memfit.predict.fake.choose_route import device_for_job
from memfit.predict.fake.recording import Recording, Trace
from memfit.predict.ranks.torch_this_rank import as_this_rank
from memfit.predict.sandbox.processes import guarded

KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def trace_forked(function: Callable[..., object], request: TraceRequest) -> Reply:
    """Trace in a forked copy of this process."""
    with tempfile.TemporaryDirectory(prefix="memfit-predict-", ignore_cleanup_errors=True) as folder:
        request = msgspec.structs.replace(request, scratch_folder=folder, writable_folder=os.path.realpath(folder))
        request = msgspec.structs.replace(request, num_threads=torch.get_num_threads())
        reader, writer = os.pipe()
        end_with_us, pid = ending_with_this_process(), os.fork()
        if pid == 0:
            end_with_us()
            os.close(reader)
            _in_the_copy(function, request, writer)
        os.close(writer)
        with open(reader, "rb") as stream:
            data = stream.read()
        _, status = os.waitpid(pid, 0)
    if not data:
        code = os.waitstatus_to_exitcode(status)
        what = "the forked copy ended without an answer"
        return Failure(kind="route", what=what, found=name_of_end(code), signal=signal_of_end(code))
    return msgspec.msgpack.decode(data, type=Reply)


def _in_the_copy(function: Callable[..., object], request: TraceRequest, writer: int) -> None:
    """Never returns: the copy must not run the caller's code."""
    code = 1
    try:
        torch.set_num_threads(1)  # the copy has none of the parent's worker threads
        unguarded = keep_from_writing(request)
        reply = with_guard_noted(answer_with(request, partial(_guarded, function, request)), unguarded)
        with open(writer, "wb") as stream:
            stream.write(msgspec.msgpack.encode(reply))
        code = 0
    except BaseException as error:
        with contextlib.suppress(Exception):
            print(f"memfit: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def _guarded(function: Callable[..., object], request: TraceRequest, recording: Recording) -> Trace:
    """What Python itself writes goes to the scratch folder, as in a script."""
    with guarded(request.scratch_folder, recording.shadow.note):
        return trace_callable(function, request, recording)


def trace_callable(function: Callable[..., object], request: TraceRequest, recording: Recording) -> Trace:
    """Trace a step over existing objects, or a function that builds a job."""
    recording.tracker.claim_all(make_tensors_fake(recording.mode), "input")
    settings = dict(request.job.settings)

    def build() -> Training:
        built = _call(function, settings, device_for_job(request))
        training = Training(step=lambda: _call(function, settings, device_for_job(request)))
        if built is not None:
            with contextlib.suppress(MemfitError):
                training = as_training(built, request.job.target)
        return as_this_rank(request.options, training, request.job.target)

    return trace_ranked(request, build, recording)


def _call(function: Callable[..., object], settings: dict[str, SettingValue], device: str) -> object:
    from memfit.job.load import arguments_for

    return function(**arguments_for(function, settings, device))


def make_tensors_fake(mode: FakeTensorMode) -> list[torch.Tensor]:
    """Swap every live tensor for a fake one, identity kept and values lost; returns them."""
    gc.collect()  # what only a cycle of references holds is not alive, and would be freed at any moment of the trace
    swapped = []
    for tensor in gc.get_objects():
        if type(tensor) in KINDS and tensor.grad_fn is None and tensor.layout is torch.strided:
            with contextlib.suppress(
                RuntimeError
            ):  # a tensor somebody else holds on to stays real, and is converted where it is used
                fake = mode.from_tensor(tensor)
                converter = mode.fake_tensor_converter.meta_converter
                for memo in (
                    converter.tensor_memo,
                    converter.describer.lookup_tensor,
                    converter.describer.lookup_storage,
                ):
                    memo.clear()
                torch.utils.swap_tensors(tensor, fake)
                swapped.append(tensor)
    return swapped
