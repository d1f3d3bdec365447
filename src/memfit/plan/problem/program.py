"""Program of a plan: its operations in order, and the values that each makes, reads and frees.

Nodes are lowered as nested checkpointing executes them: the forward once; then, from the last node to the first, a
kept stage runs its backward, a checkpoint runs its stages again as its inside says, and then their backward. A value
lives from the start of the operation that makes it to the end of the last that reads it. The output of a checkpoint
is held until the node after it has finished its backward; the batch until the end. The last stage of a checkpoint is
run again as its ending says; the seconds of its last module's backward are counted with the rest of its backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memfit.plan.problem.checks import check_nodes, covers, option_of
from memfit.plan.problem.sizes import at_end
from memfit.records.plan import Chain, Checkpoint, Keep, Node, Option, Stage, StepKind


@dataclass(slots=True)
class Value:
    """Bytes with a life of their own."""

    label: str
    num_bytes: int


@dataclass(slots=True)
class Operation:
    """One entry of the compute stream; values are numbers into the program's list."""

    kind: StepKind
    stage: int | None
    option: str
    seconds: float
    transient_bytes: int
    reads: tuple[int, ...]
    makes: list[int]
    frees: list[int]


@dataclass(slots=True, frozen=True)
class Movable:
    """What a node leaves during the forward, with the operations that matter if it is moved."""

    node: int
    value: int
    boundary: int
    num_bytes: int
    made_by: int
    last_read_forward: int
    needed_by: int
    freed_after: int


@dataclass(slots=True)
class Program:
    """All operations of one training step under one plan, everything resident."""

    chain: Chain
    nodes: tuple[Node, ...]
    values: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    turn: int = 0
    """Index of the first operation of the backward phase."""
    movables: list[Movable] = field(default_factory=list)
    """One per node but the last, in order."""

    def memory_bytes(self) -> list[int]:
        """The most alive during each operation when nothing is moved, fixed bytes included."""
        alive = self.chain.fixed.total_bytes + self.chain.input_bytes
        memory = []
        for operation in self.operations:
            alive += sum(self.values[value].num_bytes for value in operation.makes)
            memory.append(alive + operation.transient_bytes)
            alive -= sum(self.values[value].num_bytes for value in operation.frees)
        return memory

    @property
    def compute_seconds(self) -> float:
        """Busy time of the compute stream."""
        return sum(operation.seconds for operation in self.operations)


INPUT = 0
"""The value that is the batch; its bytes are counted with the fixed ones, for it is never freed."""


def lower(chain: Chain, nodes: tuple[Node, ...]) -> Program:
    """The operations of a plan, checked against the chain."""
    check_nodes(chain, nodes)
    program = Program(chain=chain, nodes=nodes)
    builder = _Builder(program)
    left = builder.forward(nodes, INPUT, "forward")
    program.turn = len(program.operations)
    last = len(chain.stages) - 1
    gradient = builder.value(f"gradient of {chain.stages[last].name}", chain.stages[last].output_bytes)
    builder.made_next.append(gradient)
    gradient = builder.backward(nodes, left, INPUT, gradient)
    program.operations[-1].frees.append(gradient)
    builder.add("update", None, "", chain.update_seconds, chain.update_transient_bytes, reads=())
    program.movables = _movables(program, left)
    return program


class _Builder:
    """Appends operations; lives as long as one lowering."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.chain = program.chain
        self.made_next: list[int] = []
        self.ways: dict[int, Stage | Option] = {}
        """How a stage was run, by what it saved: its backward follows from that."""
        self.value("the batch", 0)

    def value(self, label: str, num_bytes: int) -> int:
        self.program.values.append(Value(label, num_bytes))
        return len(self.program.values) - 1

    def add(
        self,
        kind: StepKind,
        stage: int | None,
        option: str,
        seconds: float,
        transient_bytes: int,
        *,
        reads: tuple[int, ...],
        makes: tuple[int, ...] = (),
        frees: tuple[int, ...] = (),
    ) -> None:
        made = [*self.made_next, *makes]
        self.made_next = []
        self.program.operations.append(
            Operation(kind, stage, option, seconds, transient_bytes, reads, made, list(frees))
        )

    def forward(self, nodes: tuple[Node, ...], source: int, kind: StepKind) -> list[int]:
        """Run nodes forward; what each of them leaves."""
        left: list[int] = []
        for node in nodes:
            if isinstance(node, Keep):
                source = self._keep(node, source, kind, ends=kind == "recompute" and node is nodes[-1])
            else:
                source = self._sweep(node, source)
            left.append(source)
        return left

    def _keep(self, node: Keep, source: int, kind: StepKind, *, ends: bool) -> int:
        stage = self.chain.stages[node.stage]
        way = at_end(stage) if ends and not node.option else option_of(stage, node.option)
        saved = self.value(f"saved by {stage.name}", way.saved_bytes)
        self.ways[saved] = way
        self.add(
            kind, node.stage, node.option, way.forward_seconds, way.forward_transient_bytes,
            reads=(source,), makes=(saved,),
        )  # fmt: skip
        return saved

    def _sweep(self, node: Checkpoint, source: int) -> int:
        first, last = covers(node)
        for index in range(first, last + 1):
            stage = self.chain.stages[index]
            output = self.value(f"output of {stage.name}", stage.output_bytes)
            self.add(
                "sweep", index, "", stage.sweep_seconds, stage.forward_transient_bytes,
                reads=(source,), makes=(output,), frees=(source,) if index > first else (),
            )  # fmt: skip
            source = output
        return source

    def backward(self, nodes: tuple[Node, ...], left: list[int], source: int, gradient: int) -> int:
        """Run nodes backward, last first; the gradient of their input."""
        for position in range(len(nodes) - 1, -1, -1):
            node = nodes[position]
            before = left[position - 1] if position else source
            if isinstance(node, Keep):
                gradient = self._backward_of(node, left[position], before, gradient)
            else:
                again = self.forward(node.inside, before, "recompute")
                gradient = self.backward(node.inside, again, before, gradient)
                if position == len(nodes) - 1:  # nothing after it read its output or freed it
                    self.program.operations[-1].frees.append(left[position])
            if position and isinstance(nodes[position - 1], Checkpoint):
                self.program.operations[-1].frees.append(before)
        return gradient

    def _backward_of(self, node: Keep, saved: int, before: int, gradient: int) -> int:
        stage = self.chain.stages[node.stage]
        way = self.ways[saved]
        upstream = self.value(f"gradient of the input of {stage.name}", self._input_gradient_bytes(node.stage))
        parameters = self.value(f"gradients of the parameters of {stage.name}", stage.gradient_bytes)
        self.add(
            "backward", node.stage, node.option, way.backward_seconds, way.backward_transient_bytes,
            reads=(gradient, saved, before), makes=(upstream, parameters), frees=(gradient, saved),
        )  # fmt: skip
        return upstream

    def _input_gradient_bytes(self, stage: int) -> int:
        return self.chain.stages[stage - 1].output_bytes if stage else self.chain.input_gradient_bytes


def _movables(program: Program, left: list[int]) -> list[Movable]:
    """When the values that the first forward leaves are made, read and freed."""
    wanted = {value: position for position, value in enumerate(left[:-1])}
    made: dict[int, int] = {}
    last_forward: dict[int, int] = {}
    needed: dict[int, int] = {}
    freed: dict[int, int] = {}
    for index, operation in enumerate(program.operations):
        made.update((value, index) for value in operation.makes if value in wanted)
        freed.update((value, index) for value in operation.frees if value in wanted)
        for value in operation.reads:
            if value in wanted and index < program.turn:
                last_forward[value] = index
            elif value in wanted:
                needed.setdefault(value, index)
    return [
        Movable(
            node=position, value=value, boundary=covers(program.nodes[position])[1],
            num_bytes=program.values[value].num_bytes, made_by=made[value], last_read_forward=last_forward[value],
            needed_by=needed[value], freed_after=freed[value],
        )
        for value, position in wanted.items()
    ]  # fmt: skip
