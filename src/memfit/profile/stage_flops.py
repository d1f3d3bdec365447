"""Floating-point operations of each stage, counted in one forward on fake tensors.

An operator belongs to the stage whose module is running; what runs between modules is glue, and belongs to the glue
that stands there in the draft, or to the stage before. How operators become work is not decided here: the counters are
handed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from memfit.records.plan import Stage

FUSED = " + "


class Counter(Protocol):
    """Counts the work of operators."""

    def note(
        self, func: object, args: tuple[object, ...], kwargs: dict[str, object], result: object, made_bytes: int
    ) -> None: ...


class HasModel(Protocol):
    """A training, as far as it matters here."""

    model: Any


C = TypeVar("C", bound=Counter)
T = TypeVar("T", bound=HasModel)


def work_by_stage(
    build: Callable[[], T], forward: Callable[[T], object], draft: Sequence[Stage], make_counter: Callable[[], C]
) -> list[C]:
    """One counter per stage of the draft, after one forward, up to the loss, of the training that `build` makes."""
    watch = _Watch([make_counter() for _ in draft])
    with _new_parameters(), FakeTensorMode(allow_non_fake_inputs=True):
        training = build()
        handles = _follow(training.model, draft, watch)
        with watch:
            forward(training)
        for handle in handles:
            handle.remove()
    return watch.counters


@contextlib.contextmanager
def _new_parameters() -> Iterator[None]:
    """Let `model.to(...)` make new parameters: a fake tensor cannot be changed into another one in place."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


class _Watch(TorchDispatchMode, Generic[C]):
    """Hands every operator to the counter of the stage that is running."""

    def __init__(self, counters: list[C]) -> None:
        super().__init__()
        self.counters, self.stage = counters, 0

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        known = {_storage(value) for value in args if isinstance(value, torch.Tensor)}
        result = func(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        made = {_storage(value): value for value in results if isinstance(value, torch.Tensor)}
        made_bytes = sum(value.untyped_storage().nbytes() for key, value in made.items() if key not in known)
        self.counters[self.stage].note(func, args, kwargs, result, made_bytes)
        return result


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _follow(model: torch.nn.Module, draft: Sequence[Stage], watch: _Watch[C]) -> list[RemovableHandle]:
    """Hooks that say which stage runs; after a module that is followed by glue, the glue does."""
    modules = dict(model.named_modules())
    handles = []
    for index, stage in enumerate(draft):
        after = index + 1 if index + 1 < len(draft) and draft[index + 1].kind == "glue" else index
        for name in stage.name.split(FUSED) if stage.kind != "glue" else ():
            handles.append(modules[name].register_forward_pre_hook(_set(watch, index)))
            handles.append(modules[name].register_forward_hook(_set(watch, after)))
    return handles


def _set(watch: _Watch[C], stage: int) -> Callable[..., None]:
    def hook(*_: object) -> None:
        watch.stage = stage

    return hook
