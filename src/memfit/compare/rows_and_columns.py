"""Rows and columns of a grid: which optimizers, which techniques, and which cells make no sense here. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memfit.errors import UsageError
from memfit.job.description import JobDescription, setting_of
from memfit.job.recipes.optimizer_names import TORCH_CLASSES, parse_optimizer, split_outside
from memfit.job.recipes.recipe import (
    PLAIN,
    ChosenTechnique,
    DeviceKind,
    Recipe,
    contradiction,
    missing_on,
    parse_techniques,
    techniques_text,
)

OWN = "own"
"""The row of the job's own optimizer."""
OPTIMIZERS = (
    "sgd", "sgd-momentum", "adam", "adamw", "adamw-fused", "adagrad", "rmsprop", "adadelta", "adamax", "nadam",
    "radam", "adafactor", "asgd", "rprop",
)  # fmt: skip
TECHNIQUES: dict[DeviceKind, tuple[str, ...]] = {
    "cpu": (PLAIN, "bf16", "pure-bf16", "checkpoint", "accumulate=4", "step-in-backward"),
    "cuda": (PLAIN, "bf16", "fp16", "checkpoint", "accumulate=4", "step-in-backward"),
}
"""Columns where none are named; float16 products are slow on a CPU."""
SCRIPT_TECHNIQUES = ("pinned-malloc",)
"""What can be put on a script from outside."""
NOT_ON_SCRIPTS = "a script has its own loop: give FILE:function that returns (model, optimizer, loss, batch)"


class CellPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One cell that is to be filled, or why it is not."""

    optimizer: str
    technique: str
    choices: tuple[ChosenTechnique, ...]
    state: str = "done"
    reason: str = ""
    examples_ratio: float | None = 1.0
    """Examples of a step over those of the job as it is; None where the job's batch size is not known."""

    @property
    def place(self) -> tuple[str, str]:
        """Row and column."""
        return self.optimizer, self.technique

    @property
    def recipe(self) -> Recipe:
        """What is put on the job."""
        return Recipe(optimizer="" if self.optimizer == OWN else self.optimizer, techniques=self.choices)


def split_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Names from repeated options and from lists with commas; a comma within brackets separates nothing."""
    found = [word.strip() for text in texts for word in split_outside(text, ",")]
    for word in found:
        if word.count("(") != word.count(")"):
            raise UsageError("a bracket is not closed", found=word, hint="name(option=value)")
    return tuple(dict.fromkeys(word for word in found if word))


def plan_cells(
    job: JobDescription, kind: DeviceKind, optimizers: Sequence[str], techniques: Sequence[str], *, can_compile: bool
) -> tuple[CellPlan, ...]:
    """All cells, row by row; those that cannot be filled say why."""
    columns = [parse_techniques(text) for text in techniques]
    if job.kind == "script" and set(optimizers) != {OWN}:
        raise UsageError("the optimizer of a script is its own", found=", ".join(optimizers), hint=NOT_ON_SCRIPTS)
    return tuple(_plan(job, kind, name, choices, can_compile) for name in optimizers for choices in columns)


def _plan(
    job: JobDescription, kind: DeviceKind, name: str, choices: tuple[ChosenTechnique, ...], can_compile: bool
) -> CellPlan:
    plan = CellPlan(
        optimizer=name, technique=techniques_text(choices), choices=choices, examples_ratio=_examples(job, choices)
    )  # fmt: skip
    if reason := contradiction(choices) or _against_optimizer(name, choices):
        return msgspec.structs.replace(plan, state="contradictory", reason=reason)
    if reason := missing_on(choices, kind) or _missing(job, choices, can_compile):
        return msgspec.structs.replace(plan, state="not here", reason=reason)
    return plan


def _examples(job: JobDescription, choices: tuple[ChosenTechnique, ...]) -> float | None:
    """A step of half the batch is half the work: times are compared for as many examples."""
    batch = next((choice.value for choice in choices if choice.name == "batch"), None)
    if batch is None:
        return 1.0
    usual = setting_of(job, "batch_size")
    return batch / usual if isinstance(usual, (int, float)) and usual > 0 else None


def _against_optimizer(name: str, choices: tuple[ChosenTechnique, ...]) -> str:
    if "muon" in name.lower() and any(choice.name == "step-in-backward" for choice in choices):
        return "Muon needs matrices, and one-dimensional parameters would get an optimizer of their own kind each"
    return ""


def _missing(job: JobDescription, choices: tuple[ChosenTechnique, ...], can_compile: bool) -> str:
    others = [choice.text for choice in choices if choice.name not in SCRIPT_TECHNIQUES]
    if job.kind == "script" and others:
        return f"{', '.join(others)}: {NOT_ON_SCRIPTS}"
    if any(choice.name == "compile" for choice in choices) and not can_compile:
        return "compile: only the phantom GPU, with a CUDA build of torch, predicts what the compiler makes"
    return ""


def code_of_optimizer(name: str) -> str:
    """The line that makes an optimizer: 'optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)'."""
    spec = parse_optimizer(name)
    if spec.base not in TORCH_CLASSES or spec.rest is not None:
        return f"optimizer = {name}  # over model.parameters()"
    options = "".join(f", {option}={value!r}" for option, value in spec.all_options.items())
    return f"optimizer = torch.optim.{TORCH_CLASSES[spec.base]}(model.parameters(), lr=...{options})"


def job_for(job: JobDescription, plan: CellPlan) -> JobDescription:
    """The job of one cell."""
    if job.kind == "script":
        return job
    settings = dict(job.settings)
    batch = plan.recipe.value_of("batch")
    if batch is not None:
        settings["batch_size"] = int(batch)
    return msgspec.structs.replace(job, settings=settings, recipe=plan.recipe)
