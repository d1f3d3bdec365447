"""Published results run again: statements with evidence and verdict, and the tables of the results."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from memfit.records.figure import Figure, unknown
from memfit.records.grid import Grid
from memfit.records.plan import Candidate, Link

StatementVerdict = Literal["holds", "does not hold", "cannot tell"]


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement of a published work, what was found here, and whether it holds."""

    says: str
    """What the source says, in one sentence of our own words."""
    source: str
    published: str = ""
    """The source's own figures for it, where they are known."""
    evidence: tuple[str, ...] = ()
    """What was found here, in sentences with figures."""
    verdict: StatementVerdict
    reason: str = ""
    """Why there is no verdict, and what would give one; empty with the other verdicts."""

    def __post_init__(self) -> None:
        if (self.verdict == "cannot tell") != bool(self.reason):
            raise ValueError("'cannot tell' needs a reason, and only that verdict has one")


class PublishedResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A published result that `memfit reproduce NAME` runs again."""

    name: str
    question: str
    sources: tuple[str, ...]
    does: str
    """What running it does."""
    takes: str
    """How long that takes, about."""
    statements: tuple[str, ...] = ()
    """The statements of the sources that are judged."""


# Offloading: every answer of every planner at every budget and link, and how they rank.
#
# All seconds and bytes are those of the event simulator, on chains that were predicted: nothing of it was run.


class Network(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network of a comparison, as it would train with everything kept."""

    name: str
    settings: tuple[str, ...] = ()
    num_examples: int
    """In one step."""
    num_stages: int
    plain_peak_bytes: int
    plain_seconds: float
    smallest_budget_bytes: int
    """The least that a plan which recomputes and moves needs."""
    notes: tuple[str, ...] = ()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """All planners under one budget, fastest first."""

    budget_bytes: int
    candidates: tuple[Candidate, ...]


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One network behind one link, budgets from the smallest to the plain peak."""

    network: str
    link: Link
    cells: tuple[Cell, ...]


class PlannerStanding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one planner did over all panels and budgets."""

    planner: str
    family: str
    num_cells: int
    num_fits: int
    num_best: int
    """Where no other planner was faster by more than a thousandth."""
    mean_over_best: float | None = None
    """Its seconds over those of the fastest planner, averaged where it fits; None where it never does."""
    worst_over_best: float | None = None


class OffloadingExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison."""

    device: str
    networks: tuple[Network, ...]
    panels: tuple[Panel, ...]
    standings: tuple[PlannerStanding, ...]
    """Best first: by how often it fits, then by the mean."""
    statements: tuple[Statement, ...] = ()
    took_seconds: float

    def network(self, name: str) -> Network:
        """The network of a panel."""
        return next(network for network in self.networks if network.name == name)


# Edge: what training takes on a small device: memory by batch and image size, the price of fitting, hours and energy.
#
# Bytes are computed from shapes on fake tensors, seconds are counted in arithmetic operations; nothing was run.


class MemoryCell(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one network: parameters, gradients and activations, without optimizer state."""

    network: str
    image_size: int
    batch_size: int
    plain_bytes: int
    """With everything kept."""
    smallest_bytes: int
    """Of the plan that takes least."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step within a budget, over that of the plain step; None where it does not fit."""

    network: str
    image_size: int
    batch_size: int
    budget_bytes: int
    plain_bytes: int
    smallest_bytes: int
    sequential: float | None
    """Equal segments, the best number of them, on the network as it is."""
    revolve: float | None
    nested: float | None
    """The optimal nested plan."""
    linear_slots: int
    """Layers that fit when all are taken as equally large; the edge work's way to count."""
    linear_sequential: float | None
    """By the published formula for equal layers."""
    linear_revolve: float | None


class LinkSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Sending a day's images over one link."""

    mbit_per_second: float
    send_hours: float
    send_watt_hours: float
    verdict: str


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """Training on a day's images where they are, against sending them."""

    network: str
    image_size: int
    images_per_day: int
    image_bytes: int
    num_epochs: int
    gflop_per_image: float
    """One forward."""
    device_gflops: float
    device_watts: float
    link_watts: float
    slowdown: float
    """Of the plan that fits into the budget."""
    train_hours: float
    train_watt_hours: float
    links: tuple[LinkSpeed, ...]
    """The one that was asked for first."""
    most_images_per_day: int
    """As many as the device trains on in a day."""
    equal_mbit_per_second: float
    """The speed at which sending takes as long as training."""


class EdgeTables(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    budget_bytes: int
    by_batch: tuple[MemoryCell, ...]
    by_size_alone: tuple[MemoryCell, ...]
    """By image size at batch 1."""
    by_size: tuple[MemoryCell, ...]
    """By image size at batch 8."""
    prices: tuple[Price, ...]
    curves: tuple[Price, ...]
    """The price over budgets, for the networks that are drawn."""
    statements: tuple[Statement, ...] = ()
    worth: Worth | None
    not_worth_because: str = ""
    """Why there is no answer about worth."""


# Hyperparameters: published trials run again, their numbers beside ours, and whether capped trials say enough.


def _no_energy() -> Figure:
    return Figure(value=None, unit="joules", reason="it was not measured")


class RerunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One published trial, and its replicates here."""

    row: int
    """From 1, as in the published table."""
    parameters: dict[str, Any]
    published: Figure
    """The system's used memory, as published; unknown for new points of the published ranges."""
    peak: Figure
    """Of the job alone: the mean over the replicates, the smallest and largest as low and high."""
    average: Figure
    background: Figure
    system: Figure
    """Job and background together, the quantity that was published."""
    energy: Figure = msgspec.field(default_factory=lambda: _no_energy())
    num_done: int
    num_trials: int


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether memory changes after the second step: the exact peaks of later steps against the second one's."""

    num_trials: int
    """Trials with at least three steps."""
    num_steps: int
    """The fewest steps of any of them."""
    growth: Figure
    """The largest growth of any trial after its second step, in bytes."""
    share: Figure
    """The same as a part of that trial's peak."""
    repeated: Figure = msgspec.field(default_factory=lambda: unknown("ratio", "not looked at"))
    """The largest such part that every replicate of one network shows."""


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """A published table and its re-run."""

    title: str
    data: str = ""
    """The data set: mnist, fashion-mnist or cifar-10."""
    folder: str = ""
    """Of the study that ran it; empty when it was not run."""
    source: str
    rows: tuple[RerunRow, ...]
    evidence: StepEvidence
    steps: int | None = None
    """The cap, when there was one."""
    notes: tuple[str, ...] = ()


class SingleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One hyperparameter changed alone, everything else held fixed."""

    workload: str
    data: str
    name: str
    levels: tuple[str, ...]
    """Its values, from low to high."""
    peaks: tuple[Figure, ...]
    """Of the job alone at each value: the mean over the replicates, the smallest and largest as low and high."""


class Learner(msgspec.Struct, frozen=True, kw_only=True):
    """Another learner than the published ones, at one setting."""

    name: str
    settings: str
    peak: Figure
    duration: Figure
    energy: Figure


class LayerShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer of a network holds when its step peaks."""

    network: str
    layer: str
    held: Figure


class FutureAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A question that the source leaves to future work, and what was found here."""

    question: str
    evidence: tuple[str, ...] = ()
    reason: str = ""
    """Why there is no answer; empty with one."""


class HyperparameterTrials(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer: every table beside its re-run, single changes, the statements, and what was left open."""

    reruns: tuple[Rerun, ...]
    statements: tuple[Statement, ...]
    changes: tuple[SingleChange, ...] = ()
    learners: tuple[Learner, ...] = ()
    layers: tuple[LayerShare, ...] = ()
    answers: tuple[FutureAnswer, ...] = ()
    notes: tuple[str, ...] = ()
    """On which data it was run."""
    was_interrupted: bool = False
    """The same command goes on with it."""


# Optimizers: DistilBERT under optimizers and techniques, predicted for a GPU and on request measured here.


class PrecisionPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The peak with and without mixed precision at one batch size."""

    batch_size: int
    plain_bytes: int
    mixed_bytes: int


class NearestConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, length and attention, with both peaks under mixed precision beside the published ones."""

    batch_size: int
    length: int
    attention: str
    sgd_bytes: int
    adam_bytes: int
    sgd_error: float
    """Ours over the published one, less 1."""
    adam_error: float


class MeasuredEpochs(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained here, and for how long; the predicted timelines have as many steps."""

    num_epochs: int
    epoch_steps: int
    batch_size: int
    length: int
    layers: int
    data: str
    """Which questions: a file of SQuAD, or synthetic ones of the same shape."""


class OptimizerResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer."""

    grid: Grid
    precision: tuple[PrecisionPoint, ...] = ()
    configurations: tuple[NearestConfiguration, ...] = ()
    """The nearest first."""
    measured: Grid | None = None
    """A smaller DistilBERT, trained on this CPU."""
    epochs: MeasuredEpochs | None = None
    """How long an epoch of the timelines is, and what was trained."""
    statements: tuple[Statement, ...] = ()
    took_seconds: float = 0.0
    was_interrupted: bool = False


# Pipelining: cuts within the memory of ranks, on profiles of layers; planned and simulated, nothing is run.


class PipelineComparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Periods of several cuts of one chain within the same memory; None where a cut does not fit."""

    chain: str
    num_ranks: int
    memory_bytes: int
    exact_seconds: float | None = None
    """The best contiguous plan."""
    blind_seconds: float | None = None
    """PipeDream's cut, which ignores memory."""
    rule_seconds: float | None = None
    """Planned with one micro-batch in flight for each rank from there on."""
    shared_seconds: float | None = None
    """The best plan found with one rank that holds several stages."""


class PipeliningResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer."""

    chains: tuple[str, ...]
    comparisons: tuple[PipelineComparison, ...] = ()
    shared: tuple[PipelineComparison, ...] = ()
    num_solved: int | None = None
    """Random chains that fit; None where there was no solver."""
    num_equal: int = 0
    num_better: int = 0
    packing: tuple[tuple[tuple[int, ...], float, float, float], ...] = ()
    """Loads, and the shortest period by the program, by packing, and with contiguous stages."""
    statements: tuple[Statement, ...] = ()
    took_seconds: float = 0.0
