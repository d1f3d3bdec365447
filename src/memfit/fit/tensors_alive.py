"""Counts what tensors of a program are alive, and finds the optimizer of a model among its objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch

from memfit.model.memo_by_class import memo_by_class
from memfit.model.step import Job, storages_of, tensors_of
from memfit.model.tensors_in_arguments import with_subclasses


def optimizer_of(modules: list[torch.nn.Module]) -> torch.optim.Optimizer | None:
    """The optimizer of the program that has most of a model's parameters; a wrapper of another one does not count."""
    wanted = {id(p) for module in modules for p in module.parameters()}
    best: tuple[int, Any] = (0, None)
    for each in _optimizers():
        count = sum(id(p) in wanted for group in each.param_groups for p in group["params"])
        best = max(best, (count, each), key=lambda pair: pair[0])
    return best[1]


def other_optimizers(optimizer: torch.optim.Optimizer | None) -> list[torch.optim.Optimizer]:
    """Those of the program that have a parameter which this one does not have."""
    own = {id(p) for group in (optimizer.param_groups if optimizer is not None else ()) for p in group["params"]}
    return [each for each in _optimizers() if any(id(p) not in own for g in each.param_groups for p in g["params"])]


def _optimizers() -> list[torch.optim.Optimizer]:
    kinds = with_subclasses(torch.optim.Optimizer)
    return [each for each in gc.get_objects() if type(each) in kinds and not hasattr(each, "optimizer")]


def tensors_alive() -> list[torch.Tensor]:
    """All that have a Python object, and those without one: gradients not read yet, and what graphs keep."""
    kinds = with_subclasses(torch.Tensor)  # a lookup by type: a program has a million objects
    found: list[torch.Tensor] = [each for each in gc.get_objects() if type(each) in kinds]
    read: Any = torch._C.TensorBase.grad  # not noticed by what watches the program read its gradients
    gradients = [read.__get__(each) for each in found if each.requires_grad and _graph_of(each) is None]
    return [*found, *(gradient for gradient in gradients if gradient is not None), *_kept_by_graphs(found)]


def _graph_of(tensor: torch.Tensor) -> torch.autograd.graph.Node | None:
    """Its `grad_fn`. Torch may refuse to tell it of a view whose base was written into, which has none of its own."""
    with contextlib.suppress(RuntimeError):
        return tensor.grad_fn
    return None


def _kept_by_graphs(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What autograd has saved for a backward of these tensors, and not released; nothing is unpacked for it."""
    waiting: list[Any] = [graph for tensor in tensors if (graph := _graph_of(tensor)) is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for name in _saved_names(type(node)):
            saved: Any = None
            with contextlib.suppress(RuntimeError):  # a list that was released
                saved = getattr(node, name)
            for each in saved if isinstance(saved, tuple) else (saved,):
                if isinstance(kept := getattr(each, "data", None), torch.Tensor):
                    yield kept
        before = {parent for parent, _ in node.next_functions if parent is not None} - seen
        seen |= before
        waiting.extend(before)


@memo_by_class
def _saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def alive_bytes(device: torch.device) -> int:
    """What all tensors of the program on a kind of device take."""
    return sum(storages_of(tensors_alive(), device).values())


def waiting_bytes(device: torch.device) -> int:
    """What graphs hold whose backward is still to come."""
    kinds = with_subclasses(torch.Tensor)
    return sum(
        storages_of(_kept_by_graphs([each for each in gc.get_objects() if type(each) in kinds]), device).values()
    )


def bytes_around(job: Job) -> int:
    """What tensors of the program take that belong neither to the model, nor to its batch, optimizer or gradients."""
    everything = storages_of(tensors_alive(), job.device)
    gradients = [p.grad for p in job.model.parameters() if p.grad is not None]
    state = tensors_of([dict(entry) for entry in job.optimizer.state.values()]) if job.optimizer is not None else []
    own = storages_of(
        [*job.model.parameters(), *job.model.buffers(), *gradients, *state, *tensors_of(job.batch)], job.device
    )
    return sum(size for key, size in everything.items() if key not in own)
