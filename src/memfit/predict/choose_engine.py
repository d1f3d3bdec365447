"""Chooses the engine of a prediction, and refuses options that it cannot honour, before anything slow."""

from __future__ import annotations

from memfit.errors import UsageError
from memfit.predict.engine import Engine, Question
from memfit.predict.fake.engine import FakeEngine
from memfit.predict.options import PredictOptions, flag_of, given_options
from memfit.predict.phantom.engine import PhantomEngine, can_run_on_phantom
from memfit.predict.phantom.library.build import has_cuda_torch


def refused_options(engine: Engine, options: PredictOptions) -> dict[str, str]:
    """Flags that were given and that an engine cannot honour, each with the reason."""
    given = given_options(options)
    return {flag_of(name): why for name, why in engine.cannot.items() if name in given}


def choose_engine(question: Question) -> Engine:
    """The engine that was asked for; else the phantom GPU where torch has CUDA and it can honour every option."""
    wanted = question.options.engine
    if wanted == "fake" or (wanted == "auto" and question.device.kind != "cuda"):
        return _checked(FakeEngine(), question)
    phantom = PhantomEngine()
    if wanted == "phantom":
        return _checked(phantom, question)
    if can_run_on_phantom(question) and has_cuda_torch() and not refused_options(phantom, question.options):
        return phantom
    return _checked(FakeEngine(), question)


def _checked(engine: Engine, question: Question) -> Engine:
    """Refuse, before anything slow, options that the engine cannot honour."""
    for flag, why in refused_options(engine, question.options).items():
        raise UsageError(f"{flag} is not for the engine {engine.name}: {why}", hint=f"leave {flag} out")
    for flag, why in wrong_for_device(question).items():
        raise UsageError(f"{flag} is not for {question.device.name}: {why}", hint=f"leave {flag} out")
    return engine


def wrong_for_device(question: Question) -> dict[str, str]:
    """Flags that were given and mean nothing on the device, each with the reason."""
    given = given_options(question.options)
    on_cpu = {"alloc_conf": "it configures the allocator of a GPU"}
    on_gpu = {"malloc": "it is a setting of the C heap"}
    wrong = on_cpu if question.device.kind == "cpu" else on_gpu
    return {flag_of(name): why for name, why in wrong.items() if name in given}
