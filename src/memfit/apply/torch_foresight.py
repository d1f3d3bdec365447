"""Which stages has a model that is too large, or meant for a device that is not here? Found on fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memfit.apply.torch_calls import watch_calls
from memfit.apply.torch_stages import Layout, find_stages
from memfit.apply.torch_targets import build_job
from memfit.errors import PredictionFailed
from memfit.records.plan import Stage


def draft_of(build: Callable[[], Any], name: str) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Build a training on fake tensors, watch one step, and name its stages; with notes."""
    try:
        with _replacing_parameters(), FakeTensorMode(allow_non_fake_inputs=True):
            layout = find_stages(watch_calls(build_job(build(), name)))
            return tuple(_draft(layout, index) for index in range(len(layout.stages))), tuple(layout.notes)
    except RuntimeError as error:  # also what fake tensors raise when an operator needs a value
        raise PredictionFailed(
            "the stages of the model could not be found without running it",
            kind=type(error).__name__,
            found=str(error).splitlines()[0][:160],
            hint="fit it on this machine, without --device",
        ) from None


@contextlib.contextmanager
def _replacing_parameters() -> Iterator[None]:
    """Let `model.to(...)` make new parameters: a fake tensor cannot be changed into another one in place."""
    plain = torch.nn.Module._apply
    made: dict[int, torch.nn.Parameter] = {}

    def replace(self: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
        for child in self.children() if recurse else ():
            replace(child, fn)
        for key, parameter in self._parameters.items():
            if parameter is not None:
                new = made.get(id(parameter)) or torch.nn.Parameter(fn(parameter.detach()), parameter.requires_grad)
                made[id(parameter)] = made[id(new)] = self._parameters[key] = new
        for key, buffer in self._buffers.items():
            self._buffers[key] = None if buffer is None else fn(buffer)
        return self

    torch.nn.Module._apply = replace
    try:
        yield
    finally:
        torch.nn.Module._apply = plain


def _draft(layout: Layout, index: int) -> Stage:
    stage = layout.stages[index]
    return Stage(
        name=stage.name, forward_seconds=0.0, backward_seconds=0.0, output_bytes=_output_bytes(layout, index),
        saved_bytes=0, kind=stage.kind, recomputable=stage.recomputable, joins_next=stage.joins_next,
    )  # fmt: skip


def _output_bytes(layout: Layout, index: int) -> int:
    """What a stage returns; what glue makes is what the next stage is given."""
    stage = layout.stages[index]
    if not stage.is_glue:
        return _bytes(stage.calls[-1].tensors_returned())
    following = layout.stages[index + 1].calls if index + 1 < len(layout.stages) else []
    return _bytes(following[0].tensors_given()[:1]) if following else 0


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
