"""How is a block run a second time without leaving a second trace?

Random numbers and autocast are brought back by `torch.utils.checkpoint`. What it leaves to its user are buffers:
statistics of a BatchNorm would be updated twice, and a block whose output depends on a buffer that it changes
(spectral norm) would compute something else. So the buffers are noted before the first run, laid back before the
second, and what they held in between is restored after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


def shelves_of(modules: Sequence[torch.nn.Module]) -> list[dict[str, torch.Tensor | None]]:
    """Where the buffers below some modules lie; walking the tree of modules in every step would take its time."""
    found = {id(below): below for module in modules for below in module.modules() if below._buffers}
    return [below._buffers for below in found.values()]


def buffers_on(shelves: Sequence[dict[str, torch.Tensor | None]]) -> list[torch.Tensor]:
    """The buffers that lie there now, each once."""
    found = {id(buffer): buffer for shelf in shelves for buffer in shelf.values() if buffer is not None}
    return list(found.values())


class Buffers:
    """The buffers of one region over its two runs; lives as long as the region's checkpoint."""

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        self.buffers = buffers
        self.before: list[torch.Tensor] = []

    @contextlib.contextmanager
    def first_run(self) -> Iterator[None]:
        """Note what the buffers hold before the region."""
        self.before = [buffer.detach().clone() for buffer in self.buffers]
        yield

    @contextlib.contextmanager
    def second_run(self) -> Iterator[None]:
        """Run with the buffers as they were, and leave them as they are."""
        now = [buffer.detach().clone() for buffer in self.buffers]
        self._lay(self.before)
        try:
            yield
        finally:
            self._lay(now)

    def _lay(self, values: Sequence[torch.Tensor]) -> None:
        # Through `.data`: a block's backward may hold the buffer, and must not be told of a change that is undone.
        for buffer, value in zip(self.buffers, values, strict=True):
            buffer.data.copy_(value)


def contexts_for(buffers: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    """The pair that `torch.utils.checkpoint` enters around the first and the second run."""
    if not buffers:
        return contextlib.nullcontext(), contextlib.nullcontext()
    kept = Buffers(buffers)
    return kept.first_run(), _Again(kept.second_run)


class _Again:
    """A context that can be entered more than once: a graph that is retained is run backward again."""

    def __init__(self, make: Any) -> None:
        self._make, self._open = make, []

    def __enter__(self) -> None:
        context = self._make()
        context.__enter__()
        self._open.append(context)

    def __exit__(self, *failure: Any) -> Any:
        return self._open.pop().__exit__(*failure)
