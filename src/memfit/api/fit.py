"""Fits: a model or a training script brought into a budget of bytes; profiled, planned, applied, measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.api.predict import predict_peak
from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.apply.checkpoints import AppliedPlan
    from memfit.fit.fitted import FittedModel
    from memfit.fit.options import FitOptions
    from memfit.fit.training_loop import LoopFitter
    from memfit.job.training import Training
    from memfit.model.step import Job
    from memfit.plan.case import Case
    from memfit.records.fit import Fit, LoopFit
    from memfit.records.plan import Candidate, Chain, Link, Plan, Stage
    from memfit.records.prediction import Prediction


_ADDING_UP = "gradients add up over several batches"


@checked_options
def fit_to_budget(
    model: object,
    batch: object,
    loss: Callable[..., object] | None = None,
    optimizer: object = None,
    *,
    budget: str | int,
    disk: str | Path | None = None,
    planner: str = "best",
    accumulates: bool = False,
    allow: Sequence[str] = (),
) -> FittedModel:
    """Make one training step of a model fit into a budget such as '8GiB', prove that it computes the same, keep it so.

    `batch` is (inputs, targets) or a dictionary of keyword arguments; the loss is loss(model(inputs), targets), or
    what the model returns. `disk` is a folder to which a plan may move what the backward needs. `accumulates` says that
    gradients add up over several batches, so that those of earlier batches are there when a step begins. `allow` names
    levers that may be pulled where no plan fits otherwise: 'step-in-backward' (gradients cannot be read any more) and
    'chunked-loss' (equal within roundings, not to the bit).

    >>> fitted = fit_to_budget(model, (images, labels), loss, optimizer, budget="8GiB")  # doctest: +SKIP
    >>> fitted.fit.plan.seconds  # doctest: +SKIP
    """
    from memfit.fit.options import FitOptions
    from memfit.model.step import job_of

    options = FitOptions(
        budget_bytes=_bytes_of(budget), disk=_text_of(disk), planner=planner, accumulates=accumulates,
        allow=tuple(allow),
    )  # fmt: skip
    return _fit_job(job_of(model, batch, loss, optimizer), options)


def _bytes_of(budget: str | int) -> int:
    from memfit.units import parse_bytes

    return parse_bytes(budget) if isinstance(budget, str) else budget


def _text_of(folder: str | Path | None) -> str | None:
    return None if folder is None else str(folder)


@checked_options
def apply_plan(
    model: Any, plan: Plan | str | Path, *, disk: str | Path | None = None, optimizer: Any = None
) -> AppliedPlan:
    """Make a model carry out a plan, or the plan in a file that `memfit fit` wrote; `.undo()` takes it away.

    A plan that was made with the lever 'step-in-backward' needs the optimizer.

    >>> applied = apply_plan(model, "plan.json")  # doctest: +SKIP
    """
    from memfit.fit.levers import carry_out
    from memfit.records.plan import Plan, read_plan

    return carry_out(model, plan if isinstance(plan, Plan) else read_plan(plan), _text_of(disk), optimizer)


@checked_options
def fit_target(
    target: str,
    budget_bytes: int | None = None,
    *,
    settings: tuple[str, ...] = (),
    device: str | None = None,
    disk: str | None = None,
    planner: str = "best",
    output: str = "plan.json",
    force: bool = False,
    threads: int | None = None,
    accumulates: bool = False,
    allow: Sequence[str] = (),
) -> Fit:
    """Fit what a target builds: on this machine with proof, for another device from prediction alone."""
    import msgspec

    from memfit.fit.options import FitOptions
    from memfit.model.step import check_output, set_threads
    from memfit.records.plan import write_plan

    options = FitOptions(
        budget_bytes=budget_bytes, settings=settings, device=device, disk=disk, planner=planner, output=output,
        force=force, threads=threads, accumulates=accumulates, allow=tuple(allow),
    )  # fmt: skip
    check_output(options.output, options.force)
    set_threads(options.threads)
    fit = _fit_here(target, options) if device is None or device.startswith("cpu") else _fit_away(target, options)
    write_plan(fit.plan, options.output)
    return msgspec.structs.replace(fit, plan_file=options.output)


def _fit_here(target: str, options: FitOptions) -> Fit:
    """Fit what a target builds on this machine, with proof."""
    from memfit.model.step import build_job

    options.require_budget()
    return _fit_job(build_job(training_of(target, options.settings), target), options).fit


def _fit_away(target: str, options: FitOptions) -> Fit:
    """Plan for a device that is not here; what only a run can do is refused."""
    from memfit.errors import UsageError

    if options.accumulates:
        raise UsageError("gradients that add up are measured, not predicted", hint="leave out --accumulate")
    if options.allow:
        raise UsageError("levers are pulled where the step is run, not predicted", hint="leave out --allow")
    return _fit_prediction(target, options)


@checked_options
def fit_script(
    target: str,
    budget_bytes: int | None = None,
    *,
    arguments: tuple[str, ...] = (),
    plan_file: str | None = None,
    force: bool = False,
    only_plan: bool = False,
    disk: str | None = None,
    planner: str = "best",
    threads: int | None = None,
    measure_every: int | None = None,
    allow: Sequence[str] = (),
    say: Callable[[str], None] = lambda sentence: None,
) -> LoopFit:
    """Run a training script to its end within a budget: its first pass is watched, a plan is made, proven and applied.

    `plan_file` is reused where it is there (unless `force`), and written where it is not. `only_plan` stops the script
    as soon as the plan is proven. Without a budget, the memory of the GPU that the script trains on is the budget.

    >>> found = fit_script("train.py", 8 * 2**30, arguments=("--epochs", "3"))  # doctest: +SKIP
    >>> found.measured_peak_bytes  # doctest: +SKIP
    """
    import msgspec

    from memfit.fit.options import EVERY_PASS, FitOptions
    from memfit.fit.script import run_fitted
    from memfit.job.description import describe_job
    from memfit.model.step import check_output, set_threads
    from memfit.records.plan import write_plan

    options = FitOptions(
        budget_bytes=budget_bytes, arguments=arguments, plan_file=plan_file, force=force, only_plan=only_plan,
        disk=disk, planner=planner, threads=threads, allow=tuple(allow),
        measure_every=EVERY_PASS if measure_every is None else measure_every,
    )  # fmt: skip
    describe_job(target)  # is it there, and a file?
    if plan_file is not None:
        check_output(plan_file, force=True)  # one that is there is used, or replaced
    set_threads(options.threads)
    fitter = _loop_fitter(target, options, say)
    if plan_file is not None and fitter.ready_plan is None:
        path = os.path.abspath(plan_file)  # the script may change the folder
        fitter.write = lambda fit: write_plan(fit.plan, path)
    found = run_fitted(target, options.arguments, fitter)
    is_written = fitter.write is not None and fitter.to_write is not None
    return msgspec.structs.replace(found, arguments=options.arguments, plan_file=plan_file if is_written else "")


@checked_options
def fitting_loop(
    budget: str | int,
    *,
    disk: str | Path | None = None,
    planner: str = "best",
    measure_every: int | None = None,
    allow: Sequence[str] = (),
    say: Callable[[str], None] = lambda sentence: None,
) -> LoopFitter:
    """What fits any training loop of this process between its `.start()` and its `.stop()`, which returns the record.

    fitter = memfit.api.fitting_loop("2GiB")
    fitter.start()
    train()
    print(fitter.stop().measured_peak_bytes)
    """
    from memfit.fit.options import EVERY_PASS, FitOptions

    options = FitOptions(
        budget_bytes=_bytes_of(budget), disk=_text_of(disk), planner=planner,
        measure_every=EVERY_PASS if measure_every is None else measure_every, allow=tuple(allow),
    )  # fmt: skip
    return _loop_fitter("", options, say)


def _loop_fitter(name: str, options: FitOptions, say: Callable[[str], None]) -> LoopFitter:
    """What fits a loop as the options say; a plan that is there already is applied instead of making one."""
    import msgspec

    from memfit.fit.levers import check_levers
    from memfit.fit.script import budget_of_gpu, ready_plan
    from memfit.fit.training_loop import LoopFitter

    budget_bytes = budget_of_gpu() if options.budget_bytes is None else options.budget_bytes
    obeyed = msgspec.structs.replace(options, budget_bytes=budget_bytes, allow=check_levers(options.allow))
    return LoopFitter(
        obeyed, lambda job: _fit_job(job, obeyed, say), say, name=name, ready_plan=ready_plan(obeyed)
    )  # fmt: skip


def training_of(target: str, settings: tuple[str, ...]) -> Training:
    """What a function or workload builds, with these settings."""
    from memfit.job.description import describe_job, parse_settings
    from memfit.job.load import arguments_for, load_function
    from memfit.job.training import as_training

    job = describe_job(target, parse_settings(settings))
    if job.kind == "script":
        from memfit.errors import UsageError

        raise UsageError(
            "a script cannot be fitted", found=target, hint=f"name a function that builds it: {target}:make"
        )
    function = load_function(job)
    return as_training(function(**arguments_for(function, dict(job.settings), "cpu")), target)


def _fit_job(job: Job, options: FitOptions, say: Callable[[str], None] | None = None) -> FittedModel:
    """Measure a job, plan, apply, prove; planning again is the planner handed into the loop."""
    from memfit.errors import DoesNotFit, MemfitError, UsageError
    from memfit.fit.levers import check_levers, refuse_pulled
    from memfit.fit.plan_and_prove import check_budget, with_smallest_named

    if options.accumulates:
        job.accumulates, job.unsteppable = True, _ADDING_UP
    allowed = check_levers(options.allow)
    refuse_pulled(job.model)
    below = check_budget(job, options.require_budget())
    if below is None:
        return _measured_fit(job, options, allowed, say)
    try:  # no lever makes parameters smaller; what would be enough is measured all the same
        return _measured_fit(job, options, (), say)
    except DoesNotFit as refusal:
        raise with_smallest_named(below, refusal) from None
    except UsageError:
        raise
    except MemfitError:  # memory ran out
        raise below from None


def _measured_fit(
    job: Job, options: FitOptions, allowed: Sequence[str], say: Callable[[str], None] | None
) -> FittedModel:
    """Measure, plan, apply and prove, with the levers that are allowed where nothing fits without."""
    from functools import partial

    from memfit.errors import DoesNotFit
    from memfit.fit.fitted import FittedModel
    from memfit.fit.levers import LeverTrial, hold_with_levers
    from memfit.fit.plan_and_prove import hold_to_budget, reference_for
    from memfit.plan.operators import OperatorPlanner
    from memfit.plan.planners import levers_for, make_plan
    from memfit.profile.link_speed import measure_disk
    from memfit.profile.optimizer_update import step_hooks_note
    from memfit.profile.profile import profile_job
    from memfit.records.fit import Fit

    budget_bytes, planner, folder = options.require_budget(), options.planner, options.disk
    link = None if folder is None else measure_disk(folder)
    profile = profile_job(job)
    known: list[Case] = []

    def plan_for(chain: Chain, target_bytes: int) -> Plan:
        return make_plan(chain, target_bytes, link=link, planner=planner, known=known)

    plain_bytes = profile.plain_record_peak_bytes
    reference = profile.reference or reference_for(job, profile.chain)
    try:
        held = hold_to_budget(
            job,
            profile.chain,
            budget_bytes,
            plan_for,
            folder,
            reference,
            plain_bytes,
            operators=partial(OperatorPlanner, link=link) if planner == "best" else None,
        )
    except DoesNotFit as refusal:
        refusal.levers = levers_for(profile.chain, budget_bytes, link=link)
        if not allowed:
            raise
        trial = LeverTrial(
            job=job, budget_bytes=budget_bytes, plan_for=plan_for, disk=folder, reference=reference, say=say
        )
        held, profile = hold_with_levers(trial, allowed, refusal)
    fit = Fit(
        target=held.plan.chain.target,
        budget_bytes=budget_bytes,
        plan=held.plan,
        candidates=_with_operators(held.plan, link, known),
        proof=held.proof,
        num_rounds=held.num_rounds,
        kept_blocks=(*profile.kept_blocks, *held.kept_blocks),
        notes=(*profile.notes, *step_hooks_note(job)),
    )
    return FittedModel(fit, held.applied)


def _plan_or_levers(chain: Chain, budget_bytes: int, link: Link | None, planner: str) -> Plan:
    """A plan, or an error that carries the levers that remain."""
    from memfit.errors import DoesNotFit
    from memfit.plan.planners import levers_for, make_plan

    try:
        return make_plan(chain, budget_bytes, link=link, planner=planner)
    except DoesNotFit as error:
        error.levers = levers_for(chain, budget_bytes, link=link)
        raise


def _with_operators(plan: Plan, link: Link | None, known: list[Case]) -> tuple[Candidate, ...]:
    """What every planner of blocks finds, beside the plan that was taken."""
    from memfit.records.plan import Candidate

    if plan.operators is None:
        return _candidates(plan.chain, plan.budget_bytes, link, plan.solver, known)
    mine = Candidate(solver=plan.solver, fits=True, peak_bytes=plan.peak_bytes, seconds=plan.seconds)
    return (mine, *_candidates(plan.chain, plan.budget_bytes, link, "nested", known))


def _candidates(
    chain: Chain, budget_bytes: int, link: Link | None, chosen: str, known: list[Case] | None = None
) -> tuple[Candidate, ...]:
    from memfit.plan.planners import compare_planners

    names = ["keep all", "every block", "sqrt(n)", "equal segments", "greedy segments", "revolve", "nested"]
    if link is not None:
        names += ["offload all", "offload prefix", "offload", "combined"]
    return compare_planners(chain, budget_bytes, link=link, names=list(dict.fromkeys([*names, chosen])), known=known)


def _fit_prediction(target: str, options: FitOptions) -> Fit:
    """Plan for a device that is not here, from a predicted timeline; nothing is run."""
    from memfit.profile.chain_from_prediction import budget_of, host_link
    from memfit.records.fit import Fit

    device = options.device or "cpu"
    chain, prediction, notes = predicted_chain(target, options.settings, device)
    limit_bytes = budget_of(options.budget_bytes, prediction, device)
    link, more = host_link(prediction)
    plan = _plan_or_levers(chain, limit_bytes, link, options.planner)
    return Fit(
        target=target,
        budget_bytes=limit_bytes,
        plan=plan,
        candidates=_candidates(chain, limit_bytes, link, plan.solver),
        unproven_because=f"{device} is not this machine; sizes are predicted, times are coarse",
        notes=(*notes, *more),
    )


def predicted_chain(target: str, settings: tuple[str, ...], device: str) -> tuple[Chain, Prediction, tuple[str, ...]]:
    """A chain for a device that is not here, with what it was made from and what is to be said about it."""
    from memfit.profile.chain_from_prediction import chain_from
    from memfit.profile.fake_step import draft_of

    def build() -> Any:
        return training_of(target, settings)

    draft, notes = draft_of(build, target)
    prediction = predict_peak(target, settings=settings, device=device)
    return chain_from(prediction, draft, _stage_shares(build, draft, device)), prediction, notes


def _stage_shares(build: Callable[[], Any], draft: tuple[Stage, ...], device: str) -> list[float] | None:
    """The forward seconds of stages by the roofline of a device; None where its rates are not known."""
    from memfit.job.training import loss_of
    from memfit.predict.devices.parse import parse_device
    from memfit.predict.levels.step_time import gpu_step_time
    from memfit.predict.observe.flops_and_bytes import WorkCounter
    from memfit.profile.stage_flops import work_by_stage

    spec = parse_device(device)
    work = work_by_stage(build, loss_of, draft, WorkCounter)
    seconds = [gpu_step_time(spec, w.half_flops, w.single_flops, w.moved_bytes).value for w in work]
    known = [value for value in seconds if value is not None]
    return known if len(known) == len(seconds) else None
