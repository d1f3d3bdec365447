"""When a predicted script has shown enough: its steps, counted by optimizers or by backwards, and what follows them.

With an optimizer, a step is its update; in a script that never builds one, a backward. When the steps are made the run
goes on for a while, because an evaluation with the optimizer's state alive may hold more than a step: until such an
evaluation was seen, the script ends, or the time for it is over. Data loaders end early there and in evaluations, once
the shapes of their batches repeat and no batch leaves anything behind; that is listed. What was not seen is listed too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import dataloader

from memfit.predict.child.messages import UNSEEN
from memfit.predict.child.script_ends import EnoughSteps
from memfit.predict.fake.recording import Recording
from memfit.predict.fake.repeated_calls import RepeatedCalls
from memfit.predict.observe.places import is_called_by_library, speaks_of_evaluation
from memfit.predict.observe.repeating_batches import go_to_smaller_last, grows, num_batches, repeats
from memfit.predict.observe.tracker import tensors_in
from memfit.units import format_bytes

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""
LEAST_AFTER_SECONDS, MOST_AFTER_SECONDS, AFTER_SHARE = 0.5, 20.0, 0.5
LEAST_TO_EVALUATION_SECONDS, TO_EVALUATION_SHARE = 5.0, 1.0
"""How long a run goes on where the job's own files say that it evaluates."""
MOST_KEEPING_SECONDS = 60.0
"""How long an evaluation is followed that keeps something of each batch."""
EVALUATIONS = 4
"""Calls of a model without gradients after the steps that are enough when their shapes repeat."""
BATCHES_ALIKE = 3
PATIENCE_SECONDS = 180.0
"""After this long, the steps made so far are enough."""


class StepCounter:
    """Ends the run when it has shown enough."""

    def __init__(
        self, recording: Recording, num_steps: int, script: str = "", patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._recording, self._num_steps = recording, num_steps
        self._leader: int | None = None
        self._started, self._patience_seconds = time.perf_counter(), patience_seconds
        self._until: float | None = None
        self._evaluated: list[tuple[Any, int]] = []
        """Shapes of the inputs, and live bytes, of each call of a model without gradients after the steps."""
        self._modules_before = set(sys.modules)
        self._script = script
        self._in_library = False
        """Whether the loop stands in a library's file."""
        self.num_backwards = self.num_steps_made = 0
        self.is_done = False

    @property
    def by_backwards(self) -> bool:
        """Whether backwards are counted, because there is no optimizer."""
        return not self._recording.living_optimizers() and not self._recording.num_updates

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, optimizers, backwards and batches are noticed."""
        recording, counter = self._recording, self
        recording.on_update, recording.on_root = self.stepped, self.called
        recording.places.run_root = RepeatedCalls(recording.tracker, recording.shadow.note).run
        make = torch.optim.Optimizer.__init__
        following = dataloader._BaseDataLoaderIter.__next__

        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            recording.number_of(self)

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
        self._in_library |= is_called_by_library()
        counts = self._recording.num_updates
        most = max(counts.values())
        self._recording.places.step = most + 1
        if self._until is not None:
            self._end_if(bool(self._evaluated) or time.perf_counter() > self._until)
            return
        number = self._recording.number_of(optimizer)
        all_there = all(counts.get(key, 0) >= self._num_steps for key in self._recording.living_optimizers())
        if all_there or most >= self._num_steps * OTHERS_MAY_LAG or self._is_late():
            self._steps_are_made()
        elif self._leader is None or number == self._leader or self._leader not in self._recording.living_optimizers():
            self._leader = number
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
        shapes = [tuple(tensor.shape) for tensor in tensors_in(inputs)]
        self._evaluated.append((shapes, self._recording.tracker.live_bytes()))
        alike = repeats([shape for shape, _ in self._evaluated], EVALUATIONS)
        self._end_if(alike and not grows([live for _, live in self._evaluated], 1))
        if time.perf_counter() > self._until + MOST_KEEPING_SECONDS:
            self._note_cut([live for _, live in self._evaluated], None)
            self._end_if(True)

    def end_early(self, batches: Any) -> None:
        """Whether a loader has given enough: StopIteration in an evaluation or after the steps."""
        shown = batches.__dict__.get("_memfit_shapes", [])
        if torch.is_grad_enabled():
            enough = self._until is not None and bool(shown)
        else:
            enough = self._has_shown_enough(batches, shown)
        if not enough:
            return
        self._recording.shadow.note("script", "a data loader was ended early: its batches repeat")
        if not go_to_smaller_last(batches, shown[-1]):
            raise StopIteration

    def _has_shown_enough(self, batches: Any, shown: list[Any]) -> bool:
        """Whether the batches of an evaluation repeat and leave nothing behind, or it has taken too long."""
        live = batches.__dict__.setdefault("_memfit_live", [])
        live.append(self._recording.tracker.live_bytes())
        began = batches.__dict__.setdefault("_memfit_began", time.perf_counter())
        if not repeats(shown, BATCHES_ALIKE):
            return False
        left = num_batches(batches) - len(shown)
        if not grows(live, left):
            return True
        is_long = time.perf_counter() - began > MOST_KEEPING_SECONDS
        if is_long:
            self._note_cut(live, left)
        return is_long

    def _note_cut(self, live: list[int], num_left: int | None) -> None:
        """An evaluation that keeps something of each batch was not followed to its end."""
        left = "an unknown number of batches" if num_left is None else f"{num_left} batches"
        kept = format_bytes(max(0, live[-1] - live[-2]) if len(live) > 1 else 0)
        self._recording.shadow.note(
            UNSEEN, f"an evaluation that keeps {kept} of each batch was cut: {left} are missing"
        )

    def _steps_are_made(self) -> None:
        self.is_done = True
        self.num_steps_made = max(self._recording.num_updates.values())
        self._recording.keep_work()
        now = time.perf_counter()
        least, share = LEAST_AFTER_SECONDS, AFTER_SHARE
        if self._evaluates():
            least, share = LEAST_TO_EVALUATION_SECONDS, TO_EVALUATION_SHARE
        share = min(max(share * (now - self._started), least), MOST_AFTER_SECONDS)
        self._until = now + (0.0 if self._is_late() else share)

    def note_unseen(self) -> None:
        """The run was ended: list an evaluation that the job's files speak of and that was not reached."""
        if self._until is not None and not self._evaluated and self._evaluates():
            text = "an evaluation after the steps, if there is one, was not reached in time: it is not in the figures"
            self._recording.shadow.answered[UNSEEN, text, ""] += 1

    def _evaluates(self) -> bool:
        """Whether the job's own files speak of an evaluation, or its loop is a library's, which may evaluate."""
        return self._in_library or speaks_of_evaluation(self._script, self._modules_before)

    def _is_late(self) -> bool:
        return time.perf_counter() - self._started > self._patience_seconds

    def _end_if(self, enough: bool) -> None:
        if enough:
            raise EnoughSteps
