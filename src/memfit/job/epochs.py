"""Trains what a function built, epoch by epoch, and reports after each.

What a function may return: a training (see `training.py`), a fitting that is no neural network, a generator that
yields its metric after every epoch, or, when it has trained by itself, the final metric, a dictionary of metrics, or
nothing.

Progress of a training: printed to the terminal, and reported to the study whose trial it is.

A built-in training is a trial script like any other: in a study it asks `nni` for its hyperparameters and reports to
it, whether that is memfit's own shim or NNI itself. Outside of a study `nni` is never imported.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import isgenerator
from itertools import count, islice, repeat
from typing import Any

from memfit.errors import UsageError
from memfit.job.training import Fitting, Training, as_training, plain_step
from memfit.units import format_seconds

USUAL_STEPS = 20
"""Steps of an epoch when there is no data set that would end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What became of one epoch."""

    number: int
    """1, 2, 3, ..."""
    num_steps: int | None
    """Optimizer steps in it; None when the user's own code made them."""
    seconds: float
    metrics: dict[str, float]
    """Loss and what else was found; on held-out examples where there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How long to train."""

    epochs: int | None = None
    steps: int | None = None
    """At most this many optimizer steps in all; memory does not change after the second."""


Tell = Callable[[Round], None]


def train_all(built: object, origin: str, extent: Extent, tell: Tell) -> Round | None:
    """Train what was built; returns the last round, or None when nothing was reported."""
    last = None
    for last in _rounds(built, origin, extent):
        tell(last)
    return last


def _rounds(built: object, origin: str, extent: Extent) -> Iterator[Round]:
    if isinstance(built, Fitting):
        return _fitting_rounds(built, extent)
    if isgenerator(built):
        return _generated_rounds(built, origin, extent)
    if built is None or _is_metric(built):
        return iter(() if built is None else [_own_round(1, built, origin, 0.0)])
    return _training_rounds(as_training(built, origin), extent)


def _is_metric(value: object) -> bool:
    """A number, or named numbers; a dictionary with a model in it is a training."""
    if isinstance(value, Mapping):
        return "model" not in value
    return hasattr(value, "__float__") and not callable(value)


def _own_round(number: int, value: object, origin: str, seconds: float) -> Round:
    return Round(number=number, num_steps=None, seconds=seconds, metrics=as_metrics(value, origin))


def as_metrics(value: Any, origin: str) -> dict[str, float]:
    """Named numbers, from a number or a dictionary of them; the one to optimise is called 'default'."""
    named = dict(value) if isinstance(value, Mapping) else {"default": value}
    try:
        return {str(name): float(number) for name, number in named.items()}
    except (TypeError, ValueError):
        hint = "return or yield a number, or a dictionary of numbers"
        raise UsageError(f"{origin} reported what is no metric", found=repr(value)[:80], hint=hint) from None


def _generated_rounds(metrics: Iterator[object], origin: str, extent: Extent) -> Iterator[Round]:
    """The user's function trains; each value it yields ends an epoch."""
    started = time.perf_counter()
    for number, value in enumerate(islice(metrics, extent.epochs), 1):
        yield _own_round(number, value, origin, time.perf_counter() - started)
        started = time.perf_counter()


def _fitting_rounds(fitting: Fitting, extent: Extent) -> Iterator[Round]:
    num_rounds = min(n for n in (fitting.num_rounds, extent.epochs, extent.steps) if n is not None)
    for number in range(1, num_rounds + 1):
        started = time.perf_counter()
        fitting.step()
        metrics = fitting.evaluate() if fitting.evaluate is not None else {}
        yield Round(number=number, num_steps=1, seconds=time.perf_counter() - started, metrics=metrics)


def _training_rounds(training: Training, extent: Extent) -> Iterator[Round]:
    step, losses = plain_step(training), _listen(training)
    left = extent.steps
    for number in _epochs(extent):
        if left == 0:
            return
        started, num_steps = time.perf_counter(), 0
        losses.clear()
        for batch in islice(_batches(training, number, extent), left):
            training.batch = batch
            returned = step()
            if _is_metric(returned):
                losses.append(float(returned))  # a step of the user's own that returns its loss
            num_steps += 1
        if not num_steps:
            raise UsageError(
                "the data gave no batch", found=f"epoch {number}", hint="a smaller batch, or more examples"
            )
        left = None if left is None else left - num_steps
        seconds = time.perf_counter() - started
        yield Round(number=number, num_steps=num_steps, seconds=seconds, metrics=_metrics(training, losses))


def _epochs(extent: Extent) -> Iterable[int]:
    """Numbers of epochs: as many as asked for, as many as the steps take, or one."""
    if extent.epochs is None and extent.steps is not None:
        return count(1)
    return range(1, (extent.epochs or 1) + 1)


def _listen(training: Training) -> list[float]:
    """A list that the loss of every forward pass is put into, as a number."""
    losses: list[float] = []
    training.on_loss = lambda value: losses.append(float(value.detach() if hasattr(value, "detach") else value))
    return losses


def _batches(training: Training, epoch: int, extent: Extent) -> Iterable[object]:
    """The batches of one epoch; without a data set, the one batch again and again."""
    if training.feed is not None:
        return training.feed(epoch)
    return repeat(training.batch, USUAL_STEPS if extent.epochs is not None or extent.steps is None else extent.steps)


def _metrics(training: Training, losses: list[float]) -> dict[str, float]:
    """The loss in training, and what evaluation finds."""
    metrics = {"training loss": sum(losses) / len(losses)} if losses else {}
    if training.evaluate is not None:
        return metrics | training.evaluate()
    return metrics | ({"loss": metrics["training loss"]} if losses else {})


def in_a_study() -> bool:
    """Whether this process is a trial of a running study."""
    return os.environ.get("NNI_PLATFORM", "") not in ("", "unittest")


def proposed_settings() -> dict[str, object]:
    """The hyperparameters the study proposes to this trial; none outside of a study."""
    return dict(import_module("nni").get_next_parameter() or {}) if in_a_study() else {}


class Reporter:
    """Tells the terminal and the study."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self._as_json, self._quiet = as_json, quiet
        self._study = import_module("nni") if in_a_study() else None

    def say(self, sentence: str) -> None:
        """A line for the eye."""
        if not (self._as_json or self._quiet):
            print(sentence, flush=True)

    def round(self, result: Round) -> None:
        """One epoch is done."""
        if self._as_json:
            print(json.dumps(as_record(result)), flush=True)
        else:
            self.say(as_line(result))
        if self._study is not None:
            self._study.report_intermediate_result(for_study(result.metrics))

    def end(self, last: Round | None, size: Mapping[str, float]) -> None:
        """The training is done; the study keeps the size of the network beside the metrics."""
        if self._study is not None and last is not None:
            self._study.report_final_result({**for_study(last.metrics), **size})


def as_line(result: Round) -> str:
    """One epoch in one line."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
    steps = f"{result.num_steps} step{'s' * (result.num_steps != 1)} in " if result.num_steps is not None else ""
    return f"epoch {result.number}  {numbers or 'no metric'}  ({steps}{format_seconds(result.seconds)})"


def as_record(result: Round) -> dict[str, object]:
    """One epoch for a program; what is not finite is text, because JSON has no word for it."""
    metrics = {name: value if abs(value) < float("inf") else str(value) for name, value in result.metrics.items()}
    return {"epoch": result.number, "steps": result.num_steps, "seconds": result.seconds, "metrics": metrics}


def for_study(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics with the one to optimise called 'default': the loss, unless the training named its own."""
    if "default" in metrics or not metrics:
        return dict(metrics)
    first = metrics.get("loss", next(iter(metrics.values())))
    return {"default": first, **metrics}
