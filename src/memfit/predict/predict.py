"""The front door of this room: how does what a caller wrote become a prediction with its what-ifs?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from memfit.errors import UsageError
from memfit.job.description import JobDescription, describe_job, parse_settings
from memfit.predict.allocator.settings import parse_allocator_settings
from memfit.predict.child.instruction_sets import AskProcessor
from memfit.predict.devices.parse import DeviceSpec, parse_device
from memfit.predict.engine import ForecastOptions, forecast
from memfit.predict.lengths import AUTO, NUM_STEPS
from memfit.predict.levels.sharding import check_sharding
from memfit.predict.real_operators import operator_names
from memfit.predict.sweep import check_can_vary, fit_setting, parse_sweep, predict_lengths, sweep_setting
from memfit.records.prediction import Assumption, Prediction

SCRIPT_STEPS, FUNCTION_STEPS = 3, 2


def foresee(
    target: str | Callable[..., Any],
    *,
    arguments: tuple[str, ...] = (),
    settings: Mapping[str, Any] | tuple[str, ...] = (),
    device: str = "cpu",
    memory: str | None = None,
    num_steps: int | None = None,
    malloc: str = "default",
    alloc_conf: str = "",
    probes: bool = True,
    allow_real: tuple[str, ...] = (),
    unknown_is: bool = True,
    show_output: bool = False,
    most_seconds: float | None = None,
    sweep: str | None = None,
    fit_batch: bool = False,
    lengths: str | None = None,
    ranks: int = 1,
    shard: str | None = None,
    engine: str = "auto",
    answer: Sequence[str] = (),
    ask_processor: AskProcessor | None = None,
    tell: Callable[[str], None] | None = None,
) -> Prediction:
    """Predict one job on one device; on request over a range of one setting, or the largest batch that fits.

    `tell` is told every second what the prediction is doing.
    `ask_processor` knows which instruction sets work here (measure.instruction_sets.ask_processor).
    """
    given = dict(settings) if isinstance(settings, Mapping) else parse_settings(tuple(settings))
    function = None if isinstance(target, str) else target
    job = describe_job(target, given, tuple(arguments)) if isinstance(target, str) else _described(target, given)
    spec = parse_device(device, memory)
    by_loader = lengths == AUTO
    options = ForecastOptions(
        num_steps=_length_steps(job, num_steps, (sweep, fit_batch)) if by_loader else num_steps or _usual_steps(job),
        choose_batches=by_loader,
        with_probes=probes,
        allow_real=operator_names(allow_real),
        truth=unknown_is,
        pinned_malloc=malloc == "pinned",
        show_output=show_output,
        most_seconds=most_seconds,
        allocator=parse_allocator_settings(alloc_conf),
        num_ranks=ranks,
        sharding=check_sharding(ranks, shard),
        alloc_conf=alloc_conf,
        on_phantom=_choose_phantom(engine, spec, can_run=function is None and shard is None),
        answers=_answers(answer),
        ask_processor=ask_processor,
        tell=tell,
    )
    asked = parse_sweep(sweep) if sweep else None
    if asked or fit_batch:
        check_can_vary(job, spec, fit_batch, function is not None)
    if lengths and not by_loader:
        _check_lengths(function is not None, asked or fit_batch)
        return predict_lengths(lengths, job, spec, options)
    prediction = forecast(job, spec, options, function)
    if engine == "auto" and spec.kind == "cuda" and not options.on_phantom:
        prediction = _with_assumption(prediction, _other_engine(shard, is_callable=function is not None))
    if fit_batch:
        return msgspec.structs.replace(prediction, sweep=fit_setting("batch_size", job, spec, options))
    if asked:
        return msgspec.structs.replace(prediction, sweep=sweep_setting(*asked, job, spec, options))
    return prediction


def _other_engine(shard: str | None, *, is_callable: bool) -> Assumption:
    """Why fake tensors were taken where the phantom GPU would be nearer to the truth, and how to have it."""
    from memfit.predict.phantom.library.installed import why_no_phantom

    missing = why_no_phantom()
    if shard is not None:
        why, how = "--shard is arithmetic", "a script that shards by itself (FSDP2, DDP), with --ranks alone"
    elif is_callable:
        why, how = "a Python callable was given", "the same in a file, as 'FILE:function'"
    elif missing is not None:
        why, how = missing.what + (f" ({missing.found})" if missing.found else ""), ""
    else:
        why, how = "it was not asked for", "--engine phantom"
    how = " and ".join(part for part in (how, missing.hint if missing is not None else "") if part)
    text = (
        f"foreseen on fake tensors, since {why}; the phantom GPU runs torch's own CUDA build, torch.compile included, "
        "and is nearer to the truth" + (f": {how}" if how else "")
    )
    return Assumption(kind="engine", text=text)


def _length_steps(job: JobDescription, num_steps: int | None, others: tuple[Any, ...]) -> int:
    """The steps in which a script sees batches of every length."""
    _check_lengths(False, any(others))
    if job.kind != "script":
        hint = "--lengths FILE, with {length} among the settings: --set length={length}"
        raise UsageError("only a script has a data loader to ask for lengths", found=job.target, hint=hint)
    if num_steps is not None and num_steps < NUM_STEPS:
        raise UsageError(f"--lengths auto needs {NUM_STEPS} steps", found=f"--steps {num_steps}", hint="leave it out")
    return num_steps or NUM_STEPS


def _check_lengths(is_callable: bool, others: Any) -> None:
    if is_callable:
        raise UsageError("a Python callable is predicted as it is", hint="write it to a file and give 'FILE:function'")
    if others:
        raise UsageError("--lengths varies the length alone", hint="leave --sweep and --fit-batch out")


def _with_assumption(prediction: Prediction, said: Assumption) -> Prediction:
    return msgspec.structs.replace(prediction, assumptions=(*prediction.assumptions, said))


def _choose_phantom(engine: str, device: DeviceSpec, *, can_run: bool) -> bool:
    """The phantom GPU where it is asked for, or where it is the better answer: a GPU, its kind of job, a CUDA build."""
    if engine == "fake" or (engine == "auto" and (device.kind != "cuda" or not can_run)):
        return False
    from memfit.predict.phantom.library.installed import has_cuda_torch

    if engine == "phantom" and not can_run:
        raise UsageError(
            "the phantom GPU runs scripts, functions and workloads as they are",
            hint="leave --shard out, or --engine fake",
        )
    return engine == "phantom" or has_cuda_torch()


def _answers(texts: Sequence[str]) -> dict[str, float] | None:
    """What reads of unknown values give, by place; None leaves it to MEMFIT_ANSWERS."""
    if not texts:
        return None
    from memfit.predict.phantom.value_reads import parse_answers

    return parse_answers(",".join(texts))


def _described(function: Callable[..., Any], settings: dict[str, Any]) -> JobDescription:
    name = getattr(function, "__qualname__", type(function).__name__)
    return JobDescription(kind="function", target=name, function=name, settings=settings)


def _usual_steps(job: JobDescription) -> int:
    """Two steps show everything; a script gets one more, for what it does only once."""
    return SCRIPT_STEPS if job.kind == "script" else FUNCTION_STEPS
