"""Fits a training loop while it runs: the first pass is recorded, a plan is made before the next, the loop goes on.

Nothing is known of the loop but what it calls. The outermost call of a module in training begins a pass, the backward
ends it. The first pass is written to a tape (`recorded_pass`); where it would take more than the budget, predicted
on fake tensors, its blocks are recomputed one by one. Before the second pass, when what the first one held is gone, the
tape is the step that is profiled, planned and proven; then the plan is applied and the loop goes on. A pass with more
input than the plan was made for is recorded in the same way, and fitted before the one after it.

What its passes take is measured beside it (`pass_peaks`).
"""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.utils.weak import WeakIdKeyDictionary

from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.step_in_backward import NAME as STEP_IN_BACKWARD
from memfit.apply.step_in_backward import ProgramWatch
from memfit.errors import DoesNotFit, ProofFailed, UsageError
from memfit.fit.fitted import FittedModel
from memfit.fit.job_of_pass import job_of_pass, model_of
from memfit.fit.options import FitOptions
from memfit.fit.pass_kinds import MOST_KINDS, PassKind, PassKinds
from memfit.fit.pass_peaks import FIRST_MEASURED, PassPeaks
from memfit.fit.proof import base_bytes_of
from memfit.fit.recorded_pass import (
    PassRecorder,
    Tape,
    of_first_kind,
    of_repeated_calls,
    of_several_kinds,
    refuse_unplayable,
)
from memfit.fit.replaced_results import within_functional_call
from memfit.fit.tensors_alive import alive_bytes, bytes_around, optimizer_of, other_optimizers, waiting_bytes
from memfit.model.gradients_aside import keeping_gradients_of_others, lending_gradients
from memfit.model.out_of_memory import refusing_sparse_tensors
from memfit.model.refused_models import refuse_model
from memfit.model.step import Job, storage_bytes, tensors_of
from memfit.model.tensors_in_arguments import replaced, tensors_in, without_history
from memfit.profile.block_by_block import recompute_every_block
from memfit.records.fit import Fit, LoopFit
from memfit.units import format_bytes

MOST_FITS = 8
"""Longer and longer batches: after so many plans the last one stays, with a warning."""
FIRST_UNSEEN = 3
"""After so many backwards without a pass, that is said."""
SEVERAL_KINDS = "the program makes several kinds of passes, and gradients of one may add to those of another"
CUT_OFF = (
    "the backward goes on into what was computed before the pass began: that part was not tried with the plan, and "
    "shows in the passes that are measured"
)
SWAPPED_WEIGHTS = (
    "passes whose model gets its weights by functional_call run without a plan: a block that is run again would do so "
    "with the weights that the model has by then"
)

FitJob = Callable[[Job], FittedModel]
"""Makes a job fit into the budget: profile, plan, apply, prove."""
ApplyReady = Callable[[torch.nn.Module], AppliedPlan]
"""Applies a plan that is there already, instead of making one."""


class StopAfterFitting(BaseException):
    """Ends a program whose plan was all that was asked for."""


@dataclass(slots=True)
class LoopFitter:
    """Stands between a program and torch from `start` to `stop`."""

    options: FitOptions
    fit_job: FitJob
    say: Callable[[str], None]
    name: str = ""
    ready_plan: ApplyReady | None = None
    fits: list[Fit] = field(default_factory=list)
    to_write: Fit | None = None
    """What a file gets."""
    write: Callable[[Fit], None] | None = None
    """Writes it there; as soon as there is a plan, for the program may be ended by a signal."""
    notes: list[str] = field(default_factory=list)
    departures: dict[str, None] = field(default_factory=dict)
    """Sentences about passes that did not go as planned."""
    peaks: PassPeaks = field(init=False)
    failed: Exception | None = None
    """Why no plan holds; raised into the program, which may catch it, and again when it has ended."""
    _within_pass: bool = False
    _is_first_call: bool = False
    """Whether the call of a module is the one that begins the pass."""
    _kinds: PassKinds = field(default_factory=PassKinds)
    _kind: PassKind | None = None
    """Of the pass that goes on, or was the last."""
    _first_kind: PassKind | None = None
    _at_work: PassKind | None = None
    """The kind whose plan is applied: the pass's own, or one that begins with the same module."""
    _recorder: PassRecorder | None = None
    _stale: PassRecorder | None = None
    """Records no more, and is to leave torch's stack of modes."""
    _spare: AppliedPlan | None = None
    _returned: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    """Tensors with a history that calls of earlier passes returned."""
    _steps: ProgramWatch | None = None
    """Watches what the program does with its gradients, from the recorded backward to the pass after it."""
    _num_begun: int = 0
    """Passes, planned or not."""
    _num_calls: int = 0
    """Of models that are trained, in the pass that goes on."""
    _num_unseen: int = 0
    """Backwards that followed no pass."""
    _depth: int = 0
    _thread: int = 0
    _evaluates: bool = False
    """Whether a model that is not trained is being called between two passes."""
    _plain_call: Any = None
    _plain_backward: Any = None
    _began_seconds: float = 0.0
    _fitting_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.peaks = PassPeaks(self.options.require_budget(), self.options.measure_every, self.departures, self._tell)

    # ---- between the program and torch --------------------------------------------------------------------------

    def start(self) -> None:
        """From now on every call of a module and every backward comes by here."""
        self._thread, self._began_seconds = threading.get_ident(), time.monotonic()
        self._plain_call, self._plain_backward = torch.nn.Module.__call__, torch.autograd.backward
        fitter = self

        def call(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
            return fitter._called(module, args, kwargs)

        def backward(*args: object, **kwargs: object) -> None:
            return fitter._backward(args, kwargs)

        torch.nn.Module.__call__ = call
        torch.autograd.backward = backward

    def stop(self) -> LoopFit:
        """Leave the program as it was, and say what came of it."""
        self._give_torch_back()
        self._end_recording()
        self.peaks.end()
        self._unspare()
        self._end_watching_steps()
        self._put_plan_away()
        self._kinds, self._kind, self._first_kind, self._stale = (
            PassKinds(),
            None,
            None,
            None,
        )  # who keeps the fitter keeps no model, no batch
        measured = self.peaks.measured
        return LoopFit(
            name=self.name,
            budget_bytes=self.options.require_budget(),
            fits=tuple(self.fits),
            num_passes=measured.num_passes,
            num_measured=measured.num_measured,
            measured_peak_bytes=measured.highest_bytes,
            highest_pass=measured.highest_at,
            is_upper_bound=measured.highest_at is not None and not measured.is_exact,
            num_over_budget=measured.num_over,
            num_unsure=measured.num_unsure,
            first_peak_bytes=self.peaks.first_peak_bytes,
            num_between=self.peaks.num_between,
            between_peak_bytes=self.peaks.between_peak_bytes,
            fitting_seconds=self._fitting_seconds,
            seconds=time.monotonic() - self._began_seconds,
            notes=tuple(self.notes),
            departures=tuple(self.departures),
        )

    def _note_departures(self) -> None:
        """Remember what the plan has said of calls that were not as planned."""
        fitted = None if self._at_work is None else self._at_work.fitted
        applied = fitted.applied if isinstance(fitted, FittedModel) else fitted
        if applied is not None:
            self.departures.update(dict.fromkeys(applied.listeners.said.values()))

    def _give_torch_back(self) -> None:
        torch.nn.Module.__call__ = self._plain_call
        torch.autograd.backward = self._plain_backward

    def _called(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        is_trained = _trains(module)
        is_busy = self._depth or self._within_pass or self._evaluates
        if is_trained or is_busy or threading.get_ident() != self._thread:
            return self._run(module, is_trained, args, kwargs)
        if self._at_work is not None and self._recorder is None:
            self.peaks.measure_between(next((p.device for p in module.parameters()), None))
        self._evaluates = True  # calls within this one are a part of it; a trained model may begin a pass there
        try:
            return self._run(module, is_trained, args, kwargs)
        finally:
            self._evaluates = False

    def _run(
        self, module: torch.nn.Module, is_trained: bool, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if self._depth or threading.get_ident() != self._thread or not (is_trained or self._records(module)):
            return self._plain_call(module, *args, **kwargs)
        self._depth += 1
        try:
            if is_trained and not self._within_pass and self.failed is None:
                try:
                    with refusing_sparse_tensors():
                        self._begin_pass(module, args, kwargs)
                except Exception as error:
                    self.failed = error
                    self._give_torch_back()  # for who goes on all the same, and never comes to stop
                    raise
            self._num_calls += is_trained
            if self._recorder is not None:
                output = self._recorder.call_module(module, self._bound(module), args, kwargs, is_trained)
                if self._is_first_call and self._kind is not None:
                    self._kind.last_result.note()
            else:
                output = self._plain_call(module, *args, **kwargs)
            self._is_first_call = False
            self._remember(output, self._num_begun)
            return output
        finally:
            self._depth -= 1

    def _tapes(self) -> list[Tape]:
        return [kind.tape for kind in self._kinds if kind.tape is not None and kind is not self._kind]

    def _is_from_earlier_pass(self, tensor: torch.Tensor) -> bool:
        """Whether a call of an earlier pass returned this tensor, so that its history is not of this one."""
        number = self._returned.get(tensor)
        return number is not None and number < self._num_begun

    def _remember(self, output: object, number: int) -> None:
        """Note what was made in the pass of this number: a later one may go on from it."""
        for tensor in tensors_in(output):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:  # not what stands for one
                self._returned.setdefault(tensor, number)

    def _records(self, module: torch.nn.Module) -> bool:
        """Whether a module that is not trained has to be on the tape: a teacher, whose state must stay as it is."""
        recording = self._recorder is not None and self._recorder.is_open
        return recording and any(True for tensors in (module.parameters(), module.buffers()) for _ in tensors)

    def _bound(self, module: torch.nn.Module) -> Callable[..., object]:
        return lambda *args, **kwargs: self._plain_call(module, *args, **kwargs)

    def _backward(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if self._depth or threading.get_ident() != self._thread:
            return self._plain_backward(*args, **kwargs)
        tape = self._kind.tape if self._recorder is not None and self._kind is not None else None
        if not self._within_pass:
            self._say_unseen()
        if tape is not None:
            tape.close(_backward_of_torch, args, kwargs)
            if self._kind is not None and tape.goes_on_from is not None:
                self._kind.follows = self._kinds.whose_tape(tape.goes_on_from)
            self._end_recording()
        try:
            return self._plain_backward(*args, **kwargs)
        finally:
            if self._within_pass and self._kind is not None:
                self._compare_calls(self._kind, is_recorded=tape is not None)
            self._within_pass = False
            if tape is not None and STEP_IN_BACKWARD in self.options.allow:
                self._watch_steps(tape)

    def _compare_calls(self, kind: PassKind, *, is_recorded: bool) -> None:
        """A pass of more calls than the planned one (a longer episode) may take more: from here on all are measured."""
        if is_recorded:
            kind.num_calls = max(kind.num_calls, self._num_calls)
        elif 0 < kind.num_calls < self._num_calls and self._at_work is not None:
            calls = f"{kind.num_calls} time{'s' if kind.num_calls > 1 else ''}"
            what = (
                f"a pass called its models more often than the planned one ({calls}): let the longest pass come first"
            )
            if what not in self.departures:
                self.say(what)
            self.departures[what] = None

    def _say_unseen(self) -> None:
        """Say early that backwards follow no pass: a program that goes on so is refused only when it has ended."""
        self._num_unseen += 1
        if self._num_unseen == FIRST_UNSEEN and not len(self._kinds):
            self.say(
                f"{FIRST_UNSEEN} backwards, and none follows a call of a module in train(): no plan can be made for "
                "them. A call is model(x), not model.forward(x), in the thread that began"
            )

    # ---- passes --------------------------------------------------------------------------------------------------

    def _begin_pass(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self.peaks.end_between()
        self._within_pass, self._is_first_call = True, True
        self._num_begun += 1
        self._num_calls = 0
        self._remember((args, kwargs), self._num_begun - 1)  # what has a history now has it from before the pass
        self._end_recording()
        self._note_departures()
        if self._kind is not None and self._kind.tape is not None:
            self._kind.unsteppable = self._end_watching_steps()
        size = storage_bytes(t for t in tensors_of((args, kwargs)) if not isinstance(t, torch.nn.Parameter))
        has_own_weights = not within_functional_call()
        kind = self._kind = self._kinds.of(module, args, kwargs) if has_own_weights else None
        self.peaks.num_kinds = max(1, len(self._kinds))
        self._unspare()
        if not has_own_weights:
            self._put_plan_away()
            self._say_once(SWAPPED_WEIGHTS)
        elif kind is None or self.ready_plan is not None:
            self._begin_with_what_there_is(module, size)
        else:
            self._begin_of_kind(kind, module, args, kwargs, size)
        self.peaks.measure_pass(_device_of(module), None if self._recorder is not None else self._at_work)

    def _begin_of_kind(
        self, kind: PassKind, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], size: int
    ) -> None:
        """Fit, record, or go on with the plan of a kind of pass."""
        if kind.follows is not None and kind.follows.tape is None:
            self._put_to_work(kind.follows)
            return
        if kind.tape is not None:
            self.peaks.end()
            self._put_plan_away()
            self._fit(kind, tensors_of((args, kwargs)))
        elif kind.has_plan and size <= kind.planned_bytes and self._keeps_more(kind, module):
            kind.planned_bytes = -1  # recorded again below
        if kind.has_plan and size <= kind.planned_bytes:
            self._put_to_work(kind)
        elif kind.given_up:
            self._put_to_work(self._kinds.like(kind))
        else:
            self._record(kind, module, args, kwargs, size)

    def _begin_with_what_there_is(self, module: torch.nn.Module, size: int) -> None:
        """A pass under a plan that was made before the program began; or one of too many kinds, without a plan."""
        if self.ready_plan is None:
            self._put_plan_away()
            self._say_once(f"passes of more than {MOST_KINDS} kinds: those of further kinds run without a plan")
        elif self._at_work is None:
            refuse_model(module)
            kind = self._kind or PassKind(weakref.ref(module), takes_gradients=False)
            kind.fitted, kind.planned_bytes = self.ready_plan(module), size
            self._at_work = kind

    def _put_to_work(self, kind: PassKind | None) -> None:
        """Let the plan of this kind be the one that is applied."""
        if kind is self._at_work and kind is not None and kind.fitted is not None:
            return
        self._put_plan_away()
        if kind is not None:
            kind.apply(self.options.disk)
            self._at_work = kind

    def _put_plan_away(self) -> None:
        self._note_departures()
        if self._at_work is not None:
            self._at_work.put_away()
            self._at_work = None

    def _tell(self, what: str) -> None:
        """In the words that are set when it is said."""
        self.say(what)

    def _say_once(self, what: str) -> None:
        if what not in self.notes:
            self.notes.append(what)
            self.say(what)

    def _keeps_more(self, kind: PassKind, module: torch.nn.Module) -> bool:
        """Whether the program keeps so much more than when the plan was made that the pass would go over the budget."""
        is_looked_at = kind.num_passes < FIRST_MEASURED * max(1, len(self._kinds)) or self.peaks.is_measuring
        if kind.highest_beside_bytes is None or kind.keeps_plan or not is_looked_at:
            return False
        before_bytes = alive_bytes(_device_of(module))
        budget_bytes = self.options.require_budget()
        expected_bytes = before_bytes + kind.highest_beside_bytes
        if expected_bytes <= budget_bytes or kind.num_fits >= MOST_FITS:
            return False
        self.say(
            f"the program keeps more than when the plan was made: {format_bytes(before_bytes)} are there before a pass "
            f"that takes {format_bytes(kind.highest_beside_bytes)} beside them"
        )
        return True

    def _record(
        self, kind: PassKind, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], size: int
    ) -> None:
        """Write the pass that begins to a tape, recomputing its blocks where it would be too large."""
        if kind.num_fits >= MOST_FITS:
            warnings.warn(
                f"memfit: batches grew {MOST_FITS} times; a pass with {format_bytes(size)} of input runs under the "
                f"plan for {format_bytes(kind.planned_bytes)} and may take more than the budget: let the largest "
                "batch come first",
                RuntimeWarning,
                stacklevel=2,
            )
            kind.planned_bytes = size
            self._put_to_work(kind)
            return
        refuse_model(module)
        if kind.has_plan and size > kind.planned_bytes >= 0:
            self.say(f"a pass has {format_bytes(size)} of input, the plan was for {format_bytes(kind.planned_bytes)}")
        kind.recorded_bytes = size
        self.peaks.end()  # predicting records events of its own
        self._put_plan_away()
        self._spare = self._first_pass_plan(module, args, kwargs)
        gc.collect()
        kind.waiting_bytes = waiting_bytes(_device_of(module)) if len(self._kinds) > 1 else 0
        kind.tape = Tape(self._is_from_earlier_pass, self._tapes)
        self._recorder = PassRecorder(kind.tape)
        self._recorder.begin()

    def _first_pass_plan(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> AppliedPlan | None:
        args, kwargs = replaced((args, kwargs), without_history)  # its graph is the program's, and is run once
        stand_in = Job(model=module, run=lambda: _run_to_a_sum(module, args, kwargs), batch=(args, kwargs))
        stand_in.optimizer = optimizer_of([module])
        stand_in.limit_bytes = self.options.require_budget()
        stand_in.around_bytes = bytes_around(stand_in)
        applied, what = recompute_every_block(stand_in)
        if what:
            self.say(what)
            self.notes.append(what)
        return applied

    def _unspare(self) -> None:
        if self._spare is not None:
            self._spare.undo()
            self._spare = None

    def _end_recording(self) -> None:
        if self._recorder is not None:
            self._stale, self._recorder = self._recorder, None
        if self._stale is not None:
            self._stale.end()
            if not self._stale.is_on_stack:
                self._stale = None  # with its tape, which holds a batch

    def _fit(self, kind: PassKind, given: list[torch.Tensor]) -> None:
        """Plan and prove with the pass that was recorded, and apply; the one that begins is given these tensors."""
        own_tape, tape, kind.tape = kind.tape, self._kinds.tape_to_fit(kind), None
        for follower in self._kinds.followers_of(kind):
            follower.tape = None
        assert tape is not None
        if tape.fault and self.fits:
            self._give_up(kind, tape.fault)
            return
        refuse_unplayable(tape)
        began = time.monotonic()
        self.say(f"fitting into {format_bytes(self.options.require_budget())}: measuring the step, planning, proving")
        job = self._job(kind, tape, given if tape is own_tape else None)
        del own_tape
        try:
            with lending_gradients(job), keeping_gradients_of_others(job.model):
                fitted = self.fit_job(job)
        except DoesNotFit as refusal:
            if not kind.has_plan or kind.planned_bytes >= 0:
                raise self._of_all_kinds(of_repeated_calls(refusal, tape), job) from None
            kind.keeps_plan, kind.planned_bytes = True, kind.recorded_bytes
            self.say(f"{refusal.what} beside what the program keeps now: the plan stays as it is")
            return
        except (UsageError, ProofFailed) as error:
            if not self.fits:
                raise
            self._give_up(kind, f"{error.what}: {error.found}" if error.found else error.what)
            return
        kind.forget_plan()
        kind.take(fitted, tape.modules)
        kind.highest_beside_bytes = _highest_beside(job, fitted.fit)
        self._at_work, is_cut_off = kind, tape.is_cut_off
        del tape, job
        gc.collect()  # what fitting left in rings would count as the program's
        self._fitting_seconds += time.monotonic() - began
        kind.planned_bytes = kind.recorded_bytes
        self.fits.append(fitted.fit)
        self._note_for_file(kind, fitted.fit)
        self.say(_said_of(fitted.fit))
        if is_cut_off:
            self._say_once(CUT_OFF)
        if self.options.only_plan:
            raise StopAfterFitting

    def _note_for_file(self, kind: PassKind, fit: Fit) -> None:
        """A file holds one plan: the last one of the kind of pass that came first."""
        is_first = self._first_kind is None or self._first_kind is kind
        if is_first:
            self._first_kind, self.to_write = kind, fit
            if self.write is not None:
                self.write(fit)
        elif self.options.plan_file is not None:
            begins = type(kind.begins()).__name__
            self._say_once(f"the file gets the plan of the first kind of pass, none for those that begin with {begins}")

    def _give_up(self, kind: PassKind, why: str) -> None:
        """Go on without a plan for one kind of pass, where there is one for another."""
        kind.given_up = why
        kind.forget_plan()
        begins = type(kind.begins()).__name__
        self._say_once(f"passes that begin with {begins} get no plan of their own, and may take more ({why})")

    def _job(self, kind: PassKind, tape: Tape, given: list[torch.Tensor] | None = None) -> Job:
        """The step of a tape; with what is `given` to the pass that begins, where the tape is of one like it."""
        keeps_apart = bool(self._kinds.followers_of(kind))
        if given is None:
            job = job_of_pass(tape, self.name, keeps_apart=keeps_apart)
        else:
            job = job_of_pass(tape, self.name, keeps_apart=keeps_apart, last_result=kind.last_result, given=given)
        job.unsteppable = SEVERAL_KINDS if len(self._kinds) > 1 else kind.unsteppable
        job.limit_bytes = self.options.require_budget()
        return job

    def _of_all_kinds(self, refusal: DoesNotFit, job: Job) -> DoesNotFit:
        """A refusal that names what is enough for every kind of pass that was seen, as far as each can be tried."""
        alone = [each for each in self._kinds if each.follows is None and each is not self._kind]
        others = [kind for kind in alone if kind.tape is not None or kind.has_plan]
        refusals = [refusal]
        for kind in others:
            tape = self._kinds.tape_to_fit(kind)
            if tape is not None and not tape.fault:
                another_job = self._job(kind, tape)
                another_job.around_bytes += max(0, kind.waiting_bytes - waiting_bytes(another_job.device))
                try:
                    with lending_gradients(another_job), keeping_gradients_of_others(another_job.model):
                        self.fit_job(another_job).undo()
                except DoesNotFit as another:
                    refusals.append(another)
        if others:
            return of_several_kinds(refusals, 1 + len(others))
        is_alone = not other_optimizers(job.optimizer)
        return refusal if is_alone else of_first_kind(refusal)

    def _watch_steps(self, tape: Tape) -> None:
        """From here to the next pass, note whether the step could have been taken in the backward."""
        model = model_of(tape.modules)
        optimizer = optimizer_of([model])
        if optimizer is not None and self._steps is None:
            self._steps = ProgramWatch(optimizer, model)
            self._steps.start()

    def _end_watching_steps(self) -> str:
        """Why the step must not be taken in the backward; empty when it may, or was not asked for."""
        watch, self._steps = self._steps, None
        if watch is not None:
            return watch.stop()
        return "the program has no optimizer for the model that could be watched"


def _backward_of_torch(*args: object, **kwargs: object) -> object:
    """Through the attribute, so that watchers of backwards see it."""
    return cast("Callable[..., object]", torch.autograd.backward)(*args, **kwargs)


def _trains(module: torch.nn.Module) -> bool:
    return torch.is_grad_enabled() and module.training and any(p.requires_grad for p in module.parameters())


def _said_of(fit: Fit) -> str:
    proof = fit.proof
    measured = "" if proof is None or proof.measured_peak_bytes is None else format_bytes(proof.measured_peak_bytes)
    slower = f"{100 * (fit.plan.slowdown - 1):.0f} % slower promised"
    levers = "".join(f" with {lever.name}" for lever in fit.plan.applied_levers)
    return f"plan {fit.plan.solver}{levers}: {measured} measured in the proof, {slower}"


def _run_to_a_sum(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """A forward, and a backward from everything it returned."""
    ends = [t for t in tensors_in(module(*args, **kwargs)) if t.requires_grad and t.is_floating_point()]
    torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])


def _device_of(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device


def _highest_beside(job: Job, fit: Fit) -> int | None:
    """What the planned step takes above all that is there when it begins; None where that is not to be compared."""
    proof, plan = fit.proof, fit.plan
    if proof is None or proof.measured_peak_bytes is None or plan.applied_levers or plan.moves:
        return None
    before_bytes = base_bytes_of(job, plan.chain.fixed.optimizer_state_bytes) + job.released_bytes
    return proof.measured_peak_bytes - before_bytes
