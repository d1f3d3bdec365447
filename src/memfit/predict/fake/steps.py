"""End of a predicted script: its steps, counted by optimizers or by backwards, and what follows them.

With an optimizer, a step is its update; in a script that never builds one, or updates without it, a backward. When the
steps are made the run goes on for a while, because an evaluation with the optimizer's state alive may hold more than a
step: until such an evaluation was seen, the script ends, or the time for it is over; on the way, repeated steps are
passed over. Data loaders end early there and in evaluations, once the shapes of their batches repeat and no batch
leaves anything behind; that is listed. What was not seen is listed too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import dataloader

from memfit.predict.child.messages import UNSEEN
from memfit.predict.child.run_script import EnoughSteps
from memfit.predict.fake.recording import Recording
from memfit.predict.fake.repeated_calls import RepeatedCalls
from memfit.predict.fake.skipped_steps import PassedSteps
from memfit.predict.fake.step_peaks import StepPeaks
from memfit.predict.fake.unseen_samples import UnseenSamples
from memfit.predict.levels.guesses import OF_SEEN
from memfit.predict.observe.known_values import assume
from memfit.predict.observe.later.chosen_by_results import ChosenByResults
from memfit.predict.observe.later.what_follows import Later, left_in_loop, what_follows
from memfit.predict.observe.phase_and_module import (
    is_called_by_library,
    is_called_by_study,
    speaks_of_evaluation,
    tensors_anywhere,
)
from memfit.predict.observe.repeating_batches import (
    LARGER_MAY_FOLLOW,
    NEGLIGIBLE,
    counts_batches,
    go_to_smaller_last,
    grows,
    larger_may_follow,
    num_batches,
    repeats,
)
from memfit.predict.observe.storage_tracker import tensors_in
from memfit.predict.observe.updates_elsewhere import UpdatesElsewhere
from memfit.units import format_bytes

OTHERS_MAY_LAG = 8
"""When one of several optimizers has made this many times the steps asked for, the others are not waited for."""
LEAST_AFTER_SECONDS, MOST_AFTER_SECONDS, AFTER_SHARE = 0.5, 20.0, 0.5
LEAST_TO_EVALUATION_SECONDS, TO_EVALUATION_SHARE = 5.0, 1.0
"""How long a run goes on where the job's own files say that it evaluates."""
KNOWN_TO_FOLLOW = 2.0
"""How many times as long it goes on where the source names what is to come."""
MOST_KEEPING_SECONDS = 60.0
"""How long an evaluation is followed that keeps something of each batch."""
LATER_STEPS = 1000
"""What every step leaves behind counts as much as this many steps leave (a list of losses, in a small job)."""
LATER_ROUNDS = 100
"""The same of rounds over the data: samples that each epoch keeps."""
SAME_GROWTH = 0.1
"""By how much the growth of two steps may differ and still be the same."""
MOST_GROUPS = 6
"""Groups of steps that are compared with each other for what the steps keep."""
PASS_AFTER_SECONDS = 1.0
"""How long steps are followed after those that were asked for, before their repetitions are passed over."""
TO_THE_END_SECONDS = 1.0
"""How long a run goes on in any case, for what a script does in later rounds without saying so in its source."""
DIFFERING_SECONDS = 12.0
"""The same where steps hold different amounts, and the highest came once."""
RARER = 3
"""Where an evaluation comes after so many steps, others may come after this many times as many."""
EVALUATIONS = 4
"""Calls of a model without gradients after the steps that are enough when their shapes repeat."""
BATCHES_ALIKE = 3
IN_AN_EVALUATION = (
    "the run was ended in an evaluation that a library makes: others behind it, if there are any, were not reached in "
    "time and are not in the figures"
)
HIGHER_EVALUATION = (
    "later steps hold more than those before the last evaluation that was seen: one after them was not reached in time"
)
EVALUATION_DIFFERS = "an evaluation was cut whose batches differ in their shapes: larger ones may follow"
LONGER_MAY_FOLLOW = (
    "texts of different lengths are packed, and only the first batches of an epoch were seen: others may hold more"
)
SETTLED_STEPS = 2
"""Steps of an optimizer after which the next ones repeat them: the second begins with its state."""
LEAST_ACCUMULATED = 16
"""Backwards before the first step of a later training that are waited for; an attack on a model makes some too."""
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
        self._began = _seconds_now()
        self._until: float | None = None
        self._evaluated: list[tuple[Any, int]] = []
        """Shapes of the inputs, and live bytes, of each call of a model without gradients after the steps."""
        self._evaluated_before: set[Any] = set()
        """Shapes of such inputs before the steps were made: all kinds of evaluation that a first round shows."""
        self._modules_before = set(sys.modules)
        self._script = script
        self._in_library = False
        """Whether the loop stands in a library's file."""
        self._in_study = self._is_shortened = self._is_ended_early = False
        self._later: Later | None = None
        """What the job would still do when its steps were made."""
        self._signs = (0, 0)
        """How many evaluations, and about how many steps, there were when that was asked last."""
        self._missed: Later | None = None
        """The same when the run was ended."""
        self.num_backwards = self.num_steps_made = 0
        self.is_done = False
        self._passed = PassedSteps(recording.tracker, recording.shadow.note)
        self._passed.on_step, self._passed.is_late = self._step_was_passed, self._is_late
        self._elsewhere = UpdatesElsewhere(recording.optimizers)
        self._made_at = 0.0
        self._stepped: list[int] = []
        """Numbers of the optimizers that made a step after those that were asked for, in order."""
        self.num_backwards_so_far = self._backwards_at_step = self._most_accumulated = 0
        self._live_at_steps: list[int] = []
        self._chosen, self._unseen = ChosenByResults(), UnseenSamples(recording.tracker)
        self._most_at_steps = self._most_at_evaluation = 0
        """The most live bytes of a step's end so far, and the same when an evaluation came last."""
        self._live_at_rounds: dict[str, list[int]] = {}
        """Live bytes when a loader of a training begins, by the line that asks for its batches."""
        self._peaks, self._left = StepPeaks(), set[Later]()
        """And what loops over loaders that were ended early did not do yet."""
        self._evaluates_in_step, self._live_before_step = False, 0
        self._num_after = self._num_to_evaluation = 0
        """Steps after those that were asked for, and how many of them stood before the first evaluation."""

    def is_passing(self) -> bool:
        """Whether the steps that were asked for are made, and repetitions of them are passed over."""
        return self._passed.is_passing

    @property
    def by_backwards(self) -> bool:
        """Whether backwards are counted, because there is no optimizer or none that makes a step."""
        if self._recording.num_updates:
            return False
        return self._elsewhere.are_likely or not self._recording.living_optimizers()

    @property
    def num_steps_by_backwards(self) -> int:
        """Steps of a script in which no optimizer made one; 0 in others."""
        if self._recording.num_updates:
            return 0
        return self.num_backwards or self._elsewhere.num_backwards

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within, optimizers, backwards and batches are noticed."""
        recording, counter = self._recording, self
        recording.on_update, recording.on_root = self.stepped, self.called
        repeated = RepeatedCalls(recording.tracker, recording.shadow.note)

        def run_root(module: torch.nn.Module, inputs: object, call: Callable[[], object]) -> object:
            repeated.enter()
            if torch.is_grad_enabled():
                return self._passed.run(module, inputs, call)
            self._passed.hold_graphs()
            return repeated.run(module, inputs, call)

        recording.places.run_root, recording.places.run_within = run_root, repeated.run_within
        make: Callable[..., None] = torch.optim.Optimizer.__init__
        following = dataloader._BaseDataLoaderIter.__next__
        noting = recording.places.noting

        def made(self: torch.optim.Optimizer, *args: object, **kwargs: object) -> None:
            make(self, *args, **kwargs)
            recording.number_of(self)
            recording.recorded_models.training_begins()
            parameters = (parameter for group in self.param_groups for parameter in group["params"])
            counter._chosen.made(sum(parameter.nbytes for parameter in parameters), sys._getframe(1))

        def next_batch(self: dataloader._BaseDataLoaderIter) -> object:
            counter.end_early(self, counts_batches(sys._getframe(1)))
            try:
                batch = following(self)
            except StopIteration:
                counter._unseen.reached_the_end(self)
                raise
            tensors = list(tensors_anywhere(batch))
            for tensor in tensors:
                if not (tensor.is_floating_point() or tensor.is_complex()):
                    assume(tensor, OF_SEEN)
            shapes = [tuple(tensor.shape) for tensor in tensors]
            self.__dict__.setdefault("_memfit_shapes", []).append(shapes)
            return batch

        with (
            patch.object(torch.optim.Optimizer, "__init__", made),
            patch.object(dataloader._BaseDataLoaderIter, "__next__", next_batch),
            self._passed.standing_in(),
            self._elsewhere.listening(),
            patch.object(torch.nn.Module, "named_parameters", noting(torch.nn.Module.named_parameters)),
            patch.object(torch.optim.Optimizer, "add_param_group", noting(torch.optim.Optimizer.add_param_group)),
            patch.object(torch.autograd, "backward", self._counting(torch.autograd.backward)),
            patch.object(torch.autograd, "grad", self._counting(torch.autograd.grad)),
        ):
            yield

    def _counting(self, original: Callable[..., object]) -> Callable[..., object]:
        torch_grad = torch.autograd.grad

        def backward(*args: object, **kwargs: object) -> object:
            self._passed.is_possible &= original is not torch_grad and not kwargs.get("create_graph")
            self.num_backwards_so_far += 1
            self.goes_backward()
            result = original(*args, **kwargs)
            self._passed.note_backward()
            return result

        return backward

    # ---- what happens ----------------------------------------------------------------------------------------------

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer made a step."""
        self._in_library |= is_called_by_library()
        self._in_study = self._in_study or is_called_by_study()
        counts = self._recording.num_updates
        most = max(counts.values())
        self._recording.places.step = most + 1
        self._passed.note_update(optimizer)
        number = self._recording.number_of(optimizer)
        self._most_accumulated = max(self._most_accumulated, self.num_backwards_so_far - self._backwards_at_step)
        self._backwards_at_step = self.num_backwards_so_far
        if number == self._leader:
            self._note_peak()
        if self._until is not None:
            if number == self._leader and not self._passed.is_passing:
                self._live_at_steps.append(self._recording.tracker.log.live_bytes)
            self._goes_on(optimizer)
            return
        all_there = all(counts.get(key, 0) >= self._num_steps for key in self._recording.living_optimizers())
        if all_there or most >= self._num_steps * OTHERS_MAY_LAG or self._is_late():
            self._steps_are_made()
        elif self._leader is None or number == self._leader or self._leader not in self._recording.living_optimizers():
            self._leader = number
            self._recording.tracker.work.reset()
        if number == self._leader:
            self._live_at_steps.append(self._recording.tracker.log.live_bytes)

    def goes_backward(self) -> None:
        """A backward begins; in a script without an optimizer this is where a step ends."""
        if self._recording.num_updates or torch._C._current_graph_task_id() != -1:
            return
        self._elsewhere.goes_backward()
        if not self.by_backwards:
            return
        for module in self._recording.places.living_roots():
            self._passed.note_trained(module, module.parameters())
        if self._until is not None:
            self._goes_on()
        elif self.num_backwards >= self._num_steps or (self.num_backwards and self._is_late()):
            self._steps_are_made()
        else:
            self.num_backwards += 1
            self._recording.places.step = self.num_backwards
            self._recording.tracker.work.reset()

    def _step_was_passed(self, optimizer: torch.optim.Optimizer) -> None:
        if self._recording.number_of(optimizer) == self._leader:
            self._note_peak()
        self._goes_on(optimizer)

    def _goes_on(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """A step after those that were asked for: is there anything to wait for?"""
        now = _seconds_now()
        if optimizer is not None:
            self._stepped.append(self._recording.number_of(optimizer))
            if self._is_new(optimizer):
                return
        self._num_after += optimizer is None or self._leader in (None, self._recording.number_of(optimizer))
        self._most_at_steps = max(self._most_at_steps, self._recording.tracker.log.live_bytes)
        self._look_again()
        if self._evaluated and not self._holds_more():
            is_seen = {str(shapes) for shapes, _ in self._evaluated} <= self._evaluated_before
            self._end_if(is_seen and not self._later and self._went_on())
            self._num_to_evaluation = self._num_to_evaluation or max(1, self._num_after)
            is_rare = self._num_after > RARER * self._num_to_evaluation
            self._end_if(is_rare and not self._later and self._went_on())
        self._passed.is_passing |= bool(self._evaluated)
        self._end_if(self._until is not None and now > self._until and not self._may_find_higher(now))
        self._passed.is_passing |= now > self._made_at + PASS_AFTER_SECONDS

    def _may_find_higher(self, now: float) -> bool:
        """Whether steps differ so that it is worth to follow more of them."""
        has_time = now < self._made_at + DIFFERING_SECONDS and not self._is_late()
        return has_time and bool(self._peaks.text(self._recording.tracker.log.highest_bytes))

    def _went_on(self) -> bool:
        """Whether the run went on for as long as any does."""
        return self._is_late() or _seconds_now() > self._made_at + TO_THE_END_SECONDS

    def _note_peak(self) -> None:
        """The step of the optimizer that is followed is made: how high it went, where it was run."""
        log, passed = self._recording.tracker.log, self._passed
        is_run = not passed.was_passed and not self._evaluates_in_step
        rise_bytes = log.recent_bytes - max(log.live_bytes, self._live_before_step)
        self._peaks.note(passed.calls_of_step, rise_bytes if is_run else None)
        log.recent_bytes = self._live_before_step = log.live_bytes
        passed.calls_of_step, passed.was_passed, self._evaluates_in_step = [], False, False

    def _holds_more(self) -> bool:
        """Whether steps hold more than when an evaluation came last: the next one will begin with more."""
        return self._most_at_steps - self._most_at_evaluation > NEGLIGIBLE * self._recording.tracker.log.highest_bytes

    def _is_new(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer has made fewer steps than were asked for: another training has begun."""
        made = self._recording.num_updates.get(self._recording.number_of(optimizer), 0)
        return made < self._num_steps and not self._is_late()

    def _look_again(self) -> None:
        """Ask once more what is still to come, after an evaluation and more and more seldom."""
        signs = len(self._evaluated), self._num_after.bit_length()
        if self._later is not None and signs != self._signs:
            self._later, self._signs = what_follows(self._recording.places.ran), signs

    def called(self, inputs: object) -> None:
        """An outermost module is called."""
        if torch.is_grad_enabled():
            if self._until is not None and _seconds_now() > self._until + MOST_AFTER_SECONDS:
                self._recording.shadow.note(UNSEEN, "what follows the steps takes long and was not followed to its end")
                self._end_if(True)
            return
        self._evaluates_in_step = True
        if self._until is None:
            self._evaluated_before.add(str([tuple(tensor.shape) for tensor in tensors_in(inputs)]))
            return
        shapes = [tuple(tensor.shape) for tensor in tensors_in(inputs)]
        self._most_at_evaluation = self._most_at_steps
        self._evaluated.append((shapes, self._recording.tracker.live_bytes()))
        alike = repeats([shape for shape, _ in self._evaluated], EVALUATIONS)
        still_grows = alike and grows([live for _, live in self._evaluated], 1)
        if alike and not still_grows and _seconds_now() > self._until:
            if self._in_library:
                self._recording.shadow.answered[UNSEEN, IN_AN_EVALUATION, ""] += 1
            self._end_if(True)
        if _seconds_now() > self._until + MOST_KEEPING_SECONDS:
            self._note_cut([live for _, live in self._evaluated], None)
            self._end_if(True)

    def end_early(self, batches: object, is_counted: bool) -> None:
        """Whether a loader has given enough: StopIteration in an evaluation or after the steps.

        A training that counts its batches (`is_counted`) goes on to the last one.
        """
        shown = batches.__dict__.get("_memfit_shapes", [])
        batches.__dict__.setdefault("_memfit_first_step", len(self._stepped) if not shown else 0)
        if not shown and torch.is_grad_enabled():
            line = self._recording.places.line()
            self._live_at_rounds.setdefault(line, []).append(self._recording.tracker.log.live_bytes)
        is_trained = self._trains(batches, shown)
        if is_trained:
            enough = self._until is not None and bool(shown) and not is_counted and self._is_settled(batches, shown)
        else:
            enough = self._has_shown_enough(batches, shown)
        if not enough or (shown and self._unseen.has_to_go_on(batches, shown)):
            return
        if is_trained and self._counts_to_something(batches, shown):
            return
        self._is_shortened |= is_trained
        self._is_ended_early = True
        if torch.is_grad_enabled() and larger_may_follow(batches, shown):
            self._recording.shadow.note(UNSEEN, LARGER_MAY_FOLLOW)
        elif self._recording.shadow.packs_unevenly and len(shown) < num_batches(batches):
            self._recording.shadow.note(UNSEEN, LONGER_MAY_FOLLOW)
        else:
            self._recording.shadow.note("script", "a data loader was ended early: its batches repeat")
        if not go_to_smaller_last(batches, shown[-1]):
            raise StopIteration

    def _counts_to_something(self, batches: object, shown: list[object]) -> bool:
        """Whether a loop over batches has lines that did not run yet and matter, and there is time to go on to them.

        A count of steps, which a loader that is ended early keeps low, may lead there.
        """
        asked = batches.__dict__
        if len(shown).bit_count() == 1 or "_memfit_left" not in asked:
            asked["_memfit_left"] = left_in_loop(self._recording.places.ran)
        left: Later | None = asked["_memfit_left"]
        if left is None:
            return False
        if self._until is not None and _seconds_now() < self._until:
            return True
        self._left.add(left)
        return False

    def _trains(self, batches: object, shown: list[object]) -> bool:
        """Whether a loader feeds steps: gradients are on, and steps were made since its first batch.

        After the steps that were asked for, a loader that no step follows feeds an evaluation which does not turn
        gradients off; one that backwards follow may still collect gradients for a step.
        """
        if not torch.is_grad_enabled():
            return False
        num_made = self._num_after + sum(self._recording.num_updates.values())
        is_new = self._until is not None and not shown
        num_before, backwards_before = batches.__dict__.setdefault(
            "_memfit_steps", (num_made, self.num_backwards_so_far) if is_new else (-1, 0)
        )
        collects = self.num_backwards_so_far > backwards_before
        return num_made != num_before or (collects and len(shown) < max(LEAST_ACCUMULATED, 2 * self._most_accumulated))

    def _is_settled(self, batches: object, shown: list[object]) -> bool:
        """Whether more steps of the training that a loader feeds would repeat those it made: its state is there.

        A later training begins with a model of its own. Without an optimizer of torch, its state is what stays alive
        between two batches.
        """
        if self._is_late():
            return True
        if self.by_backwards:
            live = batches.__dict__.setdefault("_memfit_live_at_batches", [])
            live.append(self._recording.tracker.log.live_bytes)
            has_grown = len(live) < 2 or live[-1] - live[-2] > NEGLIGIBLE * self._recording.tracker.log.highest_bytes
            return not has_grown or len(shown) > self._num_steps
        first = batches.__dict__["_memfit_first_step"]
        numbers, counts = set(self._stepped[first:]), self._recording.num_updates
        least = min(SETTLED_STEPS, self._num_steps)
        return bool(numbers) and all(counts.get(number, 0) >= least for number in numbers)

    def _has_shown_enough(self, batches: object, shown: list[object]) -> bool:
        """Whether the batches of an evaluation repeat and leave nothing behind, or it has taken too long."""
        live = batches.__dict__.setdefault("_memfit_live", [])
        live.append(self._recording.tracker.live_bytes())
        began = batches.__dict__.setdefault("_memfit_began", time.perf_counter())
        is_long = time.perf_counter() - began > MOST_KEEPING_SECONDS
        if not repeats(shown, BATCHES_ALIKE):
            if is_long:
                self._recording.shadow.note(UNSEEN, EVALUATION_DIFFERS)
            return is_long
        left = num_batches(batches) - len(shown)
        if not grows(live, left):
            return True
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
        self.num_steps_made = max(self._recording.num_updates.values(), default=0)
        self._recording.keep_work()
        now = self._made_at = _seconds_now()
        self._later = what_follows(self._recording.places.ran)
        least, share = LEAST_AFTER_SECONDS, AFTER_SHARE
        if self._evaluates():
            least, share = LEAST_TO_EVALUATION_SECONDS, TO_EVALUATION_SHARE
            least *= 1 if self._later is None else KNOWN_TO_FOLLOW
        share = min(max(share * (now - self._began), least, TO_THE_END_SECONDS), MOST_AFTER_SECONDS)
        self._until = now + (0.0 if self._is_late() else share)

    def note_unseen(self, was_ended: bool) -> None:
        """List what the run did not reach: an evaluation that the job's files speak of, or what later steps keep."""
        self._passed.note_unseen()
        is_cut = was_ended or self._passed.is_passing or self._is_shortened
        if not (is_cut or self._is_ended_early):
            self._recording.shadow.forget_assumed(OF_SEEN)
        kept = _kept_by_steps(self._live_at_steps) if is_cut else 0
        if kept * LATER_STEPS > NEGLIGIBLE * self._recording.tracker.log.highest_bytes:
            text = f"every step leaves {format_bytes(kept)} behind that are never freed: later steps hold more by that"
            self._recording.shadow.answered[UNSEEN, text, ""] += 1
        highest_bytes = self._recording.tracker.log.highest_bytes
        if text := self._recording.recorded_models.text(NEGLIGIBLE * highest_bytes):
            self._recording.shadow.answered[UNSEEN, text, ""] += 1
        if is_cut and (text := self._peaks.text(self._recording.tracker.log.highest_bytes)):
            self._recording.shadow.answered[UNSEEN, text, ""] += 1
        for later in self._left:
            if not self._recording.places.ran.has_any(later.place[0], [later.place[1]]):
                self._recording.shadow.answered[UNSEEN, later.text, later.line] += 1
        for text in self._unseen.missed():
            self._recording.shadow.answered[UNSEEN, text, ""] += 1
        if self._chosen.text:
            self._recording.shadow.answered[UNSEEN, self._chosen.text, self._chosen.line] += 1
        if was_ended and self._evaluated and self._holds_more():
            self._recording.shadow.answered[UNSEEN, HIGHER_EVALUATION, ""] += 1
        for live in self._live_at_rounds.values() if was_ended else ():
            kept = _kept_by_steps(live[-3:])
            if kept * LATER_ROUNDS > NEGLIGIBLE * self._recording.tracker.log.highest_bytes:
                text = f"every round over the data leaves {format_bytes(kept)} behind: later rounds hold more by that"
                self._recording.shadow.answered[UNSEEN, text, ""] += 1
        if was_ended and self._in_study:
            text = "the script is a study of many trials: later ones, which may draw other sizes, were not followed"
            self._recording.shadow.answered[UNSEEN, text, ""] += 1
        if was_ended and self._missed is not None:
            self._recording.shadow.answered[UNSEEN, self._missed.text, self._missed.line] += 1
        elif was_ended and self._until is not None and not self._evaluated and self._speaks_of_evaluation():
            text = "an evaluation after the steps, if there is one, was not reached in time: it is not in the figures"
            self._recording.shadow.answered[UNSEEN, text, ""] += 1

    def _evaluates(self) -> bool:
        """Whether there is something to wait for."""
        return self._later is not None or self._speaks_of_evaluation()

    def _speaks_of_evaluation(self) -> bool:
        """Whether the job's own files speak of an evaluation, or its loop is a library's, which may evaluate."""
        return self._in_library or speaks_of_evaluation(self._script, self._modules_before)

    def _is_late(self) -> bool:
        return time.perf_counter() - self._started > self._patience_seconds

    def _end_if(self, enough: bool) -> None:
        if enough:
            self._missed = what_follows(self._recording.places.ran)
            raise EnoughSteps


def _seconds_now() -> float:
    """Of this process on a processor: how far a run is followed does not depend on what else the machine does."""
    return time.process_time()


def _kept_by_steps(live: list[int]) -> int:
    """By how much live bytes grow from step to step; 0 where the last three do not show the same growth.

    Batches of different sizes lie over that growth: of many steps the lowest of each of a few groups are compared. All
    have to rise: of six that are drawn at random, this is so once in 720.
    """
    if len(live) < 3:
        return 0
    earlier, later = live[-2] - live[-3], live[-1] - live[-2]
    if later > 0 and abs(earlier - later) <= SAME_GROWTH * later:
        return later
    num_groups = min(MOST_GROUPS, max(3, (len(live) - 1) // 2))
    size = (len(live) - 1) // (2 * num_groups) * 2  # an even number: a last, smaller batch stands in each
    if not size:
        return 0
    lowest = [min(live[len(live) - size * k : len(live) - size * (k - 1)]) for k in range(num_groups, 0, -1)]
    growths = [later - earlier for earlier, later in pairwise(lowest)]
    mean = (lowest[-1] - lowest[0]) / len(growths)
    grows_on = all(0 < growth <= 2 * mean for growth in growths)
    return int(mean) // size if grows_on else 0
