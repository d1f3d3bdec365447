"""Fits a training loop while it runs: the first pass is recorded, a plan is made before the next, the loop goes on.

Nothing is known of the loop but what it calls. The outermost call of a module in training begins a pass, the backward
ends it. The first pass is written to a tape (`recorded_pass`); where it would take more than the budget, predicted
on fake tensors, its blocks are recomputed one by one. Before the second pass, when what the first one held is gone, the
tape is the step that is profiled, planned and proven; then the plan is applied and the loop goes on. A pass with more
input than the plan was made for is recorded in the same way, and fitted before the one after it.

Measured is what all tensors take, those of the program beside the model included: on CUDA in every pass, by the
allocator's own peak; elsewhere in some passes, by its events.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.step_in_backward import NAME as STEP_IN_BACKWARD
from memfit.apply.step_in_backward import ProgramWatch
from memfit.errors import DoesNotFit
from memfit.fit.fitted import FittedModel
from memfit.fit.options import FitOptions
from memfit.fit.recorded_pass import PassRecorder, Tape, of_first_kind, refuse_unplayable
from memfit.model.gradients_aside import lending_gradients
from memfit.model.memo_by_class import memo_by_class
from memfit.model.module_state import State, Watch
from memfit.model.out_of_memory import refusing_sparse_tensors
from memfit.model.refused_models import refuse_model
from memfit.model.step import Job, storage_bytes, storages_of, tensors_of
from memfit.model.tensors_in_arguments import tensors_in
from memfit.profile.block_by_block import recompute_every_block
from memfit.profile.meter.meter import Meter, WindowPeak
from memfit.records.fit import Fit, LoopFit
from memfit.units import format_bytes

MOST_FITS = 8
"""Longer and longer batches: after so many plans the last one stays, with a warning."""
FIRST_MEASURED = 3
AFTER_EVALUATION = 2
"""Passes that are measured after an evaluation: of the first of a recording often only bounds are known."""
BETWEEN = 0
"""In place of the number of a pass, which begins at 1."""
FIRST_UNSEEN = 3
"""After so many backwards without a pass, that is said."""
MOST_WINDOWS = 25
"""Passes in one recording of events, so that it stays small."""

FitJob = Callable[[Job], FittedModel]
"""Makes a job fit into the budget: profile, plan, apply, prove."""
ApplyReady = Callable[[torch.nn.Module], AppliedPlan]
"""Applies a plan that is there already, instead of making one."""


class StopAfterFitting(BaseException):
    """Ends a program whose plan was all that was asked for."""


@dataclass(slots=True)
class _Measured:
    """Peaks of the passes that were measured under a plan."""

    num_passes: int = 0
    num_measured: int = 0
    highest_bytes: int | None = None
    highest_at: int | None = None
    least_bytes: int = 0
    """What the highest took at least."""
    is_exact: bool = False
    """Whether the highest is what a pass took, and no bound: one that is exact takes the place of bounds around it."""
    num_over: int = 0
    num_unsure: int = 0
    """Whose bounds lie on both sides of the budget; the first of several aside, of which the others tell more."""


@dataclass(slots=True)
class LoopFitter:
    """Stands between a program and torch from `start` to `stop`."""

    options: FitOptions
    fit_job: FitJob
    say: Callable[[str], None]
    name: str = ""
    ready_plan: ApplyReady | None = None
    fits: list[Fit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    departures: dict[str, None] = field(default_factory=dict)
    """Sentences about passes that did not go as planned."""
    measured: _Measured = field(default_factory=_Measured)
    first_peak_bytes: int | None = None
    """The highest of the passes that ran before there was a plan."""
    num_between: int = 0
    """Stretches between passes in which a model was called without being trained: evaluations."""
    between_peak_bytes: int | None = None
    """The highest of those that were measured."""
    failed: Exception | None = None
    """Why no plan holds; raised into the program, which may catch it, and again when it has ended."""
    _within_pass: bool = False
    _fitted: FittedModel | AppliedPlan | None = None
    _tape: Tape | None = None
    _recorder: PassRecorder | None = None
    _stale: PassRecorder | None = None
    """Records no more, and is to leave torch's stack of modes."""
    _spare: AppliedPlan | None = None
    _steps: ProgramWatch | None = None
    """Watches what the program does with its gradients, from the recorded backward to the pass after it."""
    _planned_bytes: int = 0
    _recorded_bytes: int = 0
    _num_unseen: int = 0
    """Backwards that followed no pass."""
    _depth: int = 0
    _thread: int = 0
    _meter: Meter | None = None
    _windows: list[int | None] = field(default_factory=list)
    """Of the passes that are being measured, their numbers under a plan; None before there was one, BETWEEN for a call
    of a model between two passes."""
    _is_between: bool = False
    _is_due_between: bool = False
    _evaluates: bool = False
    """Whether a model that is not trained is being called between two passes."""
    _num_calls_between: int = 0
    _next_call_between: int = 0
    _num_to_measure: int = 0
    """Passes after an evaluation: what it keeps counts in them."""
    _plain_call: Any = None
    _plain_backward: Any = None
    _began_seconds: float = 0.0
    _fitting_seconds: float = 0.0

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
        self._end_measuring()
        self._unspare()
        self._end_watching_steps()
        self._note_departures()
        if self._fitted is not None:
            self._fitted.undo()
        self._fitted = self._tape = self._stale = None  # whoever keeps the fitter keeps no model and no batch
        return LoopFit(
            name=self.name,
            budget_bytes=self.options.require_budget(),
            fits=tuple(self.fits),
            num_passes=self.measured.num_passes,
            num_measured=self.measured.num_measured,
            measured_peak_bytes=self.measured.highest_bytes,
            highest_pass=self.measured.highest_at,
            is_upper_bound=self.measured.highest_at is not None and not self.measured.is_exact,
            num_over_budget=self.measured.num_over,
            num_unsure=self.measured.num_unsure,
            first_peak_bytes=self.first_peak_bytes,
            num_between=self.num_between,
            between_peak_bytes=self.between_peak_bytes,
            fitting_seconds=self._fitting_seconds,
            seconds=time.monotonic() - self._began_seconds,
            notes=tuple(self.notes),
            departures=tuple(self.departures),
        )

    def _note_departures(self) -> None:
        """Remember what the plan has said of calls that were not as planned."""
        applied = self._fitted.applied if isinstance(self._fitted, FittedModel) else self._fitted
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
        self._measure_between(module)
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
            if self._recorder is not None:
                return self._recorder.call_module(module, self._bound(module), args, kwargs, is_trained)
            return self._plain_call(module, *args, **kwargs)
        finally:
            self._depth -= 1

    def _records(self, module: torch.nn.Module) -> bool:
        """Whether a module that is not trained has to be on the tape: a teacher, whose state must stay as it is."""
        recording = self._recorder is not None and self._recorder.is_open
        return recording and any(True for tensors in (module.parameters(), module.buffers()) for _ in tensors)

    def _bound(self, module: torch.nn.Module) -> Callable[..., object]:
        return lambda *args, **kwargs: self._plain_call(module, *args, **kwargs)

    def _backward(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if self._depth or threading.get_ident() != self._thread:
            return self._plain_backward(*args, **kwargs)
        tape = self._tape if self._recorder is not None else None
        if not self._within_pass:
            self._say_unseen()
        if tape is not None:
            tape.close(_backward_of_torch, args, kwargs)
            self._end_recording()
        try:
            return self._plain_backward(*args, **kwargs)
        finally:
            self._within_pass = False
            if tape is not None and STEP_IN_BACKWARD in self.options.allow:
                self._watch_steps(tape)

    def _say_unseen(self) -> None:
        """Say early that backwards follow no pass: a program that goes on so is refused only when it has ended."""
        self._num_unseen += 1
        if self._num_unseen == FIRST_UNSEEN and not self.fits and self._tape is None and self._fitted is None:
            self.say(
                f"{FIRST_UNSEEN} backwards, and none follows a call of a module in train(): no plan can be made for "
                "them. A call is model(x), not model.forward(x), in the thread that began"
            )

    # ---- passes --------------------------------------------------------------------------------------------------

    def _begin_pass(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if self._is_between and self._is_due(self.num_between):
            self._num_to_measure = AFTER_EVALUATION
        self._within_pass, self._is_between = True, False
        self._end_recording()
        self._note_departures()
        size = storage_bytes(t for t in tensors_of((args, kwargs)) if not isinstance(t, torch.nn.Parameter))
        if self._tape is not None:
            self._end_measuring()
            self._fit(module)
        elif self._fitted is None and self.ready_plan is not None:
            refuse_model(module)
            self._fitted = self.ready_plan(module)
            self._planned_bytes = size
        if self._fitted is None or (size > self._planned_bytes and self.ready_plan is None):
            self._record(module, args, kwargs, size)
        self._measure(module)

    def _record(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], size: int) -> None:
        """Write the pass that begins to a tape, recomputing its blocks where it would be too large."""
        if len(self.fits) >= MOST_FITS:
            warnings.warn(
                f"memfit: batches grew {MOST_FITS} times; a pass with {format_bytes(size)} of input runs under the "
                f"plan for {format_bytes(self._planned_bytes)} and may take more than the budget: let the largest "
                "batch come first",
                RuntimeWarning,
                stacklevel=2,
            )
            self._planned_bytes = size
            return
        refuse_model(module)
        if self._fitted is not None:
            self.say(f"a pass has {format_bytes(size)} of input, the plan was for {format_bytes(self._planned_bytes)}")
            self._fitted.undo()
            self._fitted = None
        self._recorded_bytes = size
        self._end_measuring()  # predicting records events of its own
        self._spare = self._first_pass_plan(module, args, kwargs)
        gc.collect()
        self._tape = Tape()
        self._recorder = PassRecorder(self._tape)
        self._recorder.begin()

    def _first_pass_plan(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> AppliedPlan | None:
        stand_in = Job(model=module, run=lambda: _run_to_a_sum(module, args, kwargs), batch=(args, kwargs))
        stand_in.optimizer = optimizer_of([module])
        stand_in.limit_bytes = self.options.require_budget()
        stand_in.around_bytes = _bytes_around(stand_in)
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

    def _fit(self, begins: torch.nn.Module) -> None:
        """Plan and prove with the pass that was recorded, and apply; the next one begins with a call of `begins`."""
        tape, self._tape = self._tape, None
        assert tape is not None
        unsteppable = self._end_watching_steps()
        self._unspare()
        refuse_unplayable(tape)
        began = time.monotonic()
        self.say(f"fitting into {format_bytes(self.options.require_budget())}: measuring the step, planning, proving")
        job = _job_of(tape, self.name)
        job.unsteppable = unsteppable
        job.limit_bytes = self.options.require_budget()
        try:
            with lending_gradients(job):
                fitted = self._fitted = self.fit_job(job)
        except DoesNotFit as refusal:
            raise refusal if begins is tape.modules[0] else of_first_kind(refusal, begins) from None
        del tape, job
        gc.collect()  # what fitting left in rings would count as the program's
        self._fitting_seconds += time.monotonic() - began
        self._planned_bytes = self._recorded_bytes
        self.fits.append(fitted.fit)
        self.say(_said_of(fitted.fit))
        if self.options.only_plan:
            raise StopAfterFitting

    def _watch_steps(self, tape: Tape) -> None:
        """From here to the next pass, note whether the step could have been taken in the backward."""
        model = tape.modules[0] if len(tape.modules) == 1 else _together(tape.modules)
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

    # ---- measuring -----------------------------------------------------------------------------------------------

    def _measure(self, module: torch.nn.Module) -> None:
        """Go on measuring, begin or end it, as the pass that begins demands; what an evaluation keeps counts in it."""
        planned = self._fitted is not None and self._tape is None
        self.measured.num_passes += planned
        number = self.measured.num_passes
        device = next(module.parameters()).device
        is_due = self._num_to_measure > 0 or self._is_due(number) or self._is_due(number + 1)
        self._num_to_measure = max(0, self._num_to_measure - 1)
        wanted = device.type == "cuda" or not planned or is_due
        if self._meter is not None and (not wanted or len(self._windows) >= MOST_WINDOWS):
            self._end_measuring()
        if self._meter is None and wanted:
            self._start_meter(device)
        self._begin_window(device, number if planned else None)

    def _measure_between(self, module: torch.nn.Module) -> None:
        """Measure what an evaluation takes, call by call; on CUDA the window of the pass before it holds that too."""
        device = next((p.device for p in module.parameters()), None)
        if self._fitted is None or self._recorder is not None or device is None or device.type == "cuda":
            return
        if not self._is_between:
            self._is_between = True
            self.num_between += 1
            self._is_due_between = self._is_due(self.num_between)
            self._num_calls_between, self._next_call_between = 0, MOST_WINDOWS
        is_due = self._is_due_between and self._is_due_call()
        is_over = self._windows[-1:] == [BETWEEN] and not is_due
        if self._meter is not None and (is_over or len(self._windows) >= MOST_WINDOWS):
            self._end_measuring()
        if self._meter is None and is_due:
            self._start_meter(device)
        self._begin_window(device, BETWEEN)

    def _is_due_call(self) -> bool:
        """Whether a call of an evaluation is measured: the first ones, then fewer and fewer, as a cache may grow."""
        self._num_calls_between += 1
        if self._num_calls_between < self._next_call_between:
            return self._num_calls_between < MOST_WINDOWS
        self._next_call_between = self._num_calls_between * 5 // 4 + 1
        return True

    def _start_meter(self, device: torch.device) -> None:
        meter = Meter(device)
        self._meter = meter if meter.start() else None

    def _begin_window(self, device: torch.device, number: int | None) -> None:
        if self._meter is not None:
            self._meter.begin_window(alive_bytes(device))
            self._windows.append(number)  # only if it began: the end pairs them up

    def _is_due(self, number: int) -> bool:
        """Whether a pass is measured: the first ones, some later ones, and all since one did not go as planned."""
        return bool(self.departures) or number <= FIRST_MEASURED or number % self.options.measure_every == 0

    def _end_measuring(self) -> None:
        meter, self._meter = self._meter, None
        windows, self._windows = self._windows, []
        if meter is None:
            return
        after_bytes, peaks = 0, []
        try:
            after_bytes = alive_bytes(meter.device) if windows else 0
        finally:
            peaks = meter.stop(after_bytes)
        has_later_pass = any(windows[1:])
        for position, (number, peak) in enumerate(zip(windows, peaks, strict=True)):
            if peak is None:
                continue
            if number is None:
                self.first_peak_bytes = max(self.first_peak_bytes or 0, peak.most_bytes)
            elif number == BETWEEN:
                self.between_peak_bytes = max(self.between_peak_bytes or 0, peak.least_bytes)
            else:
                self._count(number, peak, is_first=position == 0 and has_later_pass)

    def _count(self, number: int, peak: WindowPeak, *, is_first: bool) -> None:
        """A pass under the plan; one of which only bounds are known counts if both lie on one side of the budget."""
        found, budget_bytes = self.measured, self.options.require_budget()
        if peak.least_bytes <= budget_bytes < peak.most_bytes:
            found.num_unsure += not is_first
            return
        found.num_measured += 1
        found.num_over += peak.least_bytes > budget_bytes
        if peak.least_bytes > budget_bytes and found.num_over == 1:
            took = f"pass {number} under the plan took {format_bytes(peak.least_bytes)}, MORE than the budget"
            self.say(f"{took}: it is of another kind than the one that was planned, or the program keeps more")
        before_bytes = found.highest_bytes
        is_higher = before_bytes is None or peak.least_bytes > before_bytes
        is_better = (peak.is_exact, peak.most_bytes) > (found.is_exact, before_bytes or 0)
        if is_higher or (is_better and peak.most_bytes >= found.least_bytes):
            found.highest_bytes, found.highest_at, found.is_exact = peak.most_bytes, number, peak.is_exact
            found.least_bytes = peak.least_bytes


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


# ---- the job of a tape ---------------------------------------------------------------------------------------------


class Together(torch.nn.Module):
    """Several modules that one pass calls, as one model."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(modules)


def _job_of(tape: Tape, name: str) -> Job:
    model = tape.modules[0] if len(tape.modules) == 1 else _together(tape.modules)
    parameters = {id(p) for p in model.parameters()}
    held = tape.held()
    outside = [t for t in held if t.requires_grad and t.is_leaf and id(t) not in parameters]
    outside += [p for other in tape.others for p in other.parameters() if id(p) not in parameters]
    batch = [t for t in held if id(t) not in parameters]
    job = Job(model=model, run=lambda: None, optimizer=optimizer_of([model]), batch=batch, name=name)

    def run() -> object:
        gradients = [(tensor, tensor.grad) for tensor in outside]
        before = [State.now(Watch(other)) for other in tape.others]
        try:
            loss = tape.play()
        finally:
            for state in before:
                state.lay()
            for tensor, gradient in gradients:
                tensor.grad = gradient
        if loss is not None:
            job.seen["loss"] = loss.detach()
        return job.seen.get("loss")

    job.run = run
    job.accumulates = any(p.grad is not None for p in model.parameters())
    job.around_bytes = _bytes_around(job)
    return job


def _together(modules: list[torch.nn.Module]) -> torch.nn.Module:
    whole = Together(modules)
    whole.training = True  # not through train(): the parts keep what they have
    return whole


def optimizer_of(modules: list[torch.nn.Module]) -> torch.optim.Optimizer | None:
    """The optimizer of the program that has most of a model's parameters; a wrapper of another one does not count."""
    wanted = {id(p) for module in modules for p in module.parameters()}
    best: tuple[int, Any] = (0, None)
    kinds = _with_subclasses(torch.optim.Optimizer)
    for each in gc.get_objects():
        if type(each) in kinds and not hasattr(each, "optimizer"):
            count = sum(id(p) in wanted for group in each.param_groups for p in group["params"])
            best = max(best, (count, each), key=lambda pair: pair[0])
    return best[1]


def _tensors_alive() -> list[torch.Tensor]:
    """All that have a Python object, and those without one: gradients not read yet, and what graphs keep."""
    kinds = _with_subclasses(torch.Tensor)  # a lookup by type: a program has a million objects
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


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*(_with_subclasses(each) for each in type.__subclasses__(kind)))


def alive_bytes(device: torch.device) -> int:
    """What all tensors of the program on a kind of device take."""
    return sum(storages_of(_tensors_alive(), device).values())


def _bytes_around(job: Job) -> int:
    """What tensors of the program take that belong neither to the model, nor to its batch, optimizer or gradients."""
    everything = storages_of(_tensors_alive(), job.device)
    gradients = [p.grad for p in job.model.parameters() if p.grad is not None]
    state = tensors_of([dict(entry) for entry in job.optimizer.state.values()]) if job.optimizer is not None else []
    own = storages_of(
        [*job.model.parameters(), *job.model.buffers(), *gradients, *state, *tensors_of(job.batch)], job.device
    )
    return sum(size for key, size in everything.items() if key not in own)
