"""Pipeline of a network over ranks: chain of layers, cut into stages, schedule, memory of every rank, the whole plan.

The chain is what one micro-batch does: layers in the order of the forward. A *cut* says which layers make up which
stage, which rank holds each stage, which schedule runs them and with how many micro-batches. A rank usually holds one
stage; in interleaved and V-shaped schedules, and with a special rank, it holds several.

Run of a pipeline in real processes: what was started, what every rank took, which rank died and when.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from memfit.records.figure import Figure, Source
from memfit.records.files.notebook import NotebookRecord
from memfit.records.files.versioned_file import FileKind, decode_record, encode_record, read_record, write_record
from memfit.records.plan import Part

PIPELINE_FORMAT = "memfit-pipeline"
PIPELINE_VERSION = 1

ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "interleaved-zero-bubble", "zbv-zero-bubble", "dualpipev", "custom"
]
"""custom: the order of every rank is part of the cut; the others are schedules of torch.distributed.pipelining."""
WeightRule = Literal["flush", "2bw", "stash"]
"""Versions of the weights on a rank: one (all micro-batches end before the update), two, or one per micro-batch."""
OperationKind = Literal["forward", "backward", "weight", "send", "send back"]
"""backward: of inputs and weights together, or of inputs alone where the weights have an operation of their own;
send: the output of a stage to the next one; send back: the gradient of that output to the stage before."""


# ---- what is given -------------------------------------------------------------------------------------------


class Layer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One link of the chain, for one micro-batch; the smallest piece that a cut can move to another rank."""

    name: str
    forward_seconds: float
    backward_seconds: float
    parameter_bytes: int
    gradient_bytes: int
    """Of its parameters; they stay from the first backward to the update."""
    optimizer_bytes: int = 0
    """State that the optimizer keeps for its parameters."""
    output_bytes: int
    """What is sent when the chain is cut behind it; its gradient is taken to be of the same size."""
    saved_bytes: int
    """Everything it keeps from forward to backward, its output included, its input not."""
    transient_bytes: int = 0
    """Alive at the worst moment of its forward or backward, beside what is kept."""
    modules: tuple[str, ...] = ()
    """Paths of its modules, as in `model.named_modules()`; empty for a layer of a profile without a model."""
    no_cut_because: str = ""
    """Why the chain cannot be cut behind it; empty where it can."""


class PipelineChain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is trained, layer by layer, for one micro-batch."""

    layers: tuple[Layer, ...]
    input_bytes: int = 0
    """The micro-batch as the first layer gets it."""
    update_bytes: int = 0
    """Alive at the worst moment of the optimizer's step, beside weights, gradients and state, for the whole chain."""
    target: str = ""
    settings: tuple[str, ...] = ()
    """Of the training, as `--set` has them: 'width=512'."""
    micro_batch_size: int | None = None
    """Examples in one micro-batch; None where the profile does not say."""
    source: Source = "assumed"
    """Where sizes come from."""
    time_source: Source = "assumed"
    """Where seconds come from."""
    notes: tuple[str, ...] = ()


class RankLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The way between neighbouring ranks; every pair has one of its own."""

    bytes_per_second: float
    latency_seconds: float = 0.0
    """Paid by each transfer."""
    full_duplex: bool = False
    """True when activations and gradients travel at the same time; False when they share the link."""
    source: Source = "assumed"

    def seconds_for(self, num_bytes: int) -> float:
        """One transfer in one direction."""
        return self.latency_seconds + num_bytes / self.bytes_per_second


# ---- what is decided -----------------------------------------------------------------------------------------


class StageChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a stage runs one micro-batch: with everything kept, or recomputing or moving some of it."""

    name: str = "keep"
    """'keep', 'recompute', 'recompute and move'."""
    forward_seconds: float
    backward_seconds: float
    """Recomputing, and waiting for moves, included."""
    held_bytes: int
    """Kept from the forward to the backward of one micro-batch, the input of the stage included."""
    working_bytes: int = 0
    """Alive at the worst moment of one forward or backward, beside what is held."""
    moved_bytes: int = 0
    """Sent to the host and fetched again, for each micro-batch."""


class PipelineStage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive layers on one rank, or on several that share the micro-batches."""

    first_layer: int
    last_layer: int
    """Both ends belong to it."""
    rank: int
    num_replicas: int = 1
    """Ranks from `rank` on that hold copies of the stage and take the micro-batches in turn."""
    in_flight: int
    """Most micro-batches whose forward has begun and whose backward is not over."""
    choice: StageChoice


class PipelineCut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to run: stages in the order of the chain, on which rank each, and in which order a rank works."""

    stages: tuple[PipelineStage, ...]
    num_ranks: int
    schedule: ScheduleName
    num_micro_batches: int
    orders: tuple[tuple[str, ...], ...] = ()
    """What each rank does one after another, as in torch's schedule files: '0F3' is the forward of stage 0 for
    micro-batch 3, B its backward; I and W where the backward is split into inputs and weights."""

    @property
    def num_layers(self) -> int:
        """Layers of the chain that it cuts."""
        return self.stages[-1].last_layer + 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds."""
        return tuple(
            index for index, stage in enumerate(self.stages) if stage.rank <= rank < stage.rank + stage.num_replicas
        )


class PeriodicOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a periodic schedule: of micro-batch k it starts at start_seconds + (shift + k) periods."""

    kind: OperationKind
    stage: int
    start_seconds: float
    """Within the period."""
    seconds: float
    shift: int
    """Periods after the first operation of the same micro-batch."""


# ---- what it takes -------------------------------------------------------------------------------------------


class RankMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rank holds at its worst moment, by cause."""

    rank: int
    limit_bytes: int | None = None
    parts: tuple[Part, ...]
    """Weights, gradients, optimizer state, further weight versions, activations in flight, buffers of transfers,
    outputs of the last stage, working memory; those that are not zero."""
    in_flight: tuple[int, ...] = ()
    """Micro-batches of each of its stages."""

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether it lies within the limit."""
        return self.limit_bytes is None or self.total_bytes <= self.limit_bytes


class PipelineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One operation as the simulation saw it."""

    kind: OperationKind
    stage: int
    micro_batch: int
    resource: str
    """'rank 0', or 'link 0-1' between two ranks."""
    start_seconds: float
    seconds: float


class RankCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one rank over time; each value holds from its second to the next one."""

    rank: int
    seconds: tuple[float, ...]
    num_bytes: tuple[int, ...]


class SimulatedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of all micro-batches, event by event: warm-up, steady part, drain."""

    events: tuple[PipelineEvent, ...]
    seconds: float
    idle_shares: tuple[float, ...]
    """Of every rank: the part of the step in which it computes nothing."""
    curves: tuple[RankCurve, ...]
    peak_bytes: tuple[int, ...]
    """Of every rank."""


class PipelineCandidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One planner's answer in a comparison."""

    planner: str
    fits: bool
    stages: tuple[tuple[int, int], ...] = ()
    """First and last layer of each."""
    ranks: tuple[int, ...] = ()
    """Of each stage."""
    period_seconds: float | None = None
    """None when it does not fit."""
    fullest_bytes: int | None = None
    reason: str = ""
    """Why it does not fit."""


class PipelinePlan(NotebookRecord, msgspec.Struct, frozen=True, kw_only=True):
    """Where to cut, what it promises, what every rank holds and why the fullest one is the fullest."""

    format: str = PIPELINE_FORMAT
    format_version: int = PIPELINE_VERSION
    planner: str
    chain: PipelineChain
    link: RankLink
    limits_bytes: tuple[int, ...]
    """Memory of every rank."""
    weight_rule: WeightRule = "flush"
    cut: PipelineCut
    period_seconds: float
    """Time from one micro-batch to the next when the pipeline is full."""
    lower_bound_seconds: float
    """No plan of the kinds that `optimal_among` names has a shorter period."""
    optimal_among: str
    """Which plans the planner is the best of; empty for a rule without such a promise."""
    operations: tuple[PeriodicOperation, ...] = ()
    """The periodic schedule; empty where the schedule has none (GPipe)."""
    step: SimulatedStep
    ranks: tuple[RankMemory, ...]
    fullest_rank: int
    reasons: tuple[str, ...]
    """Why this rank is the fullest, in sentences."""
    baselines: tuple[PipelineCandidate, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def micro_batches_per_second(self) -> float:
        """In the steady part."""
        return 1.0 / self.period_seconds

    @property
    def fits(self) -> bool:
        """Whether every rank lies within its limit."""
        return all(rank.fits for rank in self.ranks)


# ---- the file ------------------------------------------------------------------------------------------------


PIPELINE_FILE = FileKind(
    format=PIPELINE_FORMAT,
    version=PIPELINE_VERSION,
    what="a pipeline plan",
    hint="give a file that memfit pipeline -o FOLDER wrote",
)


def encode_pipeline(plan: PipelinePlan) -> bytes:
    """A pipeline plan as the bytes of its file."""
    return encode_record(plan)


def decode_pipeline(data: bytes, name: str = "the plan") -> PipelinePlan:
    """A pipeline plan from the bytes of its file, checked."""
    return decode_record(data, PIPELINE_FILE, PipelinePlan, name)


def write_pipeline(plan: PipelinePlan, path: str | Path) -> None:
    """Write a pipeline plan to a file."""
    write_record(plan, path)


def read_pipeline(path: str | Path) -> PipelinePlan:
    """Read a pipeline plan from a file."""
    return read_record(path, PIPELINE_FILE, PipelinePlan)


class PipelineOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every rank of a run is asked to do; the file from which a worker reads its part."""

    target: str
    """As `memfit predict` takes it: FILE:function, or a built-in workload."""
    settings: dict[str, bool | int | float | str | None] = {}
    starts: tuple[str, ...]
    """The first module of every stage but the first, as in `model.named_modules()`."""
    ranks: tuple[int, ...]
    """Of every stage."""
    num_ranks: int
    schedule: str
    num_micro_batches: int
    orders: tuple[tuple[str, ...], ...] = ()
    """What each rank does one after another, for a custom schedule."""
    num_steps: int = 2
    device: str = "cpu"
    keep_gradients: bool = False
    """Leave the gradients of the first step beside the results, for a comparison."""

    @property
    def num_stages(self) -> int:
        """How many there are."""
        return len(self.starts) + 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds, in their order."""
        return tuple(index for index, owner in enumerate(self.ranks) if owner == rank)


class RankResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one process left behind at its end."""

    rank: int
    peak_bytes: int
    """Of live tensors, within the steps."""
    step_seconds: tuple[float, ...]
    losses: tuple[float, ...] = ()
    """The mean of the micro-batches in every step, on the rank with the last stage."""


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank of a run: predicted beside measured."""

    rank: int
    stages: tuple[int, ...]
    predicted: Figure
    measured: Figure
    step_seconds: Figure
    """The median of all steps but the first."""
    ended: str = "done"
    """'done', or how its process ended: 'SIGKILL', 'exit code 1', 'ended since rank 1 died'."""
    died_after_seconds: float | None = None
    died_in_step: int | None = None
    """The step it was in, from 1 on; 0 before the first. None for a rank that did not die by itself."""
    output: str = ""
    """The last lines that it printed, where it died."""


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pipeline that was run here."""

    order: PipelineOrder
    ranks: tuple[RankOutcome, ...]
    losses: tuple[float, ...] = ()
    total_seconds: float
    command: str
    """How the same is started elsewhere."""

    @property
    def dead(self) -> RankOutcome | None:
        """The rank that died first; None when all came to their end."""
        died = [rank for rank in self.ranks if rank.died_after_seconds is not None]
        return min(died, key=lambda rank: rank.died_after_seconds or 0.0, default=None)
