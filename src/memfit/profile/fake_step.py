"""Stages of a model on fake tensors, for a model too large or a device that is not here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memfit.errors import PredictionFailed
from memfit.model.call_sites import After, Before, watching
from memfit.model.gradients_aside import keeping_gradients_of_others
from memfit.model.module_calls import SeenTensor, storage_key, watch_calls
from memfit.model.stages import Layout, find_stages
from memfit.model.step import Job, LiveTraining, build_job, leaving_no_trace, storage_bytes, tensors_of
from memfit.model.written_parameters import remember_written
from memfit.records.plan import Stage


def draft_of(build: Callable[[], LiveTraining], name: str) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Build a training on fake tensors, watch one step, and name its stages; with notes."""
    try:
        with replacing_parameters(), FakeTensorMode(allow_non_fake_inputs=True):
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
def replacing_parameters() -> Iterator[None]:
    """Let `model.to(...)` make new parameters: a fake tensor cannot be changed into another one in place."""
    plain = torch.nn.Module._apply
    made: dict[int, torch.nn.Parameter] = {}

    def replace(
        self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> torch.nn.Module:
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
        return _bytes(stage.calls[-1].returned)
    following = layout.stages[index + 1].calls if index + 1 < len(layout.stages) else []
    return _bytes(following[0].tensors_given()[:1]) if following else 0


def _bytes(tensors: list[SeenTensor]) -> int:
    return sum(tensor.storage_bytes for tensor in tensors)


# ---- a live model ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PredictedStep:
    """A live job's plain step as fake tensors tell it: nothing of it was allocated."""

    layout: Layout
    draft: tuple[Stage, ...]
    """With the bytes that each stage returns."""
    passing: frozenset[int]
    """Stages whose output is not saved and is larger than what is."""
    plain_bytes: int
    """Parameters, gradients, buffers, the batch, and everything that autograd keeps; optimizer state is not in it."""
    block_bytes: int
    """What autograd keeps of the one stage of which it keeps the most."""


def predict_step(job: Job, *, needs_blocks: bool = True) -> PredictedStep:
    """Run the step of a live job on fakes of its parameters and buffers; the real ones are not touched.

    A model without blocks that could be run again is refused, unless only the sum is asked for.
    """
    with leaving_no_trace(job, runs=False), keeping_gradients_of_others(job.model):
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode, _faking(job.whole, mode):
                layout = find_stages(watch_calls(job), needs_blocks=needs_blocks)
                draft = tuple(_draft(layout, index) for index in range(len(layout.stages)))
                kept = _watch_kept(job, layout)
        finally:
            job.seen.pop("loss", None)
    fixed = storage_bytes([*job.whole.parameters(), *job.whole.buffers(), *tensors_of(job.batch)])
    gradients = storage_bytes([p for p in job.whole.parameters() if p.requires_grad])
    plain_bytes = fixed + gradients + sum(kept.saved.values())
    return PredictedStep(layout, draft, kept.passing(), plain_bytes, max(kept.by_stage().values(), default=0))


@contextlib.contextmanager
def _faking(model: torch.nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Put a fake on the place of every parameter and buffer of a model, the same one for the same tensor."""
    made: dict[int, torch.Tensor] = {}
    before: list[tuple[Any, str, torch.Tensor]] = []
    for module in model.modules():
        for shelf in (module._parameters, module._buffers):
            for key, tensor in shelf.items():
                if tensor is not None:
                    before.append((shelf, key, tensor))
                    made.setdefault(id(tensor), mode.from_tensor(tensor))
    marks = {key: _mark_of(fake) for key, fake in made.items()}
    try:
        for shelf, key, tensor in before:
            shelf[key] = made[id(tensor)]
        yield
    finally:
        for shelf, key, tensor in before:
            shelf[key] = tensor
        written = [tensor for _, _, tensor in before if _mark_of(made[id(tensor)]) != marks[id(tensor)]]
        remember_written(tensor for tensor in written if isinstance(tensor, torch.nn.Parameter))


def _mark_of(fake: torch.Tensor) -> tuple[int, int]:
    """What changes when somebody writes into a tensor, or gives it other data."""
    return fake._version, fake.untyped_storage()._cdata


class _Kept:
    """Which storages autograd keeps, and in which stage each was made; all fake, so that holding them costs nothing."""

    def __init__(self, fixed: set[int]) -> None:
        self.fixed = fixed
        self.stage = -1
        self.held: list[torch.Tensor] = []
        self.saved: dict[int, int] = {}
        self.maker: dict[int, int] = {}
        self.outputs: dict[int, dict[int, int]] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note one tensor that autograd keeps."""
        key = storage_key(tensor)
        if key not in self.fixed:
            self.held.append(tensor)
            self.saved[key] = tensor.untyped_storage().nbytes()
            self.maker.setdefault(key, self.stage)
        return tensor

    def ended(self, stage: int, output: object) -> None:
        """Note what a stage returned."""
        tensors = tensors_of(output)
        self.held += tensors
        self.outputs[stage] = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
        for key in self.outputs[stage]:
            self.maker.setdefault(key, stage)
        self.stage = stage + 1  # what follows is glue, or says itself that it starts

    def by_stage(self) -> dict[int, int]:
        """What autograd keeps of every stage."""
        found: dict[int, int] = {}
        for key, size in self.saved.items():
            found[self.maker[key]] = found.get(self.maker[key], 0) + size
        return found

    def passing(self) -> frozenset[int]:
        """Stages whose output is not saved and is larger than what is."""
        found = set()
        kept = self.by_stage()
        for stage, outputs in self.outputs.items():
            passing = sum(size for key, size in outputs.items() if key not in self.saved)
            if passing > kept.get(stage, 0):
                found.add(stage)
        return frozenset(found)


def _watch_kept(job: Job, layout: Layout) -> _Kept:
    tensors = [*job.whole.parameters(), *job.whole.buffers(), *tensors_of(job.batch)]
    kept = _Kept({storage_key(tensor) for tensor in tensors})
    places: list[tuple[torch.nn.Module, Before | None, After | None]] = []

    def starting(index: int) -> Before:
        def before(*_: object) -> None:
            kept.stage = index

        return before

    def ending(index: int) -> After:
        return lambda output: kept.ended(index, output)

    for index, stage in enumerate(layout.stages):
        if stage.calls:
            places.append((stage.calls[0].module, starting(index), None))
            places.append((stage.calls[-1].module, None, ending(index)))
    with watching(places), torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        job.run()
    return kept
