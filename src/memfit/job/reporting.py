"""Progress of a training: printed to the terminal, and reported to the study whose trial it is.

A built-in training is a trial script like any other: in a study it asks `nni` for its hyperparameters and reports to
it, whether that is memfit's own shim or NNI itself. Outside of a study `nni` is never imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module

from memfit.job.rounds import Round
from memfit.units import format_seconds


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
