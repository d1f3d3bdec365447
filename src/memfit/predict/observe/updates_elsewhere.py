"""Backwards after which parameters are updated without `optimizer.step()`: in hooks of the backward, or by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

ENOUGH = 4
"""Backwards that begin without gradients, after one that made them, before steps are counted by backwards."""


class UpdatesElsewhere:
    """Counts backwards while no optimizer made a step, and notices when their gradients are used all the same.

    Gradients that accumulate wait for an update; gradients that are gone when the next backward begins were used up or
    thrown away. Backwards inside of a step (closures of L-BFGS) are that step's.
    """

    def __init__(self, optimizers: Callable[[], Iterable[Optimizer]]) -> None:
        self._optimizers = optimizers
        self.num_backwards = self._num_without = 0
        self._a_step_began = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, the beginning of an optimizer's step is noticed."""

        def begins(*_: object) -> None:
            self._a_step_began = True

        hook = register_optimizer_step_pre_hook(begins)
        try:
            yield
        finally:
            hook.remove()

    def goes_backward(self) -> None:
        """A backward begins, and no optimizer made a step so far."""
        self._num_without += self.num_backwards > 0 and not self._any_gradient()
        self.num_backwards += 1

    @property
    def are_likely(self) -> bool:
        """Whether gradients disappeared often enough."""
        return self._num_without >= ENOUGH and not self._a_step_began

    def _any_gradient(self) -> bool:
        groups = (group for optimizer in self._optimizers() for group in optimizer.param_groups)
        return any(parameter.grad is not None for group in groups for parameter in group["params"])
