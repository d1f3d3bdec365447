"""Runs code around the calls of a module without touching its forward, its hooks, its copies or its pickles.

`torch.nn.Module.__call__` asks the attribute `_compiled_call_impl` first, and a module leaves that attribute out of its
pickles and copies (read in torch 2.13). A `CallSite` in that place calls its layers, the last added outermost, around
the module's own call with all its hooks, or around what `Module.compile` had put there. Whatever others do to
`forward` or to hooks, before or after, stays theirs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

ATTRIBUTE = "_compiled_call_impl"

Layer = Callable[[Callable[..., object], tuple[object, ...], dict[str, object]], object]
"""Called with the next layer (or the module's own call), the arguments and the keyword arguments."""


class CallSite:
    """What stands in `module._compiled_call_impl` while there are layers."""

    def __init__(self, module: torch.nn.Module, compiled: Callable[..., object] | None) -> None:
        self.module, self.compiled = module, compiled
        self.layers: list[Layer] = []
        self._entry: Callable[..., object] = self._own

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._entry(*args, **kwargs)

    @property
    def _own(self) -> Callable[..., object]:
        return self.module._call_impl if self.compiled is None else self.compiled

    def put(self, layers: list[Layer]) -> None:
        """Take these layers from now on."""
        self.layers, self._entry = layers, self._own
        for layer in layers:
            self._entry = partial(_through, layer, self._entry)

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def _through(layer: Layer, proceed: Callable[..., object], *args: object, **kwargs: object) -> object:
    return layer(proceed, args, kwargs)


def add_layer(module: torch.nn.Module, layer: Layer) -> Callable[[], None]:
    """Run a layer around every call of a module; returns what takes it away."""
    found = module.__dict__.get(ATTRIBUTE)
    site = found if isinstance(found, CallSite) else CallSite(module, found)
    site.put([*site.layers, layer])
    module.__dict__[ATTRIBUTE] = site

    def remove() -> None:
        site.put([each for each in site.layers if each is not layer])
        if site.layers or module.__dict__.get(ATTRIBUTE) is not site:
            return
        if site.compiled is None:
            del module.__dict__[ATTRIBUTE]
        else:
            module.__dict__[ATTRIBUTE] = site.compiled

    return remove


def layers_of(module: torch.nn.Module) -> list[Layer]:
    """The layers around a module's calls."""
    found = module.__dict__.get(ATTRIBUTE)
    return found.layers if isinstance(found, CallSite) else []


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `Module.compile` was called on it."""
    found = module.__dict__.get(ATTRIBUTE)
    return (found.compiled if isinstance(found, CallSite) else found) is not None


def within_a_transform() -> bool:
    """Whether `torch.func` runs the model: `grad`, `vmap` and the like."""
    functorch: Any = torch._C
    return functorch._functorch.peek_interpreter_stack() is not None


Before = Callable[[tuple[object, ...], dict[str, object]], None]
After = Callable[[object], None]


@contextlib.contextmanager
def watching(places: list[tuple[torch.nn.Module, Before | None, After | None]]) -> Iterator[None]:
    """For a while, call functions before and after the calls of modules, outside of their hooks."""
    removers: list[Callable[[], None]] = []
    try:
        for module, before, after in places:
            removers.append(add_layer(module, watcher(before, after)))
        yield
    finally:
        for remove in reversed(removers):
            remove()


def watcher(before: Before | None, after: After | None) -> Layer:
    """A layer that only looks, and not at calls within a transform, whose tensors have no storage."""

    def layer(proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if within_a_transform():
            return proceed(*args, **kwargs)
        if before is not None:
            before(args, kwargs)
        output = proceed(*args, **kwargs)
        if after is not None:
            after(output)
        return output

    return layer


def outside_compiled(model: torch.nn.Module) -> list[torch.nn.Module]:
    """All modules but those below one that is compiled, whose calls are one piece, and those that are left out."""
    found: dict[int, torch.nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if any(hasattr(layer, "leaves_out_calls") for layer in layers_of(module)):
            continue
        if id(module) not in found:
            found[id(module)] = module
            waiting.extend([] if is_compiled(module) else list(module.children()))
    return list(found.values())
