"""Pulls levers where no plan fits: the step is measured, planned and proven once more with each of them in place.

    step-in-backward   the optimizer steps each parameter in the backward; weights and state stay those of the plain one
    chunked-loss       last linear layer and cross entropy run in chunks of rows; equal within roundings, not to the bit

A lever is taken only if it is allowed, can be shown to compute the same, and brings the step into the budget. One that
cannot be pulled leaves no trace, and the refusal says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch

from memfit.apply import chunked_loss as chunks
from memfit.apply import step_in_backward as stepping
from memfit.apply.apply import apply_to
from memfit.apply.checkpoints import AppliedPlan
from memfit.apply.recompute import SecondRunDiffers
from memfit.errors import CannotPull, DoesNotFit, MemfitError, PlanBroken, ProofFailed, UsageError
from memfit.fit.plan_and_prove import Held, PlanFor, hold_to_budget
from memfit.model.call_sites import layers_of
from memfit.model.out_of_memory import is_out_of_memory
from memfit.model.step import Job, leaving_no_trace
from memfit.profile.optimizer_update import transients_alone
from memfit.profile.plain_step import Profile
from memfit.profile.profile import profile_job
from memfit.profile.reference_step import Reference, reference_of, tolerant
from memfit.records.plan import LEVERS, AppliedLever, Plan
from memfit.units import format_bytes

Say = Callable[[str], None]
_OTHER_ORDER = "the loss is computed in chunks of rows, whose gradients add up in another order"
_NOT_CHUNKED = "the loss cannot be computed in chunks"
_AGAIN = "plan again with memfit fit"


def check_levers(names: Sequence[str]) -> tuple[str, ...]:
    """Refuse a lever that there is not."""
    for name in names:
        if name not in LEVERS:
            raise UsageError("there is no such lever", found=repr(name), hint=", ".join(LEVERS))
    return tuple(dict.fromkeys(names))


def refuse_pulled(model: torch.nn.Module) -> None:
    """Refuse a model on which levers are pulled already, be it without a checkpoint."""
    guarded = any(isinstance(p, stepping.GuardedParameter) for p in model.parameters())
    layers = [layer for module in model.modules() for layer in layers_of(module)]
    if guarded or any(isinstance(layer, chunks.ChunkedLoss) for layer in layers):
        raise UsageError("the model already carries a plan", hint="call .undo() on what fit_to_budget returned")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverTrial:
    """What levers are tried on."""

    job: Job
    budget_bytes: int
    plan_for: PlanFor
    disk: str | None
    reference: Reference
    """The plain step."""
    say: Say | None = None
    """Called once with the news that `optimizer.step()` has nothing left to do; None warns."""


def hold_with_levers(trial: LeverTrial, allowed: Sequence[str], refusal: DoesNotFit) -> tuple[Held, Profile]:
    """Plan, apply and prove with levers in place; raises what was refused without them where none helps."""
    errors, reasons = [refusal], list[str]()
    for names in _sets_of(allowed):
        try:
            return _held_with(trial, names)
        except DoesNotFit as error:
            errors.append(error)
        except (CannotPull, ProofFailed) as error:
            reasons.append(f"{error.what} ({error.found})")
    raise _closed(errors, list(dict.fromkeys(reasons)))


def _sets_of(allowed: Sequence[str]) -> list[tuple[str, ...]]:
    """Each lever alone, then all of them."""
    alone = [(name,) for name in allowed]
    return alone if len(alone) < 2 else [*alone, tuple(allowed)]


def _held_with(trial: LeverTrial, names: Sequence[str]) -> tuple[Held, Profile]:
    """The step with levers in place, held to the budget; whatever fails, no lever stays."""
    changed, reference, levers = trial.job, trial.reference, list[AppliedLever]()
    with contextlib.ExitStack() as for_now:
        if stepping.NAME in names:
            changed = stepping_job(changed)
            levers.append(AppliedLever(name=stepping.NAME))
            reference = _without_earlier_gradients(trial.job, reference)
        if chunks.NAME in names:
            chunked = chunkable(trial.job)
            plain = dataclasses.replace(trial.job, accumulates=changed.accumulates)
            reference = tolerant(plain, reference)
            for_now.enter_context(_started(chunked))
            changed = dataclasses.replace(changed, inexact_because=_OTHER_ORDER)
            levers.append(AppliedLever(name=chunks.NAME, module=chunked.name))
        profile = profile_job(changed, reference=reference)
        peak_bytes = profile.plain_record_peak_bytes
        held = hold_to_budget(
            changed, profile.chain, trial.budget_bytes, trial.plan_for, trial.disk, reference, peak_bytes
        )
    held.plan = msgspec.structs.replace(held.plan, applied_levers=tuple(levers))
    pull(held.applied.closers, trial.job.model, trial.job.optimizer, held.plan, trial.say)
    return held, profile


def _without_earlier_gradients(job: Job, reference: Reference) -> Reference:
    """The plain step as it is where gradients of the step before are gone when it begins."""
    if not job.accumulates:
        return reference
    return reference_of(dataclasses.replace(job, accumulates=False), reference.state)


# ---- the step in the backward ----------------------------------------------------------------------------------------


def stepping_job(job: Job) -> Job:
    """The same job with its parameters stepped in the backward, as far as that can be tried without a trace."""
    if job.unsteppable:
        raise CannotPull(stepping.NOT_STEPPED, found=job.unsteppable)
    stepping.refuse_what_differs(job.optimizer, job.model)
    assert job.optimizer is not None
    parameters = stepping.stepped_parameters(job.optimizer, job.model)
    scratch_bytes = transients_alone(job)
    plain_run = job.run

    def run() -> object:
        keep = job.seen.get("keep")
        with _weights_needed_later(), stepping.rehearsed(job.model, parameters, scratch_bytes, keep):
            return plain_run()

    return dataclasses.replace(job, run=run, stepped=tuple(parameters), accumulates=False)


@contextlib.contextmanager
def _weights_needed_later() -> Iterator[None]:
    """A backward that reads a weight after its step: autograd says so, or a block that is run again."""
    try:
        yield
    except SecondRunDiffers:
        raise
    except (RuntimeError, PlanBroken) as error:
        if isinstance(error, RuntimeError) and "modified by an inplace operation" not in str(error):
            raise
        found = "a weight is needed in the backward after its step"
        raise CannotPull(stepping.NOT_STEPPED, found=found) from error


def _step_in_backward(model: torch.nn.Module, optimizer: object, say: Say | None) -> Callable[[], None]:
    if optimizer is None:
        raise UsageError(
            "the plan steps the optimizer in the backward, and there is none",
            hint="memfit.apply_plan(model, plan, optimizer=optimizer)",
        )
    stepping.refuse_what_differs(optimizer, model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    applied = stepping.StepInBackward(optimizer, model, say)
    applied.start()
    return applied.undo


# ---- the loss in chunks ----------------------------------------------------------------------------------------------


def chunkable(job: Job) -> chunks.ChunkedLoss:
    """What computes the loss of a job in chunks; refused where that does not spare its logits."""
    found = chunks.widest_layer(job.model)
    if found is None:
        raise CannotPull(_NOT_CHUNKED, found="the model has no plain linear layer")
    chunked = chunks.ChunkedLoss(found[1], found[0], is_tried=True)
    with _started(chunked), leaving_no_trace(job):
        _run_in_chunks(job)
    if not chunked.num_chunked or chunked.num_whole:
        raise CannotPull(_NOT_CHUNKED, found=f"more than a cross entropy reads what {found[0]} returns")
    return chunked


def _run_in_chunks(job: Job) -> None:
    try:
        job.run()
    except Exception as error:  # what stands for the logits is no tensor, which code of the user may not bear
        if is_out_of_memory(error):
            raise
        what = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        raise CannotPull(_NOT_CHUNKED, found=f"the step then fails with {what}") from error


@contextlib.contextmanager
def _started(chunked: chunks.ChunkedLoss) -> Iterator[None]:
    chunked.start()
    try:
        yield
    finally:
        chunked.undo()


def _in_chunks(model: torch.nn.Module, lever: AppliedLever) -> Callable[[], None]:
    layer = dict(model.named_modules()).get(lever.module)
    if not isinstance(layer, torch.nn.Linear) or chunks.refuses(layer):
        found = f"{lever.module} is no plain linear layer"
        raise MemfitError("the plan is for another model", found=found, hint=_AGAIN)
    chunked = chunks.ChunkedLoss(layer, lever.module)
    chunked.start()
    return chunked.undo


# ---- both ------------------------------------------------------------------------------------------------------------


def carry_out(
    model: torch.nn.Module,
    plan: Plan,
    disk: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    is_exact: bool = True,
) -> AppliedPlan:
    """Make a model carry out a whole plan: its blocks and its levers. `is_exact` is that of `apply_to`."""
    refuse_pulled(model)
    applied = apply_to(model, plan, disk, is_exact)
    pull(applied.closers, model, optimizer, plan)
    return applied


def pull(
    closers: list[Callable[[], None]], model: torch.nn.Module, optimizer: object, plan: Plan, say: Say | None = None
) -> None:
    """Apply the levers of a plan to a model that carries it out; `closers` get what takes them away."""
    try:
        for lever in plan.applied_levers:
            if lever.name == stepping.NAME:
                closers.append(_step_in_backward(model, optimizer, say))
            elif lever.name == chunks.NAME:
                closers.append(_in_chunks(model, lever))
            else:
                raise MemfitError("the plan has a lever that this version does not know", found=lever.name, hint=_AGAIN)
    except BaseException:
        while closers:
            closers.pop()()
        raise


def _closed(errors: Sequence[DoesNotFit], reasons: Sequence[str]) -> DoesNotFit:
    """The refusal that names the smallest budget of all, and why a lever was not pulled."""
    best = min(errors, key=lambda error: (error.needed_bytes is None, error.needed_bytes or 0))
    hint = best.hint
    if best is not errors[0] and best.needed_bytes is not None:
        hint = f"a budget of {format_bytes(best.needed_bytes)} with the same levers allowed, or a smaller batch"
    found = "; ".join([best.found, *reasons])
    error = DoesNotFit(best.what, limit_bytes=best.limit_bytes, needed_bytes=best.needed_bytes, found=found, hint=hint)
    error.levers = errors[0].levers
    return error
