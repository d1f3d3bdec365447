"""Entry point of prediction: describe the job, choose an engine, run it, add the sweep or the lengths."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import msgspec

from memfit.errors import UsageError
from memfit.job.description import JobDescription, SettingValue, describe_job, parse_settings
from memfit.job.sharding import check_sharding
from memfit.predict.allocator.settings import parse_allocator_settings
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.child.instruction_sets import AskProcessor
from memfit.predict.child.messages import FUNCTION_STEPS, TraceReply
from memfit.predict.choose_engine import choose_engine, other_engine, would_be_nearer_on_phantom
from memfit.predict.devices.parse import parse_device
from memfit.predict.engine import Engine, Question
from memfit.predict.fake.engine import FakeEngine
from memfit.predict.lengths import NUM_STEPS
from memfit.predict.levels.assemble import assemble
from memfit.predict.levels.network import with_network
from memfit.predict.options import PredictOptions
from memfit.predict.phantom.value_reads import parse_answers
from memfit.predict.ranks.every_rank import (
    RankRun,
    RunRank,
    check_rank,
    digest_of,
    predict_every_rank,
    predict_one,
)
from memfit.predict.ranks.expert_routing import read_routing
from memfit.predict.real_operators import operator_names
from memfit.predict.sweep import check_can_vary, fit_setting, parse_sweep, predict_lengths, sweep_setting
from memfit.records.prediction import Prediction, RankPredictions
from memfit.torch_support import require_supported_torch

SCRIPT_STEPS = 3
"""One more than a function gets, for what a script does only once."""


def predict(
    target: str | Callable[..., object],
    options: PredictOptions,
    *,
    settings: Mapping[str, object] | tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    ask_processor: AskProcessor | None = None,
    tell: Callable[[str], None] | None = None,
) -> Prediction:
    """Predict one job on one device; on request over a range of one setting, or the largest batch that fits.

    `tell` is called every second with what the prediction is doing.
    `ask_processor` knows which instruction sets work here (measure.instruction_sets.ask_processor).
    """
    require_supported_torch("prediction")
    question = ask(target, options, settings=settings, arguments=arguments, ask_processor=ask_processor, tell=tell)
    if question.options.rank == "all":
        raise UsageError("one rank is predicted here", found="rank 'all'", hint="memfit.predict_ranks")
    engine = choose_engine(question)
    if question.options.lengths and not question.options.choose_batches:
        return predict_lengths(question.options.lengths, question, predict_by(engine))
    started = time.perf_counter()
    if question.options.ranks == 1:
        prediction = assemble(question, engine.run(question), started)
    else:
        prediction = predict_one(question, run_rank_by(engine))
    if would_be_nearer_on_phantom(engine, question):
        said = other_engine(question)
        prediction = msgspec.structs.replace(prediction, assumptions=(*prediction.assumptions, said))
    if question.options.fit_batch:
        return msgspec.structs.replace(prediction, sweep=fit_setting("batch_size", question, predict_by(engine)))
    if question.options.sweep:
        asked = parse_sweep(question.options.sweep)
        return msgspec.structs.replace(prediction, sweep=sweep_setting(*asked, question, predict_by(engine)))
    return prediction


def predict_ranks(
    target: str | Callable[..., object],
    options: PredictOptions,
    *,
    settings: Mapping[str, object] | tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    ask_processor: AskProcessor | None = None,
    tell: Callable[[str], None] | None = None,
) -> RankPredictions:
    """Predict every rank of a job: one prediction for each class of ranks that are alike."""
    require_supported_torch("prediction")
    options = msgspec.structs.replace(options, rank="all")
    question = ask(target, options, settings=settings, arguments=arguments, ask_processor=ask_processor, tell=tell)
    for flag, given in (("--sweep", options.sweep), ("--fit-batch", options.fit_batch), ("--lengths", options.lengths)):
        if given:
            raise UsageError(f"{flag} is for one rank", found="--rank all", hint="--rank 0, or another number")
    engine = choose_engine(question)
    with ForkServer(question.options.most_seconds) as server:
        can_fork = engine.name == "fake" and question.job.kind != "script" and question.function is None
        asked = replace(question, fork_server=server) if can_fork else question
        return predict_every_rank(asked, run_rank_by(engine))


def run_rank_by(engine: Engine) -> RunRank:
    """A function that predicts one rank by this engine."""

    def run(question: Question, mail: dict[str, str]) -> RankRun:
        started = time.perf_counter()
        traced = with_network(engine.run(replace(question, mail=mail)))
        prediction = assemble(question, traced, started)
        return RankRun(prediction=prediction, evidence=traced.evidence, digest=digest_of(traced.timeline))

    return run


def predict_by(engine: Engine) -> Callable[[Question], Prediction]:
    """A function that predicts by this engine."""
    return lambda question: predict_once(engine, question)


def predict_once(engine: Engine, question: Question) -> Prediction:
    """One job on one device by one engine."""
    started = time.perf_counter()
    return assemble(question, engine.run(question), started)


def predict_reply(engine: FakeEngine, question: Question, reply: TraceReply) -> Prediction:
    """One job on one device, out of a trace that is there already."""
    return assemble(question, engine.size(question, reply), time.perf_counter())


def ask(
    target: str | Callable[..., object],
    options: PredictOptions,
    *,
    settings: Mapping[str, object] | tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    ask_processor: AskProcessor | None = None,
    tell: Callable[[str], None] | None = None,
) -> Question:
    """What a caller wrote as a question; whatever is wrong in it is refused here, before anything slow."""
    is_mapping = isinstance(settings, Mapping)
    given = cast("dict[str, SettingValue]", dict(settings)) if is_mapping else parse_settings(tuple(settings))
    function = None if isinstance(target, str) else target
    job = describe_job(target, given, tuple(arguments)) if isinstance(target, str) else _described(target, given)
    options = msgspec.structs.replace(options, num_steps=_num_steps(job, options))
    question = Question(
        job=job,
        device=parse_device(options.device, options.memory),
        options=options,
        function=function,
        ask_processor=ask_processor,
        tell=tell,
    )
    _check(question)
    return question


def _check(question: Question) -> None:
    """Refuse what cannot be read or does not go together."""
    options = question.options
    if options.threads is not None and options.threads < 0:
        raise UsageError(
            "there is no such number of threads", found=str(options.threads), hint="1, 2, ...; 0 for torch's"
        )
    operator_names(options.allow_real)
    parse_answers(",".join(options.answer))
    parse_allocator_settings(options.alloc_conf)
    check_sharding(options.ranks, options.shard)
    check_rank(options.ranks, options.rank)
    read_routing(options.routing, options.this_rank)
    if options.shard is not None and question.job.kind == "script":
        raise UsageError("a script shards itself", found=f"--shard {options.shard}", hint="--ranks alone")
    if options.sweep:
        parse_sweep(options.sweep)
    if options.sweep or options.fit_batch:
        check_can_vary(question.job, question.device, options.fit_batch, question.function is not None)
    if options.lengths:
        _check_lengths(question)


def _check_lengths(question: Question) -> None:
    options, job = question.options, question.job
    if question.function is not None:
        raise UsageError("a Python callable is predicted as it is", hint="write it to a file and give 'FILE:function'")
    if options.sweep or options.fit_batch:
        raise UsageError("--lengths varies the length alone", hint="leave --sweep and --fit-batch out")
    if not options.choose_batches:
        return
    if job.kind != "script":
        hint = "--lengths FILE, with {length} among the settings: --set length={length}"
        raise UsageError("only a script has a data loader to ask for lengths", found=job.target, hint=hint)
    if question.num_steps < NUM_STEPS:
        found = f"--steps {question.num_steps}"
        raise UsageError(f"--lengths auto needs {NUM_STEPS} steps", found=found, hint="leave it out")


def _num_steps(job: JobDescription, options: PredictOptions) -> int:
    """As many as were asked for, or as show everything."""
    usual = SCRIPT_STEPS if job.kind == "script" else FUNCTION_STEPS
    return options.num_steps or (NUM_STEPS if options.choose_batches else usual)


def _described(function: Callable[..., object], settings: dict[str, SettingValue]) -> JobDescription:
    name = getattr(function, "__qualname__", type(function).__name__)
    return JobDescription(kind="function", target=name, function=name, settings=settings)
