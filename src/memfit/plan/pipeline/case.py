"""Problem of a pipeline planner: chain, ranks, link, rules of weights and buffers; and the interface of planners.

Bytes of a stage with n micro-batches in flight are `base_bytes + n * copy_bytes`:

    base    weights, gradients, optimizer state, a second version of the weights (2bw), buffers, working memory
    copy    what one micro-batch leaves, and with stashed weights a version of them

Buffers of transfers are counted as the runtime has them: two per neighbour and direction, or one for every
micro-batch of the step (`receives_all`), as torch.distributed.pipelining allocates them today.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import msgspec

from memfit.errors import UsageError
from memfit.records.pipeline import PipelineChain, RankLink, StageChoice, WeightRule

UPDATE_COPIES = 3
"""Of what is updated: no optimizer of torch is known to hold more in passing."""
UNBOUNDED = 10**9
"""Copies of a stage that leaves nothing: more than any schedule has in flight."""
Curve = Callable[[int, int], Sequence[StageChoice]]
"""Further ways to run the layers from the first number to the second one, with less held and more seconds."""


@dataclass(frozen=True)
class PipelineCase:
    """One chain on ranks in a fixed order; sums over layers are worked out once."""

    chain: PipelineChain
    limits_bytes: tuple[int, ...]
    """Memory of every rank, in their order."""
    link: RankLink
    num_micro_batches: int = 8
    weight_rule: WeightRule = "flush"
    receives_all: bool = False
    """Buffers for all micro-batches of a step are there at once, whatever the schedule."""
    curve: Curve | None = None
    _known_choices: dict[tuple[int, int], tuple[StageChoice, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_case(self)

    @property
    def num_layers(self) -> int:
        return len(self.chain.layers)

    @property
    def num_ranks(self) -> int:
        return len(self.limits_bytes)

    def with_limits(self, limits_bytes: tuple[int, ...]) -> PipelineCase:
        """The same chain on other ranks."""
        return replace(self, limits_bytes=limits_bytes)

    @cached_property
    def sums(self) -> dict[str, list[float]]:
        """For each quantity the sum over the layers before an index."""
        layers = self.chain.layers
        columns = {
            "forward": [layer.forward_seconds for layer in layers],
            "backward": [layer.backward_seconds for layer in layers],
            "parameter": [layer.parameter_bytes for layer in layers],
            "gradient": [layer.gradient_bytes for layer in layers],
            "optimizer": [layer.optimizer_bytes for layer in layers],
            "saved": [layer.saved_bytes for layer in layers],
        }
        return {name: list(itertools.accumulate(values, initial=0)) for name, values in columns.items()}

    def over(self, name: str, first: int, last: int) -> float:
        """A quantity summed over the layers from `first` to `last`."""
        column = self.sums[name]
        return column[last + 1] - column[first]

    def input_bytes(self, first: int) -> int:
        """What a stage that begins with this layer receives."""
        return self.chain.layers[first - 1].output_bytes if first else self.chain.input_bytes

    def sent_bytes(self, last: int) -> int:
        """What a stage that ends with this layer sends; nothing behind the last layer."""
        return self.chain.layers[last].output_bytes if last + 1 < self.num_layers else 0

    def link_seconds(self, last: int) -> float:
        """One transfer in one direction behind a layer."""
        return self.link.seconds_for(self.chain.layers[last].output_bytes)

    def can_cut(self, last: int) -> bool:
        """Whether a stage may end with this layer."""
        return not self.chain.layers[last].no_cut_because

    def plain_choice(self, first: int, last: int) -> StageChoice:
        """A stage with everything kept."""
        choice = StageChoice(
            forward_seconds=self.over("forward", first, last),
            backward_seconds=self.over("backward", first, last),
            held_bytes=int(self.over("saved", first, last)) + self.input_bytes(first),
            working_bytes=max(layer.transient_bytes for layer in self.chain.layers[first : last + 1]),
        )
        return self._with_update(first, last, choice)

    def _with_update(self, first: int, last: int, choice: StageChoice) -> StageChoice:
        """With the working memory of the optimizer's step, where that is more than one micro-batch and its work.

        Nothing is in flight then. What the whole optimizer takes bounds what it takes for a part, and so do some
        copies of the part.
        """
        update = min(self.chain.update_bytes, UPDATE_COPIES * int(self.over("gradient", first, last)))
        beyond = update - self.copy_bytes(first, last, choice)
        return choice if beyond <= choice.working_bytes else msgspec.structs.replace(choice, working_bytes=beyond)

    def choices(self, first: int, last: int) -> tuple[StageChoice, ...]:
        """Every way to run a stage, the plain one first."""
        found = self._known_choices.get((first, last))
        if found is None:
            further = self.curve(first, last) if self.curve is not None else ()
            smaller = (self._with_update(first, last, choice) for choice in further)
            found = self._known_choices[first, last] = (self.plain_choice(first, last), *smaller)
        return found

    # ---- bytes of a stage ----------------------------------------------------------------------------------------

    def weight_parts(self, first: int, last: int, in_flight: int) -> dict[str, int]:
        """Weights, gradients, optimizer state and further versions of the weights."""
        parameter = int(self.over("parameter", first, last))
        versions = {"flush": 0, "2bw": 1, "stash": max(0, in_flight - 1)}[self.weight_rule]
        return {
            "weights": parameter,
            "gradients": int(self.over("gradient", first, last)),
            "optimizer state": int(self.over("optimizer", first, last)),
            "weight versions": parameter * versions,
        }

    def buffer_bytes(self, first: int, last: int) -> int:
        """Buffers of transfers, beside the inputs that are counted as held."""
        if self.receives_all:  # on the first rank the whole batch
            return self.num_micro_batches * (self.input_bytes(first) + self.sent_bytes(last))
        return 2 * ((self.input_bytes(first) if first else 0) + self.sent_bytes(last))

    def copy_bytes(self, first: int, last: int, choice: StageChoice) -> int:
        """What each micro-batch in flight takes."""
        received = self.input_bytes(first) if self.receives_all else 0  # it lies in the buffer, or in the batch
        stashed = int(self.over("parameter", first, last)) if self.weight_rule == "stash" else 0
        return choice.held_bytes - received + stashed

    def base_bytes(self, first: int, last: int, choice: StageChoice) -> int:
        """What a stage takes however many micro-batches are in flight."""
        fixed = sum(self.weight_parts(first, last, 0).values())
        if self.weight_rule == "stash":
            fixed -= int(self.over("parameter", first, last))  # the newest version is one of the copies
        return fixed + self.buffer_bytes(first, last) + choice.working_bytes

    def stage_bytes(self, first: int, last: int, choice: StageChoice, in_flight: int) -> int:
        """All bytes of a stage."""
        return self.base_bytes(first, last, choice) + in_flight * self.copy_bytes(first, last, choice)

    def most_copies(self, first: int, last: int, choice: StageChoice, limit_bytes: int) -> int:
        """How many micro-batches may be in flight within a limit; 0 when not even one."""
        left = limit_bytes - self.base_bytes(first, last, choice)
        copy = self.copy_bytes(first, last, choice)
        if left < 0:
            return 0
        return UNBOUNDED if copy <= 0 else left // copy


@dataclass(frozen=True, slots=True)
class ProposedStage:
    """Layers on a rank and how they are run."""

    first: int
    last: int
    rank: int
    choice: StageChoice
    num_replicas: int = 1


@dataclass(frozen=True, slots=True)
class PipelineProposal:
    """What a planner suggests: stages in the order of the chain, and a period where it has one in mind."""

    stages: tuple[ProposedStage, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_contiguous(self) -> bool:
        """Whether every rank holds one stage."""
        return len({stage.rank for stage in self.stages}) == len(self.stages)


class PipelinePlanner(Protocol):
    """Turns a case into a proposal; None when it finds nothing."""

    @property
    def name(self) -> str: ...

    @property
    def optimal_among(self) -> str:
        """Which plans its answer is the best of; empty for a rule of thumb."""
        ...

    def propose(self, case: PipelineCase) -> PipelineProposal | None: ...


@dataclass(frozen=True, slots=True)
class PipelineRule:
    """A planner made of one function."""

    name: str
    function: Callable[[PipelineCase], PipelineProposal | None]
    optimal_among: str = ""

    def propose(self, case: PipelineCase) -> PipelineProposal | None:
        """Ask the function."""
        return self.function(case)


def plain_proposal(case: PipelineCase, ends: Sequence[int], notes: tuple[str, ...] = ()) -> PipelineProposal:
    """Stages with everything kept that end with these layers, one per rank."""
    firsts = [0, *(end + 1 for end in ends[:-1])]
    stages = tuple(
        ProposedStage(first, last, rank, case.plain_choice(first, last))
        for rank, (first, last) in enumerate(zip(firsts, ends, strict=True))
    )
    return PipelineProposal(stages, notes)


def check_case(case: PipelineCase) -> None:
    """Refuse numbers that no planner can work with."""
    num_layers, num_ranks = len(case.chain.layers), len(case.limits_bytes)
    if not num_layers:
        raise UsageError("the chain has no layers", found=case.chain.target, hint="a profile with at least one layer")
    if num_ranks < 1:
        raise UsageError("a pipeline needs at least one rank", found=str(num_ranks), hint="--ranks 4")
    pieces = 1 + sum(not layer.no_cut_because for layer in case.chain.layers[:-1])
    if num_ranks > pieces:
        raise UsageError(
            "there are more ranks than pieces that the chain can be cut into",
            found=f"{num_ranks} ranks, {num_layers} layers, {pieces} pieces", hint=f"--ranks {pieces}",
        )  # fmt: skip
    if min(case.limits_bytes) < 1 or case.num_micro_batches < 1:
        found = f"{min(case.limits_bytes)} bytes, {case.num_micro_batches} micro-batches"
        raise UsageError("memory and micro-batches must be above zero", found=found, hint="--memory 16GiB")
    if not case.link.bytes_per_second > 0 or case.link.latency_seconds < 0:
        raise UsageError("a link needs a speed above zero", found=str(case.link.bytes_per_second), hint="--link 12GB/s")
    _check_layers(case.chain)


def _check_layers(chain: PipelineChain) -> None:
    quantities = (
        "forward_seconds", "backward_seconds", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "output_bytes",
        "saved_bytes", "transient_bytes",
    )  # fmt: skip
    for layer in chain.layers:
        for name in quantities:
            value = getattr(layer, name)
            if not 0 <= value < float("inf"):
                raise UsageError(
                    f"layer {layer.name} has a {name.replace('_', ' ')} that is no size or time", found=str(value),
                    hint="zero or more",
                )  # fmt: skip
    if sum(layer.forward_seconds + layer.backward_seconds for layer in chain.layers) <= 0:
        raise UsageError("no layer of the chain takes any time", found=chain.target, hint="a profile with seconds")
