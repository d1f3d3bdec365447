"""Fits: a model or a training script brought into a budget of bytes; profiled, planned, applied, measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.api.options import checked_options
from memfit.api.predict import predict_peak

if TYPE_CHECKING:
    from memfit.apply.checkpoints import AppliedPlan
    from memfit.fit.fitted import FittedModel
    from memfit.fit.training_loop import LoopFitter
    from memfit.records.fit import Fit, LoopFit
    from memfit.records.plan import Candidate, Chain, Link, Plan, Stage
    from memfit.records.prediction import Prediction


_ADDING_UP = "gradients add up over several batches"


@checked_options
def fit_to_budget(
    model: Any,
    batch: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
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
    from memfit.model.step import job_of
    from memfit.units import parse_bytes

    budget_bytes = parse_bytes(budget) if isinstance(budget, str) else budget
    job = job_of(model, batch, loss, optimizer)
    job.accumulates, job.unsteppable = accumulates, _ADDING_UP if accumulates else ""
    return _fit_job(job, budget_bytes, disk, planner, allow)


@checked_options
def apply_plan(
    model: Any, plan: Plan | str | Path, *, disk: str | Path | None = None, optimizer: Any = None
) -> AppliedPlan:
    """Make a model carry out a plan, or the plan in a file that `memfit fit` wrote; `.undo()` takes it away.

    A plan that was made with the lever 'step-in-backward' needs the optimizer.

    >>> applied = apply_plan(model, "plan.json")  # doctest: +SKIP
    """
    from memfit.apply.apply import apply_to
    from memfit.fit.levers import pull, refuse_pulled
    from memfit.records.plan import Plan, read_plan

    found = plan if isinstance(plan, Plan) else read_plan(plan)
    refuse_pulled(model)
    applied = apply_to(model, found, None if disk is None else str(disk))
    pull(applied.closers, model, optimizer, found)
    return applied


@checked_options
def fit_target(
    target: str,
    budget_bytes: int | None,
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

    from memfit.errors import UsageError
    from memfit.model.step import build_job, check_output, set_threads
    from memfit.records.plan import write_plan

    check_output(output, force)
    set_threads(threads)
    if device is not None and not device.startswith("cpu"):
        if accumulates:
            raise UsageError("gradients that add up are measured, not predicted", hint="leave out --accumulate")
        if allow:
            raise UsageError("levers are pulled where the step is run, not predicted", hint="leave out --allow")
        fit = _fit_prediction(target, settings, device, budget_bytes, planner)
    else:
        if budget_bytes is None:
            raise UsageError("there is no budget to fit into", hint="--budget 2GiB")
        job = build_job(_training_of(target, settings), target)
        job.accumulates, job.unsteppable = accumulates, _ADDING_UP if accumulates else ""
        fit = _fit_job(job, budget_bytes, disk, planner, allow).fit
    write_plan(fit.plan, output)
    return msgspec.structs.replace(fit, plan_file=output)


@checked_options
def fit_script(
    target: str,
    budget_bytes: int | None,
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
    from pathlib import Path

    import msgspec

    from memfit.fit.script import run_fitted
    from memfit.job.description import describe_job
    from memfit.model.step import set_threads
    from memfit.records.plan import write_plan

    describe_job(target)  # is it there, and a file?
    reused = plan_file is not None and not force and Path(plan_file).exists()
    set_threads(threads)
    fitter = _loop_fitter(
        target, budget_bytes, disk, planner, say, measure_every, plan_file if reused else None, only_plan, allow
    )
    ended = run_fitted(target, arguments, fitter)
    if plan_file is not None and not reused and fitter.fits:
        write_plan(fitter.fits[-1].plan, plan_file)
        ended = msgspec.structs.replace(ended, plan_file=plan_file)
    return ended


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
    from memfit.units import parse_bytes

    budget_bytes = parse_bytes(budget) if isinstance(budget, str) else budget
    return _loop_fitter("", budget_bytes, disk, planner, say, measure_every, allow=allow)


def _loop_fitter(
    name: str,
    budget_bytes: int | None,
    disk: str | Path | None,
    planner: str,
    say: Callable[[str], None],
    measure_every: int | None = None,
    plan_file: str | None = None,
    only_plan: bool = False,
    allow: Sequence[str] = (),
) -> LoopFitter:
    from memfit.fit.levers import check_levers
    from memfit.fit.script import budget_of_gpu
    from memfit.fit.training_loop import EVERY_PASS, LoopFitter, LoopOptions

    plan = None
    if plan_file is not None:
        from memfit.records.plan import read_plan

        plan = read_plan(plan_file)
    options = LoopOptions(
        budget_bytes=budget_of_gpu() if budget_bytes is None else budget_bytes,
        name=name,
        only_plan=only_plan,
        ready_plan=None if plan is None else lambda model: _applied_in_loop(model, plan, disk),
        measure_every=EVERY_PASS if measure_every is None else measure_every,
        allow=check_levers(allow),
    )
    return LoopFitter(options, lambda job, budget: _fit_job(job, budget, disk, planner, options.allow, say), say)


def _applied_in_loop(model: Any, plan: Plan, disk: str | Path | None) -> AppliedPlan:
    from memfit.fit.training_loop import optimizer_of

    return apply_plan(model, plan, disk=disk, optimizer=optimizer_of([model]) if plan.applied_levers else None)


def _training_of(target: str, settings: tuple[str, ...]) -> Any:
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


def _fit_job(
    job: Any,
    budget_bytes: int,
    disk: str | Path | None,
    planner: str,
    allow: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
) -> FittedModel:
    """Measure a job, plan, apply, prove; planning again is the planner handed into the loop."""
    from memfit.errors import DoesNotFit
    from memfit.fit.fitted import FittedModel
    from memfit.fit.hold import check_budget, hold_to_budget, reference_for
    from memfit.fit.levers import LeverTrial, check_levers, hold_with_levers, refuse_pulled
    from memfit.plan.operators import OperatorPlanner
    from memfit.plan.planners import levers_for, make_plan
    from memfit.profile.link_speed import measure_disk
    from memfit.profile.profile import profile_job
    from memfit.records.fit import Fit

    allowed = check_levers(allow)
    refuse_pulled(job.model)
    check_budget(job, budget_bytes)
    link = None if disk is None else measure_disk(str(disk))
    profile = profile_job(job)

    def plan_for(chain: Chain, target_bytes: int) -> Plan:
        return make_plan(chain, target_bytes, link=link, planner=planner)

    folder = None if disk is None else str(disk)
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
            operators=OperatorPlanner if planner == "best" else None,
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
        candidates=_with_operators(held.plan, link),
        proof=held.proof,
        num_rounds=held.num_rounds,
        kept_blocks=(*profile.kept_blocks, *held.kept_blocks),
        notes=profile.notes,
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


def _with_operators(plan: Plan, link: Link | None) -> tuple[Candidate, ...]:
    """What every planner of blocks finds, beside the plan that was taken."""
    from memfit.records.plan import Candidate

    if plan.operators is None:
        return _candidates(plan.chain, plan.budget_bytes, link, plan.solver)
    mine = Candidate(solver=plan.solver, fits=True, peak_bytes=plan.peak_bytes, seconds=plan.seconds)
    return (mine, *_candidates(plan.chain, plan.budget_bytes, link, "nested"))


def _candidates(chain: Chain, budget_bytes: int, link: Link | None, chosen: str) -> tuple[Candidate, ...]:
    from memfit.plan.planners import compare_planners

    names = ["keep all", "every block", "sqrt(n)", "equal segments", "greedy segments", "revolve", "nested"]
    if link is not None:
        names += ["offload all", "offload prefix", "offload", "combined"]
    return compare_planners(chain, budget_bytes, link=link, names=list(dict.fromkeys([*names, chosen])))


def _fit_prediction(target: str, settings: tuple[str, ...], device: str, budget_bytes: int | None, planner: str) -> Fit:
    """Plan for a device that is not here, from a predicted timeline; nothing is run."""
    from memfit.profile.predicted import budget_of, host_link
    from memfit.records.fit import Fit

    chain, prediction, notes = predicted_chain(target, settings, device)
    limit_bytes = budget_of(budget_bytes, prediction, device)
    link, more = host_link(prediction)
    plan = _plan_or_levers(chain, limit_bytes, link, planner)
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
    from memfit.profile.fake_step import draft_of
    from memfit.profile.predicted import chain_from

    def build() -> Any:
        return _training_of(target, settings)

    draft, notes = draft_of(build, target)
    prediction = predict_peak(target, settings=settings, device=device)
    return chain_from(prediction, draft, _stage_shares(build, draft, device)), prediction, notes


def _stage_shares(build: Callable[[], Any], draft: tuple[Stage, ...], device: str) -> list[float] | None:
    """The forward seconds of stages by the roofline of a device; None where its rates are not known."""
    from memfit.job.training import loss_of
    from memfit.predict.devices.parse import parse_device
    from memfit.predict.levels.step_time import gpu_step_time
    from memfit.predict.observe.work import WorkCounter
    from memfit.profile.work import work_by_stage

    spec = parse_device(device)
    work = work_by_stage(build, loss_of, draft, WorkCounter)
    seconds = [gpu_step_time(spec, w.half_flops, w.single_flops, w.moved_bytes).value for w in work]
    known = [value for value in seconds if value is not None]
    return known if len(known) == len(seconds) else None
