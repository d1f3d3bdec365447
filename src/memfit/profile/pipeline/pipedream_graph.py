"""Reader of PipeDream's profiles (graph.txt): milliseconds and bytes of every node, made into a chain of layers.

A line `node1 -- Conv2d(...) -- forward_compute_time=..., backward_compute_time=..., activation_size=...,
parameter_size=...` is a node, a line `<tab>node1 -- node2` an edge; milliseconds and bytes, for one mini-batch, which
is one micro-batch of the pipeline. What needs care:

- the input node carries the time of loading data and is left out; its bytes are the input of the chain;
- outputs of in-place operations, views and items of a tuple lie in the storage of their input and are counted once;
- recurrent layers have lists of sizes, which are added up;
- where several tensors cross a cut, all of them are sent. `cuts="single"` cuts only where one tensor crosses,
  `cuts="all"` everywhere, and "auto" takes the first unless it leaves fewer than twelve layers.

Pure text: torch is not needed.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from memfit.errors import RecordError
from memfit.records.pipeline import Layer, PipelineChain
from memfit.regular_file import describe_error, read_beginning, read_regular

Cuts = Literal["auto", "single", "all"]
FEWEST_LAYERS = 12
SHARED = re.compile(r"ReLU6?\(.*inplace|inplace\s*=?\s*True|^View\(|^__getitem__\(|^Size\(|^Identity\(", re.IGNORECASE)
"""Operations whose output lies in the storage of their input, or is no tensor."""
NO_TENSOR = re.compile(r"^Size\(")
INPUT = re.compile(r"^Input\d*$")
QUANTITIES = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(slots=True)
class _Node:
    """One line of the file."""

    name: str
    description: str
    line: int
    forward_seconds: float
    backward_seconds: float
    output_bytes: int
    parameter_bytes: int
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    @property
    def is_input(self) -> bool:
        return bool(INPUT.match(self.description))

    @property
    def saved_bytes(self) -> int:
        """Its output, unless it shares storage with what is there already."""
        return 0 if SHARED.search(self.description) else self.output_bytes

    @property
    def sent_bytes(self) -> int:
        return 0 if NO_TENSOR.search(self.description) else self.output_bytes


def read_graph(
    path: str | Path, *, cuts: Cuts = "auto", optimizer_copies: int = 0, count_in_place: bool = False
) -> PipelineChain:
    """Read a profile; the optimizer keeps `optimizer_copies` values for each parameter.

    `count_in_place` counts outputs of in-place operations again, as the sum over the file does.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read", found=describe_error(error), hint="a graph.txt that PipeDream's profiler wrote"
        ) from None
    text = data.decode("utf-8", "replace")
    return chain_of_graph(
        text, str(path), cuts=cuts, optimizer_copies=optimizer_copies, count_in_place=count_in_place
    )  # fmt: skip


def is_graph(path: str | Path) -> bool:
    """Whether a file is text with nodes or edges of such a profile, or is called like one."""
    try:
        beginning = read_beginning(path, most_bytes=4096).content
    except OSError:
        return str(path).endswith(".txt")
    return str(path).endswith(".txt") or b"forward_compute_time" in beginning


def chain_of_graph(
    text: str,
    name: str = "the profile",
    *,
    cuts: Cuts = "auto",
    optimizer_copies: int = 0,
    count_in_place: bool = False,
) -> PipelineChain:
    """The chain of a profile's text."""
    nodes = _nodes(text, name)
    order = _in_order(nodes, name)
    inputs = [node for node in order if node.is_input]
    working = [node for node in order if not node.is_input]
    if not working:
        raise RecordError(f"{name} has no nodes beside its input", found=f"{len(nodes)} nodes", hint="another profile")
    crossing = _crossing(working, nodes)
    ends = _ends(crossing, cuts)
    is_switched = cuts == "auto" and any(crossing[end][1] != 1 for end in ends[:-1])
    layers, first = [], 0
    for end in ends:
        members = working[first : end + 1]
        layers.append(_layer(members, crossing[end][0], optimizer_copies, count_in_place))
        first = end + 1
    return PipelineChain(
        layers=tuple(layers),
        input_bytes=sum(node.output_bytes for node in inputs),
        target=name,
        source="measured",
        time_source="measured",
        notes=_notes(working, is_switched, count_in_place),
    )


# ---- lines -----------------------------------------------------------------------------------------------------


def _nodes(text: str, name: str) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    edges: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part.strip() for part in line.strip().split(" -- ")]
        if not line.strip():
            continue
        if len(parts) == 2:
            edges.append((number, parts[0], parts[1]))
            continue
        if len(parts) < 3:
            raise _wrong(name, number, "is neither a node nor an edge", line)
        node = _node(name, number, parts[0], " -- ".join(parts[1:-1]), parts[-1])
        if node.name in nodes:
            raise _wrong(name, number, f"gives {node.name} again, which line {nodes[node.name].line} has", line)
        nodes[node.name] = node
    for number, before, after in edges:
        for end in (before, after):
            if end not in nodes:
                raise _wrong(name, number, f"has an edge of {end}, which is no node", f"{before} -- {after}")
        nodes[before].after.append(after)
        nodes[after].before.append(before)
    return nodes


def _node(name: str, number: int, key: str, description: str, fields: str) -> _Node:
    values = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,]+)", fields))
    found: dict[str, float] = {}
    for quantity in QUANTITIES:
        if quantity not in values:
            raise _wrong(name, number, f"has no {quantity} for {key}", fields)
        found[quantity] = _number(name, number, quantity, values[quantity])
    return _Node(
        name=key, description=description, line=number, forward_seconds=found["forward_compute_time"] / 1e3,
        backward_seconds=found["backward_compute_time"] / 1e3, output_bytes=round(found["activation_size"]),
        parameter_bytes=round(found["parameter_size"]),
    )  # fmt: skip


def _number(name: str, line: int, quantity: str, text: str) -> float:
    """One number, or the sum of a list `[1.0; 2.0]`."""
    total = 0.0
    for part in text.strip().strip("[]").split(";"):
        try:
            value = float(part)
        except ValueError:
            raise _wrong(name, line, f"has a {quantity} that is no number", text) from None
        if not math.isfinite(value) or value < 0:
            raise _wrong(name, line, f"has a {quantity} that is negative or not finite", text)
        total += value
    return total


def _wrong(name: str, line: int, what: str, found: str) -> RecordError:
    return RecordError(f"line {line} of {name} {what}", found=found.strip()[:160], hint="correct that line")


# ---- order and cuts --------------------------------------------------------------------------------------------


def _in_order(nodes: dict[str, _Node], name: str) -> list[_Node]:
    """Every node behind what it reads, those that are ready by their number."""
    missing = {key: len(node.before) for key, node in nodes.items()}
    ready = [(_rank(key), key) for key, count in missing.items() if not count]
    heapq.heapify(ready)
    order: list[_Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)[1]]
        order.append(node)
        for key in node.after:
            missing[key] -= 1
            if not missing[key]:
                heapq.heappush(ready, (_rank(key), key))
    if len(order) < len(nodes):
        raise _cycle(nodes, {key for key, count in missing.items() if count}, name)
    return order


def _cycle(nodes: dict[str, _Node], left: set[str], name: str) -> RecordError:
    """Walk back from any node that never became ready until one comes again."""
    trail = [min(left, key=_rank)]
    while True:
        before = min((key for key in nodes[trail[-1]].before if key in left), key=_rank)
        if before in trail:
            ring = [*trail[trail.index(before) :], before][::-1]
            line = nodes[before].line
            found = " -> ".join(ring[:12]) + (" -> ..." if len(ring) > 12 else "")
            return RecordError(f"the edges of {name} form a cycle through line {line}", found=found, hint="remove one")
        trail.append(before)


def _rank(key: str) -> tuple[int, str]:
    digits = re.search(r"\d+", key)
    return int(digits[0]) if digits else 0, key


def _crossing(order: Sequence[_Node], nodes: dict[str, _Node]) -> list[tuple[int, int]]:
    """For each position: bytes and number of the tensors that are made up to there and read behind it."""
    place = {node.name: index for index, node in enumerate(order)}
    last_read = {node.name: max((place[key] for key in node.after), default=-1) for node in order}
    found = []
    for index in range(len(order)):
        crossing = [n for n in order[: index + 1] if last_read[n.name] > index and not NO_TENSOR.search(n.description)]
        found.append((_distinct_bytes(crossing, nodes), len({_storage(node, nodes) for node in crossing})))
    return found


def _storage(node: _Node, nodes: dict[str, _Node]) -> str:
    """The node that made the storage in which this node's output lies; items of a tuple are storages of their own."""
    while SHARED.search(node.description) and not node.description.startswith("__getitem__") and node.before:
        node = nodes[node.before[0]]
    return node.name


def _distinct_bytes(crossing: Sequence[_Node], nodes: dict[str, _Node]) -> int:
    sizes: dict[str, int] = {}
    for node in crossing:
        key = _storage(node, nodes)
        sizes[key] = max(sizes.get(key, 0), node.sent_bytes)
    return sum(sizes.values())


def _ends(crossing: Sequence[tuple[int, int]], cuts: Cuts) -> list[int]:
    """Positions of the last node of every layer."""
    everywhere = list(range(len(crossing)))
    single = [index for index in everywhere[:-1] if crossing[index][1] == 1] + everywhere[-1:]
    if cuts == "all" or (cuts == "auto" and len(single) < min(FEWEST_LAYERS, len(everywhere))):
        return everywhere
    return single


def _layer(members: Sequence[_Node], sent_bytes: int, optimizer_copies: int, count_in_place: bool) -> Layer:
    parameter_bytes = sum(node.parameter_bytes for node in members)
    saved = sum(node.output_bytes if count_in_place else node.saved_bytes for node in members)
    first, last = members[0], members[-1]
    name = f"{first.name} {first.description.split('(')[0]}"
    return Layer(
        name=name if len(members) == 1 else f"{first.name} to {last.name}",
        forward_seconds=sum(node.forward_seconds for node in members),
        backward_seconds=sum(node.backward_seconds for node in members),
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes,
        optimizer_bytes=optimizer_copies * parameter_bytes,
        output_bytes=sent_bytes or last.sent_bytes,
        saved_bytes=saved,
    )


def _notes(working: Sequence[_Node], is_switched: bool, count_in_place: bool) -> tuple[str, ...]:
    notes = ["one micro-batch is one mini-batch of the profile; the profile does not name the GPU it was measured on"]
    if is_switched:
        notes.append("cuts may cross several tensors, all of which are sent; --cuts single keeps to one")
    in_place = sum(node.output_bytes - node.saved_bytes for node in working)
    whole = sum(node.output_bytes for node in working)
    if in_place and not count_in_place:
        notes.append(f"{in_place / whole:.0%} of the listed outputs lie in the storage of another one, and count once")
    return tuple(notes)
