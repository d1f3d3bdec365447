"""Recipes put on a built training: another optimizer, checkpoints, adapters, half precision, stepping in the backward.

Everything is done as a user would do it in plain torch, so that what is predicted and measured is what the line of code
of a technique gives. A technique that a model has no place for is refused with the reason.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recompute
from torch.utils.checkpoint import checkpoint_sequential

from memfit.errors import UsageError
from memfit.job.recipes.recipe import MARK_BYTES, Recipe
from memfit.job.recipes.torch_optimizers import make_optimizer
from memfit.job.recipes.torch_step import map_batch, update_kind, with_step
from memfit.job.training import StepOptions, Training, check_steps


def with_recipe(training: Training, recipe: Recipe, origin: str) -> Training:
    """The training as the recipe has it; model and optimizer are changed in place."""
    is_own = training.model is None or (training.step is not None and training.options is None)
    if is_own and not _changes_anything(recipe):
        return training
    if training.model is None or is_own:
        raise UsageError(
            "the job steps by itself, so that no recipe can be put on it", found=origin,
            hint="return (model, optimizer, loss, batch) from FILE:function and leave the step to memfit",
        )  # fmt: skip
    _change_model(training, recipe)
    if recipe.part == "the update alone":
        return _update_alone(training, recipe)
    is_apart = recipe.part == "all but the update"
    training.optimizer = MarkedStep(_stepped(training, recipe)) if is_apart else _optimizer_for(training, recipe)
    if recipe.has("compile"):
        training.model.compile()
    return with_step(training, _options_for(training, recipe))


def _changes_anything(recipe: Recipe) -> bool:
    """Whether something has to be put on the training; batch size and allocator are changed outside of it."""
    outside = all(choice.name in ("batch", "pinned-malloc") for choice in recipe.techniques)
    return bool(recipe.optimizer) or recipe.part != "step" or not outside


def _options_for(training: Training, recipe: Recipe) -> StepOptions:
    options = training.options or StepOptions()
    precision = next((name for name in ("bf16", "fp16") if recipe.has(name)), options.precision)
    return dataclasses.replace(
        options,
        precision=precision,
        num_parts=int(recipe.value_of("accumulate") or options.num_parts),
        clip=recipe.value_of("clip") or options.clip,
        set_to_none=options.set_to_none and not recipe.has("keep-gradients"),
        offload_activations=recipe.has("offload-activations"),
    )


# ---- the model -------------------------------------------------------------------------------------------------------


def _change_model(training: Training, recipe: Recipe) -> None:
    model = training.model
    if recipe.has("lora"):
        add_adapters(model, int(recipe.value_of("lora") or 0))
    if recipe.has("pure-bf16"):
        _to_pure_bfloat16(training)
    if recipe.has("checkpoint"):
        checkpoint_blocks(model)
    if recipe.has("chunked-loss"):
        _chunk_loss(model)


def _to_pure_bfloat16(training: Training) -> None:
    """Model and batches; metrics on held-out examples are left out, which would be float32."""
    model = training.model
    num_complex = sum(tensor.is_complex() for tensor in (*model.parameters(), *model.buffers()))
    if num_complex:
        raise UsageError(
            "bfloat16 would drop the imaginary parts of the model", found=f"{num_complex} complex tensors",
            hint="bf16, which leaves parameters as they are",
        )  # fmt: skip
    model.to(torch.bfloat16)
    training.batch, feed = map_batch(training.batch, _to_bfloat16), training.feed
    if feed is not None:
        training.feed = lambda epoch: (map_batch(batch, _to_bfloat16) for batch in feed(epoch))
    training.evaluate = None


def _to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


class LowRankLinear(nn.Module):
    """A frozen linear layer and a low-rank product beside it (Hu et al., LoRA, 2021)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        weight = layer.weight
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False, device=weight.device, dtype=weight.dtype)
        self.up = nn.Linear(rank, layer.out_features, bias=False, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's own output, and the adapter's."""
        return self.layer(x) + self.up(self.down(x))


def add_adapters(model: nn.Module, rank: int) -> None:
    """Freeze a model and put an adapter beside every linear layer but the last, which stays trainable."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if len(linear) < 2:
        raise UsageError("there is no linear layer to adapt", found=type(model).__name__, hint="leave lora out")
    model.requires_grad_(False)
    for name, layer in linear[:-1]:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LowRankLinear(layer, rank))
    linear[-1][1].requires_grad_(True)


def checkpoint_blocks(model: nn.Module) -> None:
    """Compute the activations of repeated blocks again in the backward: the model's own switch, or block by block."""
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # pyright: ignore[reportCallIssue]
        return
    blocks = list(repeated_blocks(model))
    for block in blocks:
        block.forward = partial(recompute, block.forward, use_reentrant=False)
    if not blocks:
        _checkpoint_segments(model)


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Blocks of one kind that stand in a row in a list or a sequence, the outermost ones."""
    children = list(module.children())
    if isinstance(module, nn.ModuleList | nn.Sequential) and _are_blocks(children):
        yield from children
        return
    for child in children:
        yield from repeated_blocks(child)


def _are_blocks(children: list[nn.Module]) -> bool:
    return len(children) > 1 and len({type(child) for child in children}) == 1 and any(children[0].children())


def _checkpoint_segments(model: nn.Module) -> None:
    """A plain sequence of layers is cut into about as many segments as a segment has layers."""
    if not isinstance(model, nn.Sequential) or len(model) < 4:
        raise UsageError(
            "the model has no repeated blocks to checkpoint", found=type(model).__name__,
            hint="memfit fit finds what can be computed again",
        )  # fmt: skip
    layers = nn.Sequential(*model)
    num_segments = max(2, round(len(model) ** 0.5))
    model.forward = partial(_in_segments, layers, num_segments)


def _in_segments(layers: nn.Sequential, num_segments: int, input: torch.Tensor) -> object:
    return checkpoint_sequential(layers, num_segments, input, use_reentrant=False)


def _chunk_loss(model: nn.Module) -> None:
    from memfit.apply.chunked_loss import ChunkedLoss, widest_layer

    found = widest_layer(model)
    if found is None:
        raise UsageError("there are no logits to cut into chunks", found=type(model).__name__, hint="leave it out")
    ChunkedLoss(found[1], found[0]).start()


# ---- the optimizer ---------------------------------------------------------------------------------------------------


def _optimizer_for(training: Training, recipe: Recipe) -> torch.optim.Optimizer | SteppedByHooks | HostOptimizer:
    parameters = _stepped(training, recipe)
    make = partial(_make, recipe.optimizer, training.optimizer)
    if recipe.has("step-in-backward"):
        return SteppedByHooks(parameters, make)
    if recipe.has("optimizer-on-host"):
        return HostOptimizer(parameters, make)
    if recipe.optimizer:
        are_all = {*map(id, parameters)} == {*map(id, _trained(training))}
        return make_optimizer(recipe.optimizer, training.model if are_all else parameters)  # some ask what is what
    check_steps(training.optimizer)
    return make(parameters) if recipe.has("lora") else training.optimizer


def _trained(training: Training) -> list[nn.Parameter]:
    return [parameter for parameter in training.model.parameters() if parameter.requires_grad]


def _stepped(training: Training, recipe: Recipe) -> list[nn.Parameter]:
    """The parameters that the job's own optimizer steps, which may be fewer than have gradients, or also the loss's."""
    groups = getattr(training.optimizer, "param_groups", None)
    if groups is None or recipe.has("lora"):
        return _trained(training)
    stepped = {id(p): p for group in groups for p in group["params"] if p.requires_grad}
    ordered = [parameter for parameter in _trained(training) if stepped.pop(id(parameter), None) is not None]
    return [*ordered, *stepped.values()] or _trained(training)


def _make(name: str, own: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of the recipe, or one like the job's own."""
    if name:
        return make_optimizer(name, parameters)
    check_steps(own)
    known = inspect.signature(type(own)).parameters  # AdamW's defaults name an option that it does not take
    return type(own)(list(parameters), **{option: v for option, v in own.defaults.items() if option in known})


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class SteppedByHooks:
    """An optimizer for every parameter, stepped by a hook as soon as its gradient is there."""

    def __init__(self, parameters: list[nn.Parameter], make: Make) -> None:
        self.optimizers = {parameter: make([parameter]) for parameter in parameters}
        first = self.optimizers[parameters[0]]
        if update_kind(first) != "plain":
            found = f"{type(first).__name__} computes loss and gradients inside of its step"
            raise UsageError("it cannot be stepped in the backward", found=found, hint="another optimizer")
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._step_one)

    def _step_one(self, parameter: torch.Tensor) -> None:
        optimizer = self.optimizers[parameter]  # pyright: ignore[reportArgumentType]
        optimizer.step()
        optimizer.zero_grad()

    def step(self) -> None:
        """Nothing is left to do."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """No gradient is left."""


class HostOptimizer:
    """An optimizer over copies of the parameters in host memory; gradients go there, new values come back."""

    def __init__(self, parameters: list[nn.Parameter], make: Make) -> None:
        self.parameters = parameters
        self.copies = [nn.Parameter(parameter.detach().to("cpu")) for parameter in parameters]
        self.optimizer = make(self.copies)

    def step(self) -> None:
        """Step on the host."""
        for parameter, copy in zip(self.parameters, self.copies, strict=True):
            copy.grad = None if parameter.grad is None else parameter.grad.to("cpu")
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for parameter, copy in zip(self.parameters, self.copies, strict=True):
                parameter.copy_(copy)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients on the device."""
        for parameter in self.parameters:
            parameter.grad = None


# ---- a step in two parts ---------------------------------------------------------------------------------------------


def leave_mark(device: torch.device) -> None:
    """Take a block of a size that nothing else has, and give it back: a moment that is found again in the record."""
    torch.empty(MARK_BYTES, dtype=torch.uint8, device=device)


class MarkedStep(torch.optim.Optimizer):
    """Stands for an optimizer that is traced apart: it marks when that is made and when it steps."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.device = parameters[0].device
        leave_mark(self.device)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Mark the moment."""
        leave_mark(self.device)


def _update_alone(training: Training, recipe: Recipe) -> Training:
    """Only what the optimizer does: it is made and steps, on gradients that are there, between two marks each."""
    parameters = _stepped(training, recipe)
    device = parameters[0].device
    leave_mark(device)
    training.optimizer = _optimizer_for(training, recipe)
    leave_mark(device)
    if update_kind(training.optimizer) != "plain":
        raise UsageError("the update cannot be run alone", found=type(training.optimizer).__name__, hint="the step")
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    training.step = partial(_step_between_marks, training.optimizer, device)
    return training


def _step_between_marks(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    leave_mark(device)
    optimizer.step()
    leave_mark(device)
