"""Cheapest changes: what single changes save at the peak, what each costs, and how it is applied; pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memfit.records.plan import Plan
from memfit.records.prediction import Prediction, Saving
from memfit.units import MIB

MOST = 3
FIT = ("memfit", "fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapChange:
    """One change that lowers the peak."""

    what: str
    saved_bytes: float
    source: str
    """'predicted', or 'measured' for a plan that was proven."""
    price: str
    apply: str
    """A command, or a line of code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How dear a change is (0 costs nothing), its price in words, and the line of code that makes it."""

    rank: int
    price: str
    apply: str = ""


WAYS = {
    "an update in one kernel": _Way(
        rank=0, price="nothing: the same update in one kernel", apply="torch.optim.AdamW(..., fused=True)"
    ),
    "recomputing the blocks": _Way(
        rank=1, price="time: the forward of each block runs a second time, at most a third of a step (assumed)"
    ),
    "activations in half precision": _Way(
        rank=2,
        price="digits: activations keep 8 bits of precision",
        apply="torch.autocast(device, torch.bfloat16)",
    ),
    "half the batch": _Way(
        rank=3, price="twice the steps for an epoch", apply="halve the batch size, and accumulate two gradients a step"
    ),
    "an optimizer without state": _Way(
        rank=4, price="another training: the learning rate has to be found anew", apply="torch.optim.SGD(...)"
    ),
}
BATCH_NAMES = {"batch-size", "batchsize", "batch", "bs", "b", "train-batch-size", "per-device-train-batch-size"}
"""Options and settings that name the batch, without their dashes."""
UNKNOWN_WAY = _Way(rank=5, price="not known")


def cheapest_changes(
    savings: Sequence[Saving], command: Sequence[str], plan: Plan | None = None
) -> tuple[CheapChange, ...]:
    """The three cheapest changes, the cheapest first; a plan that fits stands for recomputing."""
    found = [(_way(saving.change), saving) for saving in savings]
    found.sort(key=lambda pair: (pair[0].rank, -pair[1].saved_bytes))
    changes = [_change(way, saving, command) for way, saving in found]
    if plan is not None and plan.fits and plan.plain_peak_bytes > plan.peak_bytes:
        changes = [_of_plan(plan, command), *(c for c in changes if not c.what.startswith("recomputing"))]
    return tuple(changes[:MOST])


def _way(change: str) -> _Way:
    return next((way for words, way in WAYS.items() if change.startswith(words)), UNKNOWN_WAY)


def _change(way: _Way, saving: Saving, command: Sequence[str]) -> CheapChange:
    apply = way.apply or fit_command(command, saving.peak_bytes)
    if saving.change.startswith("half the batch"):
        apply = half_batch_command(command) or apply
    return CheapChange(
        what=saving.change, saved_bytes=saving.saved_bytes, source="predicted", price=way.price, apply=apply
    )  # fmt: skip


def _of_plan(plan: Plan, command: Sequence[str]) -> CheapChange:
    slower = f"time: a step takes {100 * (plan.slowdown - 1):.0f} % longer ({plan.chain.time_source})"
    return CheapChange(
        what="recomputing and moving as the plan says",
        saved_bytes=plan.plain_peak_bytes - plan.peak_bytes,
        source=plan.chain.source,
        price=slower,
        apply=fit_command(command, plan.budget_bytes),
    )


def fit_command(command: Sequence[str], budget_bytes: int) -> str:
    """`memfit fit` for a command that runs a Python script, or for one of memfit itself; a template for any other."""
    budget = f"{-(-budget_bytes // MIB)}MiB"
    if tuple(command[:2]) == FIT:
        place = command.index("--") if "--" in command else len(command)
        return shlex.join([*command[:place], "--budget", budget, *command[place:]])
    for number, word in enumerate(command):
        if word.endswith(".py") and Path(command[0]).name.startswith("python"):
            rest = command[number + 1 :]
            return f"memfit fit {shlex.quote(word)} --budget {budget}" + (f" -- {shlex.join(rest)}" if rest else "")
    return f"memfit fit SCRIPT.py --budget {budget} -- ITS ARGUMENTS"


def half_batch_command(command: Sequence[str]) -> str | None:
    """The same command with half the batch, where it names an even one; a fit of memfit becomes a prediction."""
    words = ["memfit", "predict", *command[2:]] if tuple(command[:2]) == FIT else list(command)
    for place, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name.lstrip("-").replace("_", "-") not in BATCH_NAMES:
            continue
        number = value if sign else words[place + 1] if place + 1 < len(words) else ""
        if not number.isdecimal() or int(number) % 2 or int(number) < 2:
            continue
        half = str(int(number) // 2)
        changed = [f"{name}={half}"] if sign else [word, half]
        return shlex.join([*words[:place], *changed, *words[place + len(changed) :]])
    return None


def fit_words(prediction: Prediction) -> list[str]:
    """The command that fits what was predicted, without its budget."""
    settings = [word for name, value in prediction.settings.items() for word in ("--set", f"{name}={value}")]
    arguments = ["--", *prediction.arguments] if prediction.arguments else []
    return [*FIT, prediction.target, *settings, *arguments]
