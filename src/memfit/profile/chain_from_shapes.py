"""Chain of a network from shapes alone: one forward on fake tensors.

Every storage that autograd keeps counts once, for the stage that was running; nothing is assumed about the scratch of
kernels. Seconds are arithmetic operations of products over 10^12, and a backward takes two forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from memfit.records.plan import Chain, Fixed, Stage

BACKWARD_PER_FORWARD = 2.0
OPERATIONS_PER_SECOND = 1e12
M = TypeVar("M", bound=nn.Module)


class _SavedByStage:
    """Bytes that autograd keeps, each storage once, by the module that is running."""

    def __init__(self, held: set[int]) -> None:
        self.seen, self.stage = held, ""
        self.saved: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        self.alive: list[torch.Tensor] = []
        """Outputs that are not saved: the address of a dead storage may be given to another."""

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.saved[self.stage] = self.saved.get(self.stage, 0) + storage.nbytes()
        return tensor

    def watch(self, name: str, module: nn.Module) -> None:
        def enter(*_: object) -> None:
            self.stage = name

        def leave(_module: object, _inputs: object, output: torch.Tensor) -> None:
            self.outputs[name] = output.untyped_storage().nbytes()
            self.alive.append(self.pack(output))  # the stage's own, also where only the next one keeps it

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


def shape_chain(
    make: Callable[[], M], names: Callable[[M], Sequence[str]], shape: tuple[int, ...], target: str
) -> Chain:
    """The chain of a network on a batch of this shape; `names` gives the modules that are called one after another."""
    with FakeTensorMode():
        model, batch = make(), torch.empty(shape)
        held = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers(), batch]}
        watch = _SavedByStage(held)
        for name in names(model):
            watch.watch(name, model.get_submodule(name))
        with FlopCounterMode(display=False) as flops, torch.autograd.graph.saved_tensors_hooks(watch.pack, _as_it_is):
            kept = model(batch)
        root = type(model).__name__ + "."
        counts = {name.removeprefix(root): sum(each.values()) for name, each in flops.get_flop_counts().items()}
        del kept
    return Chain(
        stages=tuple(_stage(name, model.get_submodule(name), watch, counts) for name in names(model)),
        input_bytes=batch.nbytes,
        fixed=Fixed(parameter_bytes=sum(p.nbytes for p in model.parameters())),
        target=target,
        source="predicted",
        time_source="assumed",
    )


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _stage(name: str, module: nn.Module, watch: _SavedByStage, flops: dict[str, int]) -> Stage:
    seconds = flops.get(name, 0) / OPERATIONS_PER_SECOND
    output_bytes = watch.outputs[name]
    return Stage(
        name=name,
        forward_seconds=seconds,
        backward_seconds=BACKWARD_PER_FORWARD * seconds,
        output_bytes=output_bytes,
        saved_bytes=watch.saved.get(name, 0),
        gradient_bytes=sum(p.nbytes for p in module.parameters()),
    )
