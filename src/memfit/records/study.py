"""Study of many runs: search space, setup, and how each trial went.

    SearchSpace     parameters in the order they were written; five kinds cover every type of NNI, a sixth those that
                    only a custom tuner knows
    StudySettings   what is run, in which space, by which tuner, and what memory means in it
    Proposal        one point of the space, as the tuner gave it
    TrialRecord     a proposal and everything that became of it

A trial is stored with what the tuner drew and what it noted, so that a study can be resumed from its trials alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from memfit.records.figure import Figure, unknown
from memfit.records.files.notebook import NotebookRecord
from memfit.records.run_parts.live import LiveState

STUDY_FORMAT = "memfit-study"
STUDY_VERSION = 1

Direction = Literal["minimize", "maximize"]
MemoryUse = Literal["limit", "objective", "report"]
TrialOutcomeKind = Literal[
    "running",
    "done",
    "failed",
    "out of memory",
    "over the limit",
    "out of time",
    "stopped early",
    "rejected by prediction",
    "cancelled",
]
INFEASIBLE: frozenset[TrialOutcomeKind] = frozenset({"out of memory", "over the limit", "rejected by prediction"})
"""Outcomes that say the point needs too much memory: an answer to the question, never a failure."""

PATH_SEPARATOR = "/"
"""Joins the names of nested parameters: 'model/conv/width' is `width` in the branch 'conv' of `model`."""


class Choice(msgspec.Struct, frozen=True, kw_only=True, tag="choice", tag_field="kind"):
    """One of several options, each as likely; an option is any JSON value."""

    name: str
    options: tuple[Any, ...]


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a nested choice, with the parameters that exist only there."""

    name: str
    parameters: tuple[Parameter, ...] = ()


class Nested(msgspec.Struct, frozen=True, kw_only=True, tag="nested", tag_field="kind"):
    """One of several branches, each as likely; the value is a dict with `_name` and the branch's own parameters."""

    name: str
    branches: tuple[Branch, ...]


class Integers(msgspec.Struct, frozen=True, kw_only=True, tag="integers", tag_field="kind"):
    """A whole number from `low` up to, but without, `end`."""

    name: str
    low: int
    end: int


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="span", tag_field="kind"):
    """A number between two ends: NNI's uniform, and with `step` and `log` its q and log forms."""

    name: str
    low: float
    high: float
    log: bool = False
    step: float | None = None
    """Rounded to multiples of the step (from zero, half to even), then clipped to the ends."""
    whole: bool = False
    """Handed to the trial as an int."""


class Bell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="bell", tag_field="kind"):
    """A number around `mean`, without ends: NNI's normal, and with `step` and `log` its q and log forms."""

    name: str
    mean: float
    deviation: float
    log: bool = False
    step: float | None = None


class Opaque(msgspec.Struct, frozen=True, kw_only=True, tag="opaque", tag_field="kind"):
    """A parameter of a type that only a custom tuner knows; it is handed over as it was written."""

    name: str
    written: Any


Parameter = Choice | Nested | Integers | Span | Bell | Opaque


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which hyperparameters are varied, and over what; order is that of the file and decides the order of grids."""

    parameters: tuple[Parameter, ...] = ()
    """Empty only where a custom tuner has its space in its code."""
    written: dict[str, Any] | None = None
    """The space as its file writes it, for a custom tuner; None where memfit's own tuners draw."""

    def __iter__(self) -> Iterator[Parameter]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self.parameters)


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tuner or assessor: a built-in by name, or a class of the user's own."""

    name: str = ""
    """The built-in's name, in any case: 'TPE', 'GridSearch', 'Medianstop'."""
    class_name: str = ""
    """'module.Class' of a custom tool; then `name` is empty."""
    code_folder: str = ""
    """Where the module of a custom tool is imported from."""
    arguments: dict[str, Any] = {}


class Goal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a trial reports, and which way is better."""

    metric: str = "default"
    """The key taken from a metric that is a dict; a plain number is always taken."""
    direction: Direction = "minimize"


class MemoryRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What memory means in a study: a limit (constraint), an objective beside the metric (Pareto), or a report."""

    use: MemoryUse = "report"
    limit_bytes: int | None = None
    """Needed for 'limit', allowed for 'objective'."""


class GpuWish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a trial sees GPUs."""

    num_gpus: int | None = None
    """None: not scheduled, all are visible; 0: none visible; n: n of them for each trial."""
    indices: tuple[int, ...] | None = None
    trials_per_gpu: int = 1
    use_active: bool = False
    """Whether GPUs that other programs use are meant to be taken; else a note says that they are."""


class StudySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a study is set up, whichever file it was read from."""

    format: str = STUDY_FORMAT
    format_version: int = STUDY_VERSION
    name: str = ""
    source: str = ""
    """The file it was read from, and its schema: 'config.yml (NNI v2)'."""
    space: SearchSpace
    command: str = ""
    """A line for the shell, run in `code_folder`; empty when a workload is given."""
    workload: str = ""
    """A built-in training, or 'FILE:function'; empty when a command is given."""
    fixed: dict[str, Any] = {}
    """Settings of the workload that are the same in every trial."""
    code_folder: str = "."
    tuner: Tool = Tool(name="TPE")
    assessor: Tool | None = None
    goal: Goal = Goal()
    memory: MemoryRule = MemoryRule()
    seed: int = 0
    concurrency: int = 1
    max_trials: int | None = None
    max_seconds: float | None = None
    max_trial_seconds: float | None = None
    gpus: GpuWish = GpuWish()
    nni: Literal["shim", "installed"] = "shim"
    """Who answers `import nni` in a trial: memfit's own stand-in, or the NNI that is installed."""
    output_folder: str = ""
    notes: tuple[str, ...] = ()
    """What was in the file and has no effect here, one sentence each."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One point to try, as the tuner gave it."""

    number: int
    """0, 1, 2, ... in the order of asking; NNI's sequence id and parameter id."""
    parameters: dict[str, Any]
    """What the trial gets from `get_next_parameter`."""
    draws: dict[str, float] = {}
    """What was drawn for each parameter that exists at this point, by its path: the index of an option or branch, the
    whole number, the number before rounding, or, for a bell, the probability below it."""
    memo: dict[str, Any] = {}
    """What the tuner noted for itself: bracket and round, parent, budget."""


class Intermediate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One intermediate result."""

    sequence: int
    value: float | None
    """None when it was not a finite number; then `reason` says what it was."""
    reason: str = ""
    time_seconds: float | None = None
    """Since the trial began."""
    others: dict[str, Any] = {}
    """The other keys, when a dict was reported."""


class TrialOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a trial ended."""

    kind: TrialOutcomeKind
    message: str = ""
    """One sentence with the evidence."""
    exit_code: int | None = None
    signal: int | None = None


def _not_read(unit: str) -> Figure:
    return unknown(unit, "the trial was not measured")


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial: the point that was tried, and everything that became of it."""

    proposal: Proposal
    outcome: TrialOutcome = TrialOutcome(kind="running")
    trial_id: str = ""
    """Five letters and digits, unique in the study; NNI_TRIAL_JOB_ID."""
    metric: float | None = None
    metric_reason: str = ""
    """Why there is no metric, where there is none."""
    others: dict[str, Any] = {}
    """Other keys of the final result, when it was a dict."""
    intermediates: tuple[Intermediate, ...] = ()
    peak: Figure = msgspec.field(default_factory=lambda: _not_read("bytes"))
    average: Figure = msgspec.field(default_factory=lambda: _not_read("bytes"))
    gpu_peak: Figure = msgspec.field(default_factory=lambda: _not_read("bytes"))
    """The most that it held on one GPU; `peak` and `average` are the memory of the host."""
    background: Figure = msgspec.field(default_factory=lambda: _not_read("bytes"))
    """Memory that other programs held meanwhile."""
    predicted_peak: Figure = msgspec.field(default_factory=lambda: unknown("bytes", "nothing was predicted"))
    duration: Figure = msgspec.field(default_factory=lambda: _not_read("seconds"))
    epoch_time: Figure = msgspec.field(default_factory=lambda: _not_read("seconds"))
    energy: Figure = msgspec.field(default_factory=lambda: _not_read("joules"))
    started_at: str = ""
    """ISO 8601 with offset; empty when it never started."""
    ended_at: str = ""
    end_order: int | None = None
    """0, 1, 2, ... in the order trials were reported to the tuner; None while it runs."""
    run_folder: str = ""
    """The run record of `memfit measure`, relative to the study's folder."""
    worker: str = ""
    num_attempts: int = 1
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return self.proposal.number

    @property
    def kind(self) -> TrialOutcomeKind:
        return self.outcome.kind

    @property
    def parameters(self) -> dict[str, Any]:
        return self.proposal.parameters

    @property
    def is_finished(self) -> bool:
        return self.kind != "running"

    @property
    def was_run(self) -> bool:
        """Whether a process was started for it; a point rejected by prediction never was."""
        return self.kind != "rejected by prediction"

    @property
    def is_infeasible(self) -> bool:
        """Whether the point needs too much memory."""
        return self.kind in INFEASIBLE

    @property
    def flat_parameters(self) -> dict[str, Any]:
        """One value per path: the branch's name for a nested choice, and its parameters by their own paths."""
        return flatten_parameters(self.parameters)


class Assessment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a running trial goes on."""

    stop: bool
    reason: str = ""


class Study(NotebookRecord, msgspec.Struct, frozen=True, kw_only=True):
    """A whole study, as it is read back."""

    study_id: str
    settings: StudySettings
    trials: tuple[TrialRecord, ...]
    folder: str = ""
    created_at: str = ""


class StudyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of studies."""

    folder: str
    study_id: str
    name: str = ""
    state: Literal["running", "done", "stopped", "not readable"]
    """Done: as many trials ended as were asked for, or every point of the space was tried; stopped: it does not run,
    and more may be started."""
    reason: str = ""
    """Why it cannot be read, where it cannot."""
    num_trials: int = 0
    """Trials that have ended."""
    num_wanted: int | None = None
    num_failed: int = 0
    """Failed ones among them, those without enough memory included."""
    created_at: str = ""


def flatten_parameters(parameters: dict[str, object], prefix: str = "") -> dict[str, object]:
    """One value per path; a dict with `_name` is a branch, every other value stands for itself."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, dict) and isinstance(value.get("_name"), str):
            path = f"{prefix}{name}"
            flat[path] = value["_name"]
            inner = {key: item for key, item in value.items() if key != "_name"}
            flat |= flatten_parameters(inner, f"{path}{PATH_SEPARATOR}{value['_name']}{PATH_SEPARATOR}")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def finite_or_reason(value: object) -> tuple[float | None, str]:
    """A reported value as a finite number, or None and what it was instead."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None, f"{value!r} is not a number"
    try:
        number = float(value)
    except OverflowError:
        return None, "a number too large to keep"
    if not math.isfinite(number):
        return None, f"{number} is not a finite number"
    return number, ""


# How far is a running study?


class LiveTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a trial that runs."""

    number: int
    seconds: float | None = None
    """Since this session knows of it; None for a trial on another machine."""
    state: LiveState | None = None
    """None where the sampler was not asked, or it has said nothing yet."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A study while it runs, for the eye."""

    num_finished: int
    num_wanted: int | None
    """None when the study goes on until the tuner, or the clock, ends it."""
    num_running: int
    seconds: float
    """Since this session began."""
    seconds_left: float | None
    """None when there is nothing to estimate from."""
    live: tuple[LiveTrial, ...] = ()
    is_ending: bool = False
