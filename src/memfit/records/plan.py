"""Chain of stages, link and budget (what a planner knows), and the plan (what it promises).

The chain is what training does to one model: stages in the order of the forward. A value between two stages is a
*boundary*; boundary `i` is the output of stage `i`. A stage that is kept leaves `saved_bytes` behind for its backward,
its output among them. A checkpointed run of stages leaves only its last output and is computed again in the backward.
What either leaves may be *moved* over the link and fetched again before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from memfit.records.figure import Source
from memfit.records.files.notebook import NotebookRecord
from memfit.records.files.versioned_file import FileKind, decode_record, encode_record, read_record, write_record
from memfit.records.operators import OperatorChoice

PLAN_FORMAT = "memfit-plan"
PLAN_VERSION = 4
LEVERS = ("step-in-backward", "chunked-loss")
"""Changes beside recomputing and moving that `memfit fit` makes where they are allowed and no plan fits otherwise."""

StepKind = Literal["forward", "sweep", "recompute", "backward", "update"]
"""forward: computed and kept; sweep: computed, only the last output of the run is kept; recompute: a forward within the
backward, kept; backward; update: the optimizer's step."""


# ---- what is given -------------------------------------------------------------------------------------------


class Option(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another way to keep a stage: fewer bytes for a slower backward, for example matrix products only."""

    name: str
    forward_seconds: float
    backward_seconds: float
    saved_bytes: int
    """Left for the backward, the output included."""
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a stage is run again when it is the last of a checkpoint.

    Its last module, which leaves nothing but the output, then runs outside of the checkpoint: its backward is over
    when the rest is run again.
    """

    forward_seconds: float
    """The second run, without the last module; a checkpoint stops when it has what the backward reads."""
    saved_bytes: int
    """What the second run leaves."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One link of the chain."""

    name: str
    """Path of the module, as in `model.named_modules()`, or a name for glue between modules."""
    forward_seconds: float
    backward_seconds: float
    output_bytes: int
    """The boundary to the next stage. Its gradient is taken to be of the same size."""
    saved_bytes: int
    """Everything it leaves for its backward, its output included, its input not."""
    forward_transient_bytes: int = 0
    """Alive at the worst moment of its forward, beside input and what it leaves."""
    backward_transient_bytes: int = 0
    """Alive at the worst moment of its backward, beside saved bytes, input, and all gradients that it reads and makes.

    Below zero where it frees some of them before it makes others; never below what is there before it, or after it.
    """
    gradient_bytes: int = 0
    """Gradients of parameters that its backward allocates and that stay until the update."""
    checkpoint_seconds: float = 0.0
    """What it takes to drop and to run again beside the second run itself: the work of the checkpoint's own code.
    Zero where it was not measured."""
    options: tuple[Option, ...] = ()
    kind: str = ""
    """'conv', 'norm', 'attention', ...: some published rules choose by kind."""
    recomputable: bool = True
    """False when it may run only once: a plan then keeps it."""
    joins_next: bool = True
    """False when no checkpointed run may reach across to the next stage: its output has another reader."""
    ending: Ending | None = None
    """None when a checkpoint that ends here runs all of it again."""

    @property
    def sweep_seconds(self) -> float:
        """A forward that keeps nothing but the output, and what the checkpoint's own code takes for it."""
        return self.forward_seconds + self.checkpoint_seconds


class Fixed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes alive during the whole step, whatever the plan."""

    parameter_bytes: int = 0
    gradient_bytes: int = 0
    """Gradients that are there before the backward; those it allocates belong to the stages."""
    optimizer_state_bytes: int = 0
    other_bytes: int = 0
    """Buffers, the context of the device, what other programs hold."""

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.other_bytes


class Chain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is trained, as a planner sees it; the last stage is usually the loss."""

    stages: tuple[Stage, ...]
    input_bytes: int = 0
    """The batch; it is held during the whole step."""
    input_gradient_bytes: int = 0
    """Zero unless the input itself needs a gradient."""
    fixed: Fixed = Fixed()
    update_transient_bytes: int = 0
    """Alive at the worst moment of the optimizer's step, beside fixed bytes and gradients."""
    update_seconds: float = 0.0
    uncalled: tuple[str, ...] = ()
    """Blocks that were not called in the step this was measured in, although others of their list were: layer drop."""
    target: str = ""
    device: str = "cpu"
    source: Source = "assumed"
    """Where sizes come from."""
    time_source: Source = "assumed"
    """Where seconds come from."""


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A way to a larger, slower memory."""

    name: str
    """'host memory', 'disk'."""
    out_bytes_per_second: float
    in_bytes_per_second: float
    latency_seconds: float = 0.0
    """Paid by each transfer."""
    capacity_bytes: int | None = None
    """None: more than any plan needs."""
    source: Source = "assumed"


# ---- what is decided -----------------------------------------------------------------------------------------


class Keep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="keep"):
    """Run a stage and keep what its backward needs."""

    stage: int
    option: str = ""
    """Name of the option; empty for the plain way."""
    offload: bool = False
    """Move the saved bytes over the link and fetch them before the backward of the next node."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="checkpoint"):
    """Run consecutive stages keeping only the last output; in the backward run them again as `inside` says."""

    inside: tuple[Keep | Checkpoint, ...]
    offload: bool = False
    """Move the output over the link and fetch it before the backward of the next node."""


Node = Keep | Checkpoint


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of the compute stream, as the simulator saw it."""

    kind: StepKind
    stage: int | None
    """None for the update."""
    option: str = ""
    wait_sent: int = 0
    """How many moves must have left completely before it may start: this is what bounds the memory."""
    wait_fetched: int = 0
    """How many moves must be back before it may start, counted in the order of fetching, last sent first."""
    start_seconds: float
    seconds: float
    stall_seconds: float = 0.0
    """Idle time of the compute stream just before it."""
    memory_bytes: int
    """The most that is alive while it runs, fixed bytes included."""


class Move(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one node leaves, sent over the link and fetched again; in the order of sending."""

    boundary: int
    """The stage whose output is the last of what is moved."""
    num_bytes: int
    send_after: int
    """Index of the step that makes it."""
    release_after: int
    """Index of the last step of the forward that reads it."""
    fetch_after: int
    """Index of the step after which it may be fetched; all sends must be over as well."""
    needed_by: int
    """Index of the first step of the backward that reads it."""
    freed_after: int
    """Index of the last step that reads it."""
    send_seconds: tuple[float, float]
    """When it leaves, start and end, as simulated."""
    fetch_seconds: tuple[float, float]


# ---- why -----------------------------------------------------------------------------------------------------


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One named part of what is alive at a moment."""

    name: str
    num_bytes: int


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The moment that sets the peak."""

    step: int
    """Index into the steps of the plan."""
    where: str
    """'the backward of layer4.2'."""
    parts: tuple[Part, ...]
    """Largest first; they add up to the peak."""
    unavoidable_bytes: int
    """Alive at this moment under every plan of this chain."""
    a_plan_helps: bool
    """False when everything alive here is unavoidable: logits, the update, one large stage."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice of the plan gives and takes, against the same plan without it and with as much more memory."""

    what: str
    """'recompute layers.3 to layers.5', 'move layers.7 over the link', 'keep layers.2 as matmuls only'."""
    stages: tuple[int, ...]
    saved_bytes: int
    """How much higher the peak would be without it; zero where another moment sets the peak."""
    freed_bytes: int = msgspec.field(name="spared_bytes")
    """Bytes it takes away at the turn from forward to backward, whether or not they set the peak."""
    paid_seconds: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of the curve of time against memory."""

    peak_bytes: int
    seconds: float
    solver: str


class Lever(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change beside recomputing and moving, with its price."""

    name: str
    """'split the batch in 4', 'activations in half precision', 'an optimizer without state'."""
    peak_bytes: int | None
    """Of the best plan with the lever; None when it does not fit even so."""
    seconds: float | None
    smallest_budget_bytes: int
    price: str
    """What is given up, in one sentence."""
    reason: str = ""
    """Why there is no peak."""


class AppliedLever(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lever that a plan was measured and proven with, and that is pulled where the plan is applied."""

    name: str
    """One of `LEVERS`."""
    module: str = ""
    """The layer whose output is never there as a whole, for 'chunked-loss'."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One planner's answer in a comparison."""

    solver: str
    fits: bool
    peak_bytes: int | None
    """What it takes, or what it would take when it does not fit; None when it finds no plan at all."""
    seconds: float | None
    stall_seconds: float = 0.0
    moved_bytes: int = 0
    reason: str = ""
    """Why it does not fit."""


class Plan(NotebookRecord, msgspec.Struct, frozen=True, kw_only=True):
    """What to do, what it promises, how far from the best it can be at most, and why."""

    format: str = PLAN_FORMAT
    format_version: int = PLAN_VERSION
    solver: str
    chain: Chain
    link: Link | None = None
    budget_bytes: int
    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    moves: tuple[Move, ...] = ()
    operators: OperatorChoice | None = None
    """Tensors that are dropped and made again operator by operator, beside what the nodes say."""
    peak_bytes: int
    seconds: float
    plain_peak_bytes: int
    """With everything kept."""
    plain_seconds: float
    recompute_seconds: float = 0.0
    stall_seconds: float = 0.0
    moved_bytes: int = 0
    """In one direction."""
    lower_bound_seconds: float
    bound_of: str
    """Which plans the bound holds for."""
    smallest_budget_bytes: int
    """The least budget this solver finds a plan for; of operators, this plan's own: less was not searched."""
    binding: Binding
    decisions: tuple[Decision, ...] = ()
    frontier: tuple[Point, ...] = ()
    levers: tuple[Lever, ...] = ()
    applied_levers: tuple[AppliedLever, ...] = ()
    """Since format 3."""
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How far above the lower bound the promise lies at most, as a share of the bound."""
        return self.seconds / self.lower_bound_seconds - 1.0 if self.lower_bound_seconds > 0 else 0.0

    @property
    def slowdown(self) -> float:
        """Promised seconds over those with everything kept."""
        return self.seconds / self.plain_seconds if self.plain_seconds > 0 else 1.0

    @property
    def fits(self) -> bool:
        """Whether the promise lies within the budget."""
        return self.peak_bytes <= self.budget_bytes


def stages_of(nodes: tuple[Node, ...]) -> Iterator[int]:
    """The stages that nodes cover, in order."""
    for node in nodes:
        if isinstance(node, Keep):
            yield node.stage
        else:
            yield from stages_of(node.inside)


# ---- the file ------------------------------------------------------------------------------------------------


PLAN_FILE = FileKind(
    format=PLAN_FORMAT, version=PLAN_VERSION, what="a memfit plan", hint="give a file that memfit fit wrote"
)


def encode_plan(plan: Plan) -> bytes:
    """A plan as the bytes of its file."""
    return encode_record(plan)


def decode_plan(data: bytes, name: str = "the plan") -> Plan:
    """A plan from the bytes of its file, checked."""
    return decode_record(data, PLAN_FILE, Plan, name)


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file."""
    write_record(plan, path)


def read_plan(path: str | Path) -> Plan:
    """Read a plan from a file."""
    return read_record(path, PLAN_FILE, Plan)
