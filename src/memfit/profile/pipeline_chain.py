"""Chain of layers for pipelines from a live model or a predicted step: its stages, with parameters and places to cut.

A live model is measured on one micro-batch, the first part of its batch, as torch.distributed.pipelining cuts it. A
predicted step is that of the whole batch, of which a micro-batch is taken to be an equal share. A chain can be cut
behind a stage whose one output is the very tensor that the next stage is given and that has no other reader; what the
parent module computes between stages belongs to the stage behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import torch
from torch.utils._pytree import tree_map

from memfit.errors import UsageError
from memfit.model.stages import FUSED, GLUE
from memfit.model.step import job_of, storage_bytes, tensors_of
from memfit.profile.profile import profile_job
from memfit.records.pipeline import Layer, PipelineChain
from memfit.records.plan import Chain, Stage

NOT_JOINED = "its output has another reader than the next stage, or code of the parent runs between them"
STEP_OF_ITS_OWN = "the training has a step of its own, which cannot be cut into micro-batches"


class TrainingParts(Protocol):
    """What of a training is needed here."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[..., object] | None
    batch: object
    step: Callable[[], object] | None
    options: object


def measured_chain(training: TrainingParts, name: str, num_micro_batches: int) -> PipelineChain:
    """Measure the stages of a training on one micro-batch."""
    _refuse_other_steps(training)
    micro_batch, size = micro_batch_of(training.batch, num_micro_batches)
    job = job_of(training.model, micro_batch, training.loss, training.optimizer, name)
    profile = profile_job(job)
    parameters = parameters_by_stage(training.model, profile.chain.stages)
    notes = (f"measured on one micro-batch of {size} examples on this machine", *profile.notes)
    return pipeline_chain(profile.chain, parameters, micro_batch_size=size, notes=notes)


def _refuse_other_steps(training: TrainingParts) -> None:
    options = training.options
    if training.step is None:
        return
    is_plain = options is not None and dataclasses.is_dataclass(options) and options == type(options)()
    if not is_plain:
        raise UsageError(
            STEP_OF_ITS_OWN, found=str(options or "a step function"), hint="return model, optimizer, loss and batch"
        )


def micro_batch_of(batch: object, num_micro_batches: int) -> tuple[object, int]:
    """The first of equal parts of a batch along its first dimension, and how many examples it has."""
    sizes = {tensor.shape[0] for tensor in tensors_of(batch) if tensor.dim()}
    if len(sizes) != 1:
        raise UsageError(
            "the batch cannot be cut into micro-batches", found=f"first dimensions {sorted(sizes)}",
            hint="a batch whose tensors have the examples as their first dimension",
        )  # fmt: skip
    whole = sizes.pop()
    if whole % num_micro_batches:
        near = max(n for n in range(1, num_micro_batches + 1) if whole % n == 0)
        raise UsageError(
            "the batch is no multiple of the micro-batches", found=f"{whole} examples, {num_micro_batches} micro-batches",
            hint=f"--micro-batches {near}",
        )  # fmt: skip
    size = whole // num_micro_batches
    cut = tree_map(lambda leaf: leaf[:size] if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf, batch)
    return cut, size


def parameters_by_stage(model: torch.nn.Module, stages: Sequence[Stage]) -> list[int]:
    """Bytes of the parameters of every stage; those that no stage has belong to the first one.

    Tied weights are refused where two stages share them: each rank would have a copy with a gradient of its own.
    """
    owners: dict[int, tuple[int, str]] = {}
    found = []
    for index, stage in enumerate(stages):
        modules = [model.get_submodule(name) for name in _modules_of(stage)]
        own = {id(p): p for module in modules for p in module.parameters()}
        for key, parameter in own.items():
            if key in owners and owners[key][0] != index:
                _refuse_tied(model, parameter, owners[key][1], stage.name)
            owners[key] = (index, stage.name)
        found.append(storage_bytes(own.values()))
    rest = [p for p in model.parameters() if id(p) not in owners]
    found[0] += storage_bytes(rest)
    return found


def _refuse_tied(model: torch.nn.Module, parameter: torch.nn.Parameter, first: str, second: str) -> None:
    names = [name for name, each in model.named_parameters(remove_duplicate=False) if each is parameter]
    raise UsageError(
        "two stages share a weight, of which a pipeline would have two copies that drift apart",
        found=f"{' and '.join(names)} in {first} and {second}", hint="untie it before cutting the model",
    )  # fmt: skip


def _modules_of(stage: Stage) -> tuple[str, ...]:
    return () if stage.kind == GLUE else tuple(stage.name.split(FUSED))


def pipeline_chain(
    chain: Chain,
    parameters: Sequence[int],
    *,
    micro_batch_size: int | None = None,
    num_shares: int = 1,
    notes: tuple[str, ...] = (),
) -> PipelineChain:
    """Layers of a chain of stages; bytes and seconds of each are divided by `num_shares`, weights are not."""
    whole = sum(parameters)
    gradients = chain.fixed.gradient_bytes + sum(stage.gradient_bytes for stage in chain.stages)
    layers: list[Layer] = []
    pending: list[Layer] = []
    for stage, own in zip(chain.stages, parameters, strict=True):
        share = own / whole if whole else 0.0
        layer = Layer(
            name=stage.name,
            forward_seconds=stage.forward_seconds / num_shares,
            backward_seconds=stage.backward_seconds / num_shares,
            parameter_bytes=own,
            gradient_bytes=round(min(gradients, whole) * share),
            optimizer_bytes=round(chain.fixed.optimizer_state_bytes * share),
            output_bytes=stage.output_bytes // num_shares,
            saved_bytes=stage.saved_bytes // num_shares,
            transient_bytes=max(stage.forward_transient_bytes, stage.backward_transient_bytes, 0) // num_shares,
            modules=_modules_of(stage),
            no_cut_because="" if stage.joins_next else NOT_JOINED,
        )
        if stage.kind == GLUE:
            pending.append(layer)
            continue
        layers.append(_together([*pending, layer]))
        pending = []
    if pending:
        layers[-1:] = [_together([*layers[-1:], *pending])]
    return PipelineChain(
        layers=tuple(layers), input_bytes=chain.input_bytes // num_shares, target=chain.target,
        micro_batch_size=micro_batch_size, source=chain.source, time_source=chain.time_source, notes=notes,
    )  # fmt: skip


def _together(layers: Sequence[Layer]) -> Layer:
    """One layer out of several that cannot be cut apart; it is called after those that are modules."""
    last = layers[-1]
    named = [layer.name for layer in layers if layer.modules] or [last.name]
    return msgspec.structs.replace(
        last,
        name=FUSED.join(named),
        forward_seconds=sum(layer.forward_seconds for layer in layers),
        backward_seconds=sum(layer.backward_seconds for layer in layers),
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        gradient_bytes=sum(layer.gradient_bytes for layer in layers),
        optimizer_bytes=sum(layer.optimizer_bytes for layer in layers),
        saved_bytes=sum(layer.saved_bytes for layer in layers),
        transient_bytes=max(layer.transient_bytes for layer in layers),
        modules=tuple(name for layer in layers for name in layer.modules),
    )
