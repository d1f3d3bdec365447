"""Independent event simulation of pipelines: a periodic schedule checked, a step of many micro-batches played.

Neither function knows how a plan was made. `replay_periodic` unrolls the operations of a schedule over many periods
and checks that no resource does two things at once, that nothing starts before what it needs, and how many
micro-batches each stage and how many bytes each rank holds at every moment. `simulate_step` runs the orders of all
ranks, each action as early as it can be; a link carries one transfer at a time (in each direction, if it is full
duplex), in the order in which they are ready.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from memfit.errors import InvalidSchedule
from memfit.plan.pipeline.schedule.schedules import Orders, RankAction
from memfit.records.pipeline import (
    OperationKind,
    PeriodicOperation,
    PipelineCut,
    PipelineEvent,
    RankCurve,
    RankLink,
    SimulatedStep,
)

CLOSE = 1e-7
"""Of the period: what overlaps by less is rounding."""


@dataclass(frozen=True, slots=True)
class PeriodicReplay:
    """What a periodic schedule was seen to do."""

    in_flight: tuple[int, ...]
    """Most copies of every stage."""
    held_bytes: tuple[int, ...]
    """Most bytes of all micro-batches in flight on every rank."""


# ---- a periodic schedule ---------------------------------------------------------------------------------------


def replay_periodic(
    operations: Sequence[PeriodicOperation], cut: PipelineCut, period: float, *, full_duplex: bool = False
) -> PeriodicReplay:
    """Check a periodic schedule and count what it holds; raises InvalidSchedule with the first thing that is wrong."""
    tolerance = CLOSE * period
    num_shown = (max(each.shift for each in operations) + 3) * max(stage.num_replicas for stage in cut.stages)
    spans: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for each in operations:
        for k in range(-num_shown, num_shown + 1):
            start = each.start_seconds + (each.shift + k) * period
            name = f"{each.kind} of stage {each.stage}, micro-batch {k}"
            spans[_resource(each, cut, full_duplex, k)].append((start, start + each.seconds, name))
    for resource, own in spans.items():
        own.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise([s for s in own if s[1] - s[0] > tolerance]):
            if start < end - tolerance:
                raise InvalidSchedule(f"{resource} does two things at once", found=f"{first} and {second}")
    _check_order(operations, cut, period, tolerance)
    return _copies_held(operations, cut, period, num_shown)


def _resource(operation: PeriodicOperation, cut: PipelineCut, full_duplex: bool, micro_batch: int) -> str:
    own = rank_for(cut, operation.stage, micro_batch)
    if operation.kind not in ("send", "send back"):
        return f"rank {own}"
    other = rank_for(cut, operation.stage + 1, micro_batch)
    name = f"link {min(own, other)}-{max(own, other)}"
    return f"{name} {operation.kind}" if full_duplex else name


def rank_for(cut: PipelineCut, stage: int, micro_batch: int) -> int:
    """The rank that runs a micro-batch of a stage: replicas take them in turn."""
    own = cut.stages[stage]
    return own.rank + micro_batch % own.num_replicas


def _check_order(operations: Sequence[PeriodicOperation], cut: PipelineCut, period: float, tolerance: float) -> None:
    """Every operation of a micro-batch starts after the end of what it needs."""
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for each in operations:
        start = each.start_seconds + each.shift * period
        spans[each.kind, each.stage] = (start, start + each.seconds)
    num_stages = len(cut.stages)
    chain: list[tuple[str, int]] = []
    for stage in range(num_stages):
        chain += [("forward", stage), ("send", stage)]
    for stage in reversed(range(num_stages)):
        chain += [("send back", stage), ("backward", stage)]
    missing = [("forward", s) for s in range(num_stages)] + [("backward", s) for s in range(num_stages)]
    for key in missing:
        if key not in spans:
            raise InvalidSchedule("an operation is missing", found=f"{key[0]} of stage {key[1]}")
    present = [key for key in chain if key in spans]
    for before, following in itertools.pairwise(present):
        if spans[following][0] < spans[before][1] - tolerance:
            found = f"{following[0]} of stage {following[1]} before the end of {before[0]} of stage {before[1]}"
            raise InvalidSchedule("something starts before what it needs", found=found)


def _copies_held(
    operations: Sequence[PeriodicOperation], cut: PipelineCut, period: float, num_shown: int
) -> PeriodicReplay:
    """Count over the unrolled schedule; a copy lives from the start of its forward to the end of its backward."""
    starts = {each.stage: each.start_seconds + each.shift * period for each in operations if each.kind == "forward"}
    ends = {
        each.stage: each.start_seconds + each.shift * period + each.seconds
        for each in operations
        if each.kind == "backward"
    }
    changes: list[tuple[float, int, int, int]] = []
    for stage in starts:
        for k in range(2 * num_shown + 2):
            rank = rank_for(cut, stage, k)
            changes.append((starts[stage] + k * period, 1, stage, rank))
            changes.append((ends[stage] + k * period - CLOSE * period, 0, stage, rank))
    held: dict[tuple[int, int], int] = defaultdict(int)
    most, rank_bytes, rank_most = [0] * len(cut.stages), [0] * cut.num_ranks, [0] * cut.num_ranks
    for _, begins, stage, rank in sorted(changes):
        size = cut.stages[stage].choice.held_bytes
        held[stage, rank] += 1 if begins else -1
        rank_bytes[rank] += size if begins else -size
        most[stage] = max(most[stage], held[stage, rank])
        rank_most[rank] = max(rank_most[rank], rank_bytes[rank])
    return PeriodicReplay(tuple(most), tuple(rank_most))


# ---- one step --------------------------------------------------------------------------------------------------

_KINDS: dict[str, OperationKind] = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def simulate_step(
    cut: PipelineCut,
    orders: Orders,
    sent_bytes: Sequence[int],
    link: RankLink,
    fixed_bytes: Sequence[int],
    *,
    weight_share: float = 0.5,
    copy_bytes: Sequence[int] | None = None,
) -> SimulatedStep:
    """Run the orders of all ranks; every action starts as soon as its rank is free and its inputs have arrived.

    `sent_bytes` is what each stage sends on, `fixed_bytes` what each rank holds all the time, `copy_bytes` what one
    micro-batch of each stage holds (the choice's own bytes by default). `weight_share` is the part of a split
    backward that the weights take.
    """
    played = _Player(cut, orders, sent_bytes, link, weight_share)
    played.run()
    seconds = max((event.start_seconds + event.seconds for event in played.events), default=0.0)
    held = [stage.choice.held_bytes for stage in cut.stages] if copy_bytes is None else copy_bytes
    curves = tuple(_curve(rank, cut, played, held, fixed_bytes[rank], seconds) for rank in range(cut.num_ranks))
    busy = [0.0] * cut.num_ranks
    for event in played.events:
        if event.resource.startswith("rank"):
            busy[int(event.resource.split()[1])] += event.seconds
    return SimulatedStep(
        events=tuple(sorted(played.events, key=lambda event: (event.start_seconds, event.resource))),
        seconds=seconds,
        idle_shares=tuple(1 - own / seconds if seconds > 0 else 0.0 for own in busy),
        curves=curves,
        peak_bytes=tuple(max(curve.num_bytes) for curve in curves),
    )


class _Player:
    """Runs orders: time moves from one end of an action or transfer to the next."""

    def __init__(
        self, cut: PipelineCut, orders: Orders, sent_bytes: Sequence[int], link: RankLink, weight_share: float
    ) -> None:
        self.cut, self.orders, self.link = cut, orders, link
        self.sent_bytes, self.weight_share = sent_bytes, weight_share
        self.has_weights = {action[:1] + action[2:] for order in orders for action in order if action.kind == "W"}
        self.position = [0] * len(orders)
        self.busy = [False] * len(orders)
        self.queues: dict[str, list[RankAction]] = defaultdict(list)
        self.carrying: set[str] = set()
        self.ready: set[RankAction] = set()
        self.events: list[PipelineEvent] = []
        self.moments: list[tuple[float, int, str, RankAction]] = []
        self.counter = itertools.count()

    def run(self) -> None:
        """Start what can start, until nothing is left; raises InvalidSchedule when the ranks wait for ever."""
        self._start_ranks(0.0)
        while self.moments:
            now, _, what, action = heapq.heappop(self.moments)
            self._end(now, what, action)
            while self.moments and self.moments[0][0] <= now:
                _, _, what, action = heapq.heappop(self.moments)
                self._end(now, what, action)
            self._start_ranks(now)
        stuck = [str(order[i]) for order, i in zip(self.orders, self.position, strict=True) if i < len(order)]
        if stuck:
            raise InvalidSchedule("the ranks wait for each other for ever", found=", ".join(stuck))

    def _start_ranks(self, now: float) -> None:
        for rank, order in enumerate(self.orders):
            if self.busy[rank] or self.position[rank] >= len(order):
                continue
            action = order[self.position[rank]]
            if not self._is_ready(action):
                continue
            self.position[rank] += 1
            self.busy[rank] = True
            self._event(_KINDS[action.kind], action, f"rank {rank}", now, self._seconds(action))
            heapq.heappush(self.moments, (now + self._seconds(action), next(self.counter), f"rank {rank}", action))

    def _is_ready(self, action: RankAction) -> bool:
        return (action.stage == 0 and action.kind == "F") or action in self.ready

    def _seconds(self, action: RankAction) -> float:
        """A backward whose weights come later takes the rest of what the whole one takes."""
        choice = self.cut.stages[action.stage].choice
        if action.kind == "F":
            return choice.forward_seconds
        if action.kind == "W":
            return choice.backward_seconds * self.weight_share
        is_split = (action.stage, action.micro_batch) in self.has_weights
        return choice.backward_seconds * (1 - self.weight_share if is_split else 1.0)

    def _end(self, now: float, what: str, action: RankAction) -> None:
        if what.startswith("link"):
            self.carrying.discard(what)
            self.ready.add(action)
            self._carry(what, now)
            return
        self.busy[int(what.split()[1])] = False
        stage, kind, k = action
        if kind == "F":
            following = RankAction(stage + 1, "F", k)
            if stage + 1 < len(self.cut.stages):
                self._send(stage, stage + 1, [following], now)
            else:
                self.ready |= {RankAction(stage, "B", k), RankAction(stage, "I", k)}
        elif kind in "BI":
            self.ready.add(RankAction(stage, "W", k))
            if stage:
                self._send(stage, stage - 1, [RankAction(stage - 1, "B", k), RankAction(stage - 1, "I", k)], now)

    def _send(self, stage: int, to: int, makes_ready: list[RankAction], now: float) -> None:
        """Over the link of the two ranks, behind what is already waiting there; at once on the same rank."""
        k = makes_ready[0].micro_batch
        own, other = rank_for(self.cut, stage, k), rank_for(self.cut, to, k)
        if own == other:
            self.ready |= set(makes_ready)
            return
        name = f"link {min(own, other)}-{max(own, other)}"
        if self.link.full_duplex:
            name += " forward" if to > stage else " back"
        kept = [action for action in makes_ready if action.kind == "F" or action in self._in_orders]
        self.queues[name].append(kept[0])
        self._carry(name, now)

    @cached_property
    def _in_orders(self) -> set[RankAction]:
        return {action for order in self.orders for action in order}

    def _carry(self, name: str, now: float) -> None:
        if name in self.carrying or not self.queues[name]:
            return
        action = self.queues[name].pop(0)
        boundary = action.stage - 1 if action.kind == "F" else action.stage
        seconds = self.link.seconds_for(self.sent_bytes[boundary])
        self.carrying.add(name)
        sent = RankAction(boundary, action.kind, action.micro_batch)
        self._event("send" if action.kind == "F" else "send back", sent, name, now, seconds)
        heapq.heappush(self.moments, (now + seconds, next(self.counter), name, action))

    def _event(self, kind: OperationKind, action: RankAction, resource: str, start: float, seconds: float) -> None:
        self.events.append(
            PipelineEvent(
                kind=kind, stage=action.stage, micro_batch=action.micro_batch, resource=resource,
                start_seconds=start, seconds=seconds,
            )
        )  # fmt: skip


def _curve(
    rank: int, cut: PipelineCut, played: _Player, copy_bytes: Sequence[int], fixed_bytes: int, seconds: float
) -> RankCurve:
    """Bytes of one rank over time: a micro-batch is held from the start of its forward to the end of its last backward;
    working memory is there while something runs. In the order of its work, for what takes no time holds bytes too."""
    times, values, held = [0.0], [fixed_bytes], fixed_bytes
    for event in (event for event in played.events if event.resource == f"rank {rank}"):
        held += copy_bytes[event.stage] if event.kind == "forward" else 0
        running = held + cut.stages[event.stage].choice.working_bytes
        if event.start_seconds == times[-1] and running >= values[-1]:
            values[-1] = running
        else:
            times.append(event.start_seconds)
            values.append(running)
        if event.kind == "weight" or (
            event.kind == "backward" and (event.stage, event.micro_batch) not in played.has_weights
        ):
            held -= copy_bytes[event.stage]
        times.append(event.start_seconds + event.seconds)
        values.append(held)
    return RankCurve(rank=rank, seconds=(*times, seconds), num_bytes=(*values, values[-1]))
