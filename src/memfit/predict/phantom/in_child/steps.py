"""End of a script on the phantom GPU: enough steps, and an evaluation after them with the state alive.

As on fake tensors (predict/fake/steps.py): a step is an optimizer's update, or a backward in a script that builds no
optimizer. When the steps are made the run goes on for a while, until an evaluation was seen, the script ends or the
time for it is over; data loaders end early there and in evaluations, once the shapes of their batches repeat and
nothing of a batch is kept. Kernels cost nothing here, so calls of a model are not left out.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import dataloader

from memfit.predict.child.messages import UNSEEN
from memfit.predict.child.run_script import EnoughSteps
from memfit.predict.observe.later.lines_that_ran import LinesThatRan
from memfit.predict.observe.later.what_follows import Later, what_follows
from memfit.predict.observe.phase_and_module import is_called_by_library, speaks_of_evaluation, tensors_anywhere
from memfit.predict.observe.repeating_batches import (
    LARGER_MAY_FOLLOW,
    counts_batches,
    go_to_smaller_last,
    grows,
    larger_may_follow,
    num_batches,
    repeats,
)
from memfit.predict.observe.updates_elsewhere import UpdatesElsewhere
from memfit.predict.phantom.in_child.storage_watch import RunWatch

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""
LEAST_AFTER_SECONDS, TO_EVALUATION_SECONDS, MOST_AFTER_SECONDS, AFTER_SHARE = 0.3, 2.0, 20.0, 0.5
"""How long a run goes on after its steps; the second where the job's files say that it evaluates."""
MOST_STEPS_AFTER = 32
"""Steps that are made on the way to an evaluation: each is recorded, and explained afterwards."""
BATCHES_ALIKE, EVALUATIONS_ALIKE = 3, 4
SETTLED_STEPS = 2
"""Steps of an optimizer after which the next ones repeat them: the second begins with its state."""
NOT_REACHED = "an evaluation after the steps, if there is one, was not reached in time: it is not in the figures"
Note = Callable[[str, str], None]


class PhantomSteps:
    """Ends the run when it has shown enough."""

    def __init__(self, watch: RunWatch, num_steps: int, script: str, note: Note) -> None:
        self._watch, self._num_steps, self._script, self._note = watch, num_steps, script, note
        self._built: set[int] = set()
        self._living: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._elsewhere = UpdatesElsewhere(lambda: list(self._living))
        self._in_library = False
        """Whether the loop stands in a library's file."""
        self._ran = LinesThatRan()
        self._later: Later | None = None
        """What the job would still do when its steps were made."""
        self._missed: Later | None = None
        """The same when the run was ended."""
        self._modules_before = set(sys.modules)
        self._started = time.perf_counter()
        self._until: float | None = None
        self._evaluated: list[tuple[Any, int]] = []
        """Shapes of the inputs, and live bytes, of each call of a model without gradients after the steps."""
        self._num_backwards = self._num_after = self._num_when_done = 0
        self._stepped: list[int] = []
        """Optimizers that made a step after those that were asked for, by identity, in order."""
        self.num_backwards_so_far = 0
        """Of any kind, also in a script whose optimizers make the steps."""
        self.is_done = False

    @property
    def num_made(self) -> int:
        """Steps so far, without those that were made on the way to an evaluation."""
        return self._num_when_done or max(self._watch.num_updates.values(), default=0) or self.num_steps_by_backwards

    @property
    def num_steps_by_backwards(self) -> int:
        """Steps of a script in which no optimizer made one; 0 in others."""
        return 0 if self._watch.num_updates else self._num_backwards or self._elsewhere.num_backwards

    @property
    def by_backwards(self) -> bool:
        """Whether backwards are counted, because there is no optimizer or none that makes a step."""
        return not self._watch.num_updates and (self._elsewhere.are_likely or not self._built)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, optimizers, backwards, batches and calls of models are noticed."""
        self._watch.on_update, self._watch.on_backward = self.stepped, self.goes_backward
        self._watch.on_root = self.called
        make: Callable[..., None]
        make, following, counter = torch.optim.Optimizer.__init__, dataloader._BaseDataLoaderIter.__next__, self

        def built(self: torch.optim.Optimizer, *args: object, **kwargs: object) -> None:
            make(self, *args, **kwargs)
            counter._built.add(id(self))
            counter._living.add(self)

        def next_batch(self: dataloader._BaseDataLoaderIter) -> object:
            counter.end_early(self, counts_batches(sys._getframe(1)))
            batch = following(self)
            shapes = [tuple(tensor.shape) for tensor in tensors_anywhere(batch)]
            self.__dict__.setdefault("_memfit_shapes", []).append(shapes)
            return batch

        with (
            self._elsewhere.listening(),
            patch.object(torch.optim.Optimizer, "__init__", built),
            patch.object(dataloader._BaseDataLoaderIter, "__next__", next_batch),
        ):
            yield

    # ---- what happens ----------------------------------------------------------------------------------------------

    def stepped(self, optimizer: object) -> None:
        """An optimizer made a step."""
        self._in_library |= is_called_by_library()
        self._ran.note(sys._getframe(1))
        counts = self._watch.num_updates
        most = max(counts.values())
        self._watch.step = most + 1
        if self._until is not None:
            self._num_after += 1
            self._stepped.append(id(optimizer))
            self._end_if((bool(self._evaluated) and not self._later) or self._is_over())
            return
        all_there = all(counts.get(key, 0) >= self._num_steps for key in self._built | set(counts))
        if all_there or most >= self._num_steps * OTHERS_MAY_LAG:
            self._steps_are_made()

    def goes_backward(self) -> None:
        """A backward begins; in a script without an optimizer this is where a step ends."""
        self.num_backwards_so_far += 1
        self._ran.note(sys._getframe(1))
        if self._watch.num_updates:
            return
        self._elsewhere.goes_backward()
        if not self.by_backwards:
            return
        if self._until is not None:
            self._num_after += 1
            self._end_if((bool(self._evaluated) and not self._later) or self._is_over())
        elif self._num_backwards >= self._num_steps:
            self._steps_are_made()
        else:
            self._num_backwards += 1
            self._watch.step = self._num_backwards

    def called(self, inputs: object) -> None:
        """An outermost module with parameters is called."""
        self._ran.note(sys._getframe(1))
        if self._until is None:
            return
        if torch.is_grad_enabled():
            self._end_if(self._is_over())
            return
        shapes = [tuple(tensor.shape) for tensor in tensors_anywhere(inputs)]
        self._evaluated.append((shapes, torch.cuda.memory_allocated()))
        alike = repeats([shape for shape, _ in self._evaluated], EVALUATIONS_ALIKE)
        has_shown_all = alike and not grows([live for _, live in self._evaluated], 1)
        self._end_if(has_shown_all and (not self._later or self._is_over()))
        self._cut_if_over()

    def end_early(self, batches: object, is_counted: bool) -> None:
        """Whether a loader has given enough: StopIteration in an evaluation or after the steps.

        A training that counts its batches (`is_counted`) goes on to the last one.
        """
        shown = batches.__dict__.get("_memfit_shapes", [])
        first = batches.__dict__.setdefault("_memfit_first_step", len(self._stepped) if not shown else 0)
        if torch.is_grad_enabled():
            settled = self._until is not None and bool(shown) and self._is_settled(first, shown)
            enough = settled and not is_counted
        else:
            live = batches.__dict__.setdefault("_memfit_live", [])
            live.append(torch.cuda.memory_allocated())
            enough = repeats(shown, BATCHES_ALIKE) and not grows(live, num_batches(batches) - len(shown))
        if not enough:
            return
        if torch.is_grad_enabled() and larger_may_follow(batches, shown):
            self._note(UNSEEN, LARGER_MAY_FOLLOW)
        else:
            self._note("script", "a data loader was ended early: its batches repeat")
        if not go_to_smaller_last(batches, shown[-1]):
            raise StopIteration

    def _is_settled(self, first: int, shown: list[object]) -> bool:
        """Whether a training has made two steps since its loader's first batch, or no more are to be expected soon."""
        counts = self._watch.num_updates
        numbers = set(self._stepped[first:])
        if not numbers:
            return len(shown) > self._num_steps
        return all(counts.get(number, 0) >= min(SETTLED_STEPS, self._num_steps) for number in numbers)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _steps_are_made(self) -> None:
        self.is_done = True
        self._num_when_done = self.num_made
        now = time.perf_counter()
        self._later = what_follows(self._ran)
        least = TO_EVALUATION_SECONDS if self._evaluates() else LEAST_AFTER_SECONDS
        self._until = now + min(max(AFTER_SHARE * (now - self._started), least), MOST_AFTER_SECONDS)

    def _cut_if_over(self) -> None:
        """An evaluation that keeps something of every batch may be long: it is cut, and that is listed."""
        if self._until is not None and time.perf_counter() > self._until + MOST_AFTER_SECONDS:
            self._note(UNSEEN, "an evaluation that keeps something of each batch was cut: its end was not seen")
            raise EnoughSteps

    def note_unseen(self) -> None:
        """The run was ended: list an evaluation that the job's files speak of and that was not reached."""
        if self._missed is not None:
            self._note(UNSEEN, self._missed.text)
        elif not self._evaluated and self._evaluates():
            self._note(UNSEEN, NOT_REACHED)

    def _evaluates(self) -> bool:
        return self._in_library or self._later is not None or speaks_of_evaluation(self._script, self._modules_before)

    def _is_over(self) -> bool:
        late = self._until is not None and time.perf_counter() > self._until
        return late or self._num_after >= MOST_STEPS_AFTER

    def _end_if(self, enough: bool) -> None:
        if enough:
            self._missed = what_follows(self._ran)
            raise EnoughSteps
