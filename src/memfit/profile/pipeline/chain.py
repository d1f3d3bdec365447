"""Chain of layers for pipelines from a live model or a predicted step: its stages, with parameters and places to cut.

A live model is measured on one micro-batch, the first part of its batch, as torch.distributed.pipelining cuts it. A
predicted step is that of the whole batch, of which a micro-batch is taken to be an equal share. A chain can be cut
behind a stage whose one output is the very tensor that the next stage is given and that has no other reader; what the
parent module computes between stages belongs to the stage behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from memfit.errors import UsageError
from memfit.model.call_sites import After, Before, watching
from memfit.model.stages import FUSED, GLUE
from memfit.model.step import Job, job_of, leaving_no_trace, tensors_of
from memfit.profile.fake_step import replacing_parameters
from memfit.profile.profile import profile_job
from memfit.records.pipeline import Layer, PipelineChain
from memfit.records.plan import Chain, Stage

NOT_JOINED = "its output has another reader than the next stage, or code of the parent runs between them"
STEP_OF_ITS_OWN = "the training has a step of its own, which cannot be cut into micro-batches"


class TrainingParts(Protocol):
    """What of a training is needed here."""

    @property
    def model(self) -> torch.nn.Module: ...
    @property
    def optimizer(self) -> torch.optim.Optimizer: ...
    @property
    def loss(self) -> Callable[..., object] | None: ...
    @property
    def batch(self) -> object: ...
    @property
    def step(self) -> Callable[[], object] | None: ...
    @property
    def options(self) -> object: ...


def measured_chain(training: TrainingParts, name: str, num_micro_batches: int) -> PipelineChain:
    """Measure the stages of a training on one micro-batch."""
    refuse_other_steps(training)
    micro_batch, size = micro_batch_of(training.batch, num_micro_batches)
    job = job_of(training.model, micro_batch, training.loss, training.optimizer, name)
    profile = profile_job(job)
    reads = read_parameters(job, profile.chain.stages)
    notes = (f"measured on one micro-batch of {size} examples on this machine", *profile.notes, *reads.notes)
    input_bytes = _input_bytes(micro_batch)
    return pipeline_chain(profile.chain, reads, input_bytes=input_bytes, micro_batch_size=size, notes=notes)


def _input_bytes(batch: object) -> int:
    """What the first layer gets: targets, the second of two parts, go to the last one."""
    given = batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 2 else batch
    return sum(tensor.nbytes for tensor in tensors_of(given))


def predicted_layers(
    build: Callable[[], TrainingParts], name: str, chain: Chain, num_micro_batches: int, notes: tuple[str, ...]
) -> PipelineChain:
    """Layers of a predicted chain; the training is built on fake tensors to see which stage reads which parameters."""
    with replacing_parameters(), FakeTensorMode(allow_non_fake_inputs=True):
        training = build()
        refuse_other_steps(training)
        _, size = micro_batch_of(training.batch, num_micro_batches)
        job = job_of(training.model, training.batch, training.loss, training.optimizer, name)
        reads = read_parameters(job, chain.stages)
        input_bytes = _input_bytes(training.batch) // num_micro_batches
    said = f"sizes and seconds of a micro-batch are those of the predicted batch divided by {num_micro_batches}"
    return pipeline_chain(
        chain, reads, input_bytes=input_bytes, micro_batch_size=size, num_shares=num_micro_batches,
        notes=(said, *notes, *reads.notes),
    )  # fmt: skip


def refuse_other_steps(training: TrainingParts) -> None:
    """Refuse a training whose step is more than forward, loss, backward and update: a schedule runs those alone."""
    options = training.options
    if training.step is None:
        return
    is_plain = options is not None and dataclasses.is_dataclass(options) and options == type(options)()
    if not is_plain:
        raise UsageError(
            STEP_OF_ITS_OWN, found=str(options or "a step function"), hint="return model, optimizer, loss and batch"
        )


def micro_batch_of(batch: object, num_micro_batches: int) -> tuple[object, int]:
    """The first of equal parts of a batch along its first dimension, and how many examples it has.

    In storages of its own: a view would count with the whole batch.
    """
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
            "the batch is no multiple of the micro-batches",
            found=f"{whole} examples, {num_micro_batches} micro-batches", hint=f"--micro-batches {near}",
        )  # fmt: skip
    size = whole // num_micro_batches
    cut = tree_map(lambda leaf: leaf[:size].clone() if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf, batch)
    return cut, size


# ---- which stage reads which parameters ------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class ParameterReads:
    """Parameters that each stage of a chain reads in its forward."""

    num_bytes: list[int]
    trained_bytes: list[int]
    """Of those that get a gradient: frozen ones have none, nor state of the optimizer, nor have those nothing reads."""
    whole_trained_bytes: int
    """Of all that get a gradient, each counted once."""
    modules: list[tuple[str, ...]]
    """Paths of the modules that own them, in the order of reading."""
    notes: tuple[str, ...] = ()


class _Reads(TorchFunctionMode):
    """Notes which parameters torch functions are given, and in which stage."""

    def __init__(self, names: dict[int, str], num_stages: int) -> None:
        super().__init__()
        self.names, self.stage = names, 0
        self.found: list[dict[int, str]] = [{} for _ in range(num_stages)]

    def __torch_function__(self, func, types, args=(), kwargs=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        for leaf in tree_leaves((args, kwargs or {})):
            if id(leaf) in self.names:
                self.found[self.stage].setdefault(id(leaf), self.names[id(leaf)])
        return func(*args, **(kwargs or {}))


def read_parameters(job: Job, stages: Sequence[Stage]) -> ParameterReads:
    """Run the step once and see which stage reads which parameters; one that no stage reads belongs to the first.

    A parameter that several stages read counts in each of them, with a note: across a cut, each rank has a copy.
    """
    parameters = {id(p): p for p in job.model.parameters()}
    reads = _Reads({id(p): name for name, p in job.model.named_parameters()}, len(stages))
    places: list[tuple[torch.nn.Module, Before | None, After | None]] = []
    for index, stage in enumerate(stages):
        modules = [job.model.get_submodule(name) for name in _modules_of(stage)]
        if modules:
            places.append((modules[0], _entering(reads, index), None))
            places.append((modules[-1], None, _leaving(reads, min(index + 1, len(stages) - 1))))
    with leaving_no_trace(job), watching(places), reads:
        job.run()
    seen = {key for found in reads.found for key in found}
    trained = {key: parameters[key].nbytes for key in seen if parameters[key].requires_grad}
    trained_bytes = [sum(trained.get(key, 0) for key in found) for found in reads.found]
    for key in parameters.keys() - seen:
        reads.found[0][key] = reads.names[key]
    sizes = [sum(parameters[key].nbytes for key in found) for found in reads.found]
    modules = [_modules_of(stage) or _owners(found.values()) for stage, found in zip(stages, reads.found, strict=True)]
    return ParameterReads(sizes, trained_bytes, sum(trained.values()), modules, _notes_on_tied(reads, stages))


def _entering(reads: _Reads, stage: int) -> Before:
    def before(*_: object) -> None:
        reads.stage = stage

    return before


def _leaving(reads: _Reads, stage: int) -> After:
    def after(_: object) -> None:
        reads.stage = stage

    return after


def _owners(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in names if "." in name))


def _notes_on_tied(reads: _Reads, stages: Sequence[Stage]) -> tuple[str, ...]:
    readers: dict[str, list[str]] = {}
    for stage, found in zip(stages, reads.found, strict=True):
        for name in found.values():
            readers.setdefault(name, []).append(stage.name)
    return tuple(
        f"{name} is read by {' and '.join(by)}: a cut between them puts a copy on both ranks (counted in both), whose "
        "gradients torch.distributed.pipelining does not add up"
        for name, by in readers.items()
        if len(by) > 1
    )


def _modules_of(stage: Stage) -> tuple[str, ...]:
    return () if stage.kind == GLUE else tuple(stage.name.split(FUSED))


def pipeline_chain(
    chain: Chain,
    reads: ParameterReads,
    *,
    input_bytes: int,
    micro_batch_size: int | None = None,
    num_shares: int = 1,
    notes: tuple[str, ...] = (),
) -> PipelineChain:
    """Layers of a chain of stages; bytes and seconds of each are divided by `num_shares`, weights are not."""
    layers: list[Layer] = []
    pending: list[Layer] = []
    of_stages = zip(chain.stages, reads.num_bytes, reads.trained_bytes, reads.modules, strict=True)
    for stage, own, trained, modules in of_stages:
        share = trained / reads.whole_trained_bytes if reads.whole_trained_bytes else 0.0
        layer = Layer(
            name=stage.name,
            forward_seconds=stage.forward_seconds / num_shares,
            backward_seconds=stage.backward_seconds / num_shares,
            parameter_bytes=own,
            gradient_bytes=trained,
            optimizer_bytes=round(chain.fixed.optimizer_state_bytes * share),
            output_bytes=stage.output_bytes // num_shares,
            saved_bytes=stage.saved_bytes // num_shares,
            transient_bytes=max(stage.forward_transient_bytes, stage.backward_transient_bytes, 0) // num_shares,
            modules=modules,
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
        layers=tuple(layers), input_bytes=input_bytes, target=chain.target, update_bytes=chain.update_transient_bytes,
        micro_batch_size=micro_batch_size, source=chain.source, time_source=chain.time_source, notes=notes,
    )  # fmt: skip


def _together(layers: Sequence[Layer]) -> Layer:
    """One layer out of several that cannot be cut apart; it is called after those that are modules."""
    last = layers[-1]
    named = [module for layer in layers for module in layer.modules] or [last.name]
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
