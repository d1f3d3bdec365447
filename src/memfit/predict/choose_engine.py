"""Chooses the engine of a prediction, refuses options that it cannot honour, and says why it was not the other one."""

from __future__ import annotations

from memfit.errors import UsageError
from memfit.predict.engine import Engine, Question
from memfit.predict.fake.engine import FakeEngine
from memfit.predict.options import PredictOptions, flag_of, given_options
from memfit.predict.phantom.engine import PhantomEngine, can_run_on_phantom
from memfit.predict.phantom.library.build import has_cuda_torch, why_no_phantom
from memfit.records.prediction import Assumption


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
    on_gpu = {"malloc": "it is a setting of the C heap", "threads": "they are those of operators on the CPU"}
    wrong = on_cpu if question.device.kind == "cpu" else on_gpu
    return {flag_of(name): why for name, why in wrong.items() if name in given}


def other_engine(question: Question) -> Assumption:
    """Why fake tensors were taken where the phantom GPU would be nearer to the truth, and how to have it."""
    missing = why_no_phantom()
    if question.function is not None:
        why, how = "a Python callable was given", "the same in a file, as 'FILE:function'"
    elif kept_off := refused_options(PhantomEngine(), question.options):
        flag, reason = next(iter(kept_off.items()))
        why, how = f"{flag} is not for the phantom GPU ({reason})", f"leave {flag} out"
    elif missing is not None:
        why, how = missing.what + (f" ({missing.found})" if missing.found else ""), ""
    else:
        why, how = "it was not asked for", "--engine phantom"
    how = " and ".join(part for part in (how, missing.hint if missing is not None else "") if part)
    text = (
        f"predicted on fake tensors, since {why}; the phantom GPU runs torch's own CUDA build, torch.compile included, "
        "and is nearer to the truth" + (f": {how}" if how else "")
    )
    return Assumption(kind="engine", text=text)


def would_be_nearer_on_phantom(engine: Engine, question: Question) -> bool:
    """Whether fake tensors were taken for a GPU though they were not asked for."""
    return engine.name == "fake" and question.options.engine == "auto" and question.device.kind == "cuda"
