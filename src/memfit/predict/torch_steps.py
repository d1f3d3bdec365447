"""When a predicted script has shown enough: its steps, counted by optimizers or by backwards, and what follows them.

With an optimizer, a step is its update; in a script that never builds one, a backward. When the steps are made the run
goes on for a while, because an evaluation with the optimizer's state alive may hold more than a step: until such an
evaluation was seen, the script ends, or the time for it is over. Data loaders end early there and in evaluations, once
the shapes of their batches repeat; that is listed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import dataloader

from memfit.predict.script_ends import EnoughSteps
from memfit.predict.torch_fake import Recording
from memfit.predict.torch_tracker import tensors_in

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""
LEAST_AFTER_SECONDS, MOST_AFTER_SECONDS, AFTER_SHARE = 0.5, 20.0, 0.5
EVALUATIONS = 4
"""Calls of a model without gradients after the steps that are enough when their shapes repeat."""
BATCHES_ALIKE = 3
PATIENCE_SECONDS = 180.0
"""After this long, the steps made so far are enough."""


class StepCounter:
    """Ends the run when it has shown enough."""

    def __init__(self, recording: Recording, num_steps: int, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._recording, self._num_steps = recording, num_steps
        self._waiting: set[int] = set()
        self._leader: Any = None
        self._started, self._patience_seconds = time.perf_counter(), patience_seconds
        self._until: float | None = None
        self._shapes_evaluated: list[Any] = []
        self.num_backwards = self.num_steps_made = 0
        self.is_done = False

    @property
    def by_backwards(self) -> bool:
        """Whether backwards are counted, because there is no optimizer."""
        return not self._waiting and not self._recording.num_updates

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, optimizers, backwards and batches are noticed."""
        recording, counter = self._recording, self
        recording.on_update, recording.on_root = self.stepped, self.called
        make = torch.optim.Optimizer.__init__
        following = dataloader._BaseDataLoaderIter.__next__

        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            counter._waiting.add(id(self))

        def next_batch(self: Any) -> Any:
            counter.end_early(self)
            batch = following(self)
            shapes = [tuple(tensor.shape) for tensor in tensors_in(batch)]
            self.__dict__.setdefault("_memfit_shapes", []).append(shapes)
            return batch

        with (
            patch.object(torch.optim.Optimizer, "__init__", made),
            patch.object(dataloader._BaseDataLoaderIter, "__next__", next_batch),
            patch.object(torch.autograd, "backward", self._counting(torch.autograd.backward)),
            patch.object(torch.autograd, "grad", self._counting(torch.autograd.grad)),
        ):
            yield

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self.goes_backward()
            return original(*args, **kwargs)

        return backward

    # ---- what happens ----------------------------------------------------------------------------------------------

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step."""
        counts = self._recording.num_updates
        most = max(counts.values())
        self._recording.places.step = most + 1
        if self._until is not None:
            self._end_if(bool(self._shapes_evaluated) or time.perf_counter() > self._until)
            return
        all_there = all(counts.get(key, 0) >= self._num_steps for key in self._waiting | set(counts))
        if all_there or most >= self._num_steps * OTHERS_MAY_LAG or self._is_late():
            self._steps_are_made()
        elif optimizer is self._leader or self._leader is None:
            self._leader = optimizer
            self._recording.tracker.work.reset()

    def goes_backward(self) -> None:
        """A backward begins; in a script without an optimizer this is where a step ends."""
        if self.by_backwards and torch._C._current_graph_task_id() == -1:
            if self.num_backwards >= self._num_steps or (self.num_backwards and self._is_late()):
                self.is_done = True
                raise EnoughSteps
            self.num_backwards += 1
            self._recording.places.step = self.num_backwards
            self._recording.tracker.work.reset()

    def called(self, inputs: Any) -> None:
        """An outermost module is called."""
        if self._until is None or torch.is_grad_enabled():
            self._end_if(self._until is not None and time.perf_counter() > self._until)
            return
        self._shapes_evaluated.append([tuple(tensor.shape) for tensor in tensors_in(inputs)])
        self._end_if(_repeats(self._shapes_evaluated, EVALUATIONS))

    def end_early(self, batches: Any) -> None:
        """Whether a loader has given enough: StopIteration in an evaluation or after the steps."""
        shown = batches.__dict__.get("_memfit_shapes", [])
        after = self._until is not None and bool(shown)
        if after if torch.is_grad_enabled() else _repeats(shown, BATCHES_ALIKE):
            self._recording.shadow.note("script", "a data loader was ended early: its batches repeat")
            raise StopIteration

    def _steps_are_made(self) -> None:
        self.is_done = True
        self.num_steps_made = max(self._recording.num_updates.values())
        self._recording.keep_work()
        now = time.perf_counter()
        share = min(max(AFTER_SHARE * (now - self._started), LEAST_AFTER_SECONDS), MOST_AFTER_SECONDS)
        self._until = now + (0.0 if self._is_late() else share)

    def _is_late(self) -> bool:
        return time.perf_counter() - self._started > self._patience_seconds

    def _end_if(self, enough: bool) -> None:
        if enough:
            raise EnoughSteps


def _repeats(shapes: list[Any], count: int) -> bool:
    """Whether the last ones are alike."""
    return len(shapes) >= count and all(shape == shapes[-1] for shape in shapes[-count:])
