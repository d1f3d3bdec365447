"""A process that has torch and the packages of optimizers loaded, and runs or predicts one optimizer after the other.

`python -m memfit.compare.optimizer_table.torch_optimizer_worker PACKAGE...` reads a question per line on
standard input and answers each from a forked copy of itself, so that an optimizer that crashes or hangs
spoils nothing but its own row.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import signal
import sys

import msgspec
import torch

from memfit.compare.optimizer_table.marked_steps import changes_of, read_steps
from memfit.compare.optimizer_table.torch_optimizer_job import NUM_STEPS, make_marked_training, make_network
from memfit.errors import MemfitError
from memfit.job.description import JobDescription
from memfit.job.recipes.optimizer_names import parse_optimizer
from memfit.job.recipes.torch_optimizers import why_refused
from memfit.job.training import Training, plain_step
from memfit.predict.child.die_with_parent import ending_with_this_process
from memfit.predict.child.messages import Failure
from memfit.predict.devices.parse import parse_device
from memfit.predict.engine import Question
from memfit.predict.fake.child_main import answer_with
from memfit.predict.fake.choose_route import device_for_job
from memfit.predict.fake.engine import request_for
from memfit.predict.fake.probe.in_process import ProbesHere
from memfit.predict.fake.probe.real_reference import memory_events
from memfit.predict.fake.recording import Recording, Trace, trace_training
from memfit.predict.levels.gpu import CUDA
from memfit.predict.options import PredictOptions
from memfit.records.optimizer_bytes import OptimizerRun

MOST_SECONDS = 240
GUESSES = ("scalar answer", "upper bound")
ITERATES = ("lbfgs", "pytorch_optimizer.LBFGS")
"""Asks in every iteration whether it is done: no, as in a training that has not converged."""


def answer(question: OptimizerRun) -> OptimizerRun:
    """The same run with its steps, or with the reason why there are none."""
    question = _with_sizes(question)
    try:
        return _measured(question) if question.source == "measured" else _predicted(question)
    except MemfitError as error:
        return msgspec.structs.replace(question, reason=str(error))
    except Exception as error:
        said = why_refused(question.optimizer, error)
        return msgspec.structs.replace(question, reason=f"{type(error).__name__}: {said.found}")


def _with_sizes(question: OptimizerRun) -> OptimizerRun:
    with torch.device("meta"):
        parameters = list(make_network(question.shapes).parameters())
    return msgspec.structs.replace(
        question,
        package=_package_of(question.optimizer),
        torch_version=str(torch.__version__),
        num_parameters=sum(p.numel() for p in parameters),
        largest_parameters=max(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
    )


def _package_of(optimizer: str) -> str:
    package = parse_optimizer(optimizer).package
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return f"{package} {importlib.metadata.version(package)}"
    return package


def _measured(question: OptimizerRun) -> OptimizerRun:
    """The allocator's own events of a real training, as torch.profiler records them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = plain_step(make_marked_training(question.optimizer, question.shapes))
        for _ in range(NUM_STEPS):
            step()
    base_bytes, steps = read_steps(change for _, change in memory_events(profiler))
    return msgspec.structs.replace(question, base_bytes=base_bytes, steps=steps)


def _predicted(question: OptimizerRun) -> OptimizerRun:
    """The timeline that the prediction engine gives for the same training on fake tensors."""
    asked = Question(
        job=JobDescription(kind="function", target=question.optimizer),
        device=parse_device(question.device, None),
        options=PredictOptions(
            device=question.device,
            num_steps=NUM_STEPS,
            engine="fake",
            unknown_is=parse_optimizer(question.optimizer).base not in ITERATES,
        ),
    )
    request = request_for(asked, {})

    def trace(recording: Recording) -> Trace:
        def build() -> Training:
            return make_marked_training(question.optimizer, question.shapes, device_for_job(request))

        return trace_training(build, num_steps=NUM_STEPS, recording=recording, origin=question.optimizer)

    reply = answer_with(request, trace, ProbesHere())
    if isinstance(reply, Failure):
        return msgspec.structs.replace(question, reason=f"{reply.what}: {reply.found}" if reply.found else reply.what)
    where = CUDA if asked.device.kind == "cuda" else "cpu"
    base_bytes, steps = read_steps(changes_of(reply.timeline, where))
    notes = tuple(said.text for said in reply.assumptions if said.kind in GUESSES)
    return msgspec.structs.replace(question, base_bytes=base_bytes, steps=steps, notes=notes)


# ---- the process -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Load what was named, then answer line by line."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    torch.set_num_threads(1)
    for package in ("torch._dynamo", *sys.argv[1:]):
        with contextlib.suppress(Exception):  # whoever needs it says so in its own row
            importlib.import_module(package)
    replies.write(msgspec.json.encode({"torch": str(torch.__version__)}) + b"\n")
    for line in sys.stdin.buffer:
        replies.write(msgspec.json.encode(in_a_copy(msgspec.json.decode(line, type=OptimizerRun))) + b"\n")


def in_a_copy(question: OptimizerRun) -> OptimizerRun:
    """Answer in a forked copy of this process."""
    reader, writer = os.pipe()
    end_with_us, pid = ending_with_this_process(), os.fork()
    if pid == 0:
        end_with_us()
        signal.alarm(MOST_SECONDS)
        with contextlib.suppress(BaseException), open(writer, "wb") as stream:
            stream.write(msgspec.json.encode(answer(question)))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(pid, 0)
    if data:
        return msgspec.json.decode(data, type=OptimizerRun)
    code = os.waitstatus_to_exitcode(status)
    ended = "ended without an answer" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
    late = f": more than {MOST_SECONDS} s" if code == -signal.SIGALRM else ""
    return msgspec.structs.replace(_with_sizes(question), reason=f"its process {ended}{late}")


if __name__ == "__main__":
    main()
