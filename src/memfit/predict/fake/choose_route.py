"""Chooses how a job is traced for a device on this build of torch.

- fake cpu: the device is the CPU.
- fake cuda: CUDA tensors, on a CPU-only build by changes to the child process, on a CUDA build as it is.
- fake cpu, translated to cuda: where that does not work, CPU tensors with the optimizers' foreach default of CUDA.
  Attention kernels and autocast are then those of the CPU, and the prediction says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import torch
import torch.optim.optimizer as optimizers

from memfit.predict.child.messages import TRANSLATED, TraceRequest
from memfit.predict.fake.cuda_facade import pretending_cuda
from memfit.predict.fake.kernels.attention import register_attention
from memfit.predict.fake.kernels.kernel_call import Card
from memfit.predict.fake.kernels.norm import register_rms_norm
from memfit.predict.fake.kernels.recurrent import register_recurrent
from memfit.predict.fake.kernels.workspaces import note_scratch
from memfit.predict.fake.patches.cpu_build import CannotPatch, patch_process, why_not
from memfit.predict.fake.recording import Recording
from memfit.predict.gpu_rules.reduction import Processors
from memfit.predict.phantom.library.installed import HOW_TO_GET_FAKE


def device_for_job(request: TraceRequest) -> str:
    """The device a function is asked to build on."""
    return "cuda" if request.device == "cuda" and not request.translate else "cpu"


@contextlib.contextmanager
def on_device(request: TraceRequest, recording: Recording) -> Iterator[str]:
    """Prepare this process for the route; yields its name."""
    if request.device == "cpu":
        with patch.object(torch.cuda, "is_available", lambda: False):
            yield "fake cpu"
        return
    if request.translate:
        recording.shadow.answered[
            "route", "traced on fake CPU tensors: attention and autocast are those of the CPU", ""
        ] += 1
        with _foreach_by_default():
            yield TRANSLATED
        return
    route = _make_cuda_work()
    register_attention(request.capability, recording.shadow.note)
    register_recurrent(recording.shadow.note)
    register_rms_norm()
    processors = Processors(count=request.num_processors, threads=request.threads_per_processor)
    recording.tracker.scratch_notes.append(
        partial(note_scratch, Card(capability=request.capability, processors=processors), recording.shadow.note)
    )
    with pretending_cuda(request, recording):
        yield route


def _make_cuda_work() -> str:
    if torch.version.cuda is None:
        patch_process()
        return "fake cuda on a CPU-only build"
    if not torch.cuda.is_available():
        raise CannotPatch(
            f"a CUDA build of torch that finds no driver; --engine phantom needs none. Otherwise: {HOW_TO_GET_FAKE}"
        )
    torch.zeros(1, device="cuda")  # wakes the engine's device thread before fake tensors reach it
    return "fake cuda"


def can_fake_cuda() -> str:
    """Why fake CUDA tensors will not work on this build; empty when they should."""
    return "" if torch.version.cuda is not None else why_not()


@contextlib.contextmanager
def _foreach_by_default() -> Iterator[None]:
    """Optimizers take foreach on CUDA and loops on the CPU: let them take foreach here."""
    original = optimizers._get_foreach_kernels_supported_devices  # pyright: ignore[reportPrivateImportUsage]

    def devices() -> list[str]:
        return [*original(), "cpu"]

    with patch.object(optimizers, "_get_foreach_kernels_supported_devices", devices):
        yield


__all__ = ["TRANSLATED", "CannotPatch", "can_fake_cuda", "device_for_job", "on_device"]
