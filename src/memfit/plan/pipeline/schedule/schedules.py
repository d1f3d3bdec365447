"""Orders of work of every rank: GPipe, 1F1B, interleaved 1F1B, zero-bubble, V-shaped, and any periodic schedule.

An order is a list of actions like those of torch's schedule files. GPipe, 1F1B and interleaved 1F1B are written down
directly. Zero-bubble and V-shaped schedules are made by a greedy rule with the number of micro-batches in flight that
torch.distributed.pipelining has for them: a rank that is free takes a backward that is ready, else a forward if it may
hold one more, else the weights of an earlier backward.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from memfit.errors import UsageError
from memfit.records.pipeline import PeriodicOperation, ScheduleName

Ranks = tuple[int, ...]
"""The rank of every stage."""


class RankAction(NamedTuple):
    """One operation of a rank; `kind` is F, B, or I and W where the backward is split."""

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Orders = list[list[RankAction]]
"""What each rank does, one after another."""
STAGES_PER_RANK: dict[ScheduleName, int] = {
    "gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "interleaved-zero-bubble": 2, "zbv-zero-bubble": 2, "dualpipev": 2,
}  # fmt: skip
SPLIT_BACKWARD: tuple[ScheduleName, ...] = ("interleaved-zero-bubble", "zbv-zero-bubble", "dualpipev")
V_SHAPED: tuple[ScheduleName, ...] = ("zbv-zero-bubble", "dualpipev")


def ranks_of(schedule: ScheduleName, num_ranks: int) -> Ranks:
    """Which rank holds which stage: one each, round again, or down and up again."""
    if STAGES_PER_RANK.get(schedule, 1) == 1:
        return tuple(range(num_ranks))
    down = tuple(range(num_ranks))
    return down + (down[::-1] if schedule in V_SHAPED else down)


def most_in_flight(schedule: ScheduleName, num_ranks: int, rank: int, num_micro_batches: int) -> int:
    """Micro-batches of all its stages that a rank has in flight, as torch 2.13 was counted to have them."""
    per_rank = STAGES_PER_RANK.get(schedule, 1)
    every = num_micro_batches * per_rank
    if schedule == "gpipe":
        return every
    if schedule == "1f1b":
        return min(every, num_ranks - rank)
    if schedule == "interleaved-1f1b":
        return min(every, (per_rank - 1) * num_ranks + 2 * (num_ranks - 1 - rank) + 1)
    if schedule == "interleaved-zero-bubble":
        return min(every, per_rank * num_ranks)
    if schedule == "zbv-zero-bubble":
        return min(every, 2 * num_ranks)
    if schedule == "dualpipev":
        return min(every, 2 * num_ranks + 1)
    raise UsageError("there is no such schedule", found=repr(schedule), hint=", ".join(STAGES_PER_RANK))


def check_schedule(schedule: ScheduleName, num_ranks: int, num_micro_batches: int) -> None:
    """Refuse numbers that a schedule cannot run with, before anything is planned."""
    if schedule == "1f1b" and num_micro_batches < num_ranks:
        raise UsageError(
            "1F1B needs as many micro-batches as ranks", found=f"{num_micro_batches} and {num_ranks}",
            hint=f"--micro-batches {num_ranks}, or --schedule gpipe",
        )  # fmt: skip
    if schedule.startswith("interleaved") and num_micro_batches % num_ranks:
        raise UsageError(
            "interleaved schedules need a multiple of the ranks as micro-batches",
            found=f"{num_micro_batches} and {num_ranks}",
            hint=f"--micro-batches {-(-num_micro_batches // num_ranks) * num_ranks}",
        )  # fmt: skip
    least = 2 * num_ranks if schedule == "dualpipev" else num_ranks
    if schedule in V_SHAPED and num_micro_batches < least:
        raise UsageError(
            f"{schedule} needs at least {least} micro-batches on {num_ranks} ranks", found=str(num_micro_batches),
            hint=f"--micro-batches {least}",
        )  # fmt: skip


def orders_of(schedule: ScheduleName, num_ranks: int, num_micro_batches: int) -> Orders:
    """What each rank does under a named schedule."""
    check_schedule(schedule, num_ranks, num_micro_batches)
    if schedule == "gpipe":
        return [_gpipe(rank, num_micro_batches) for rank in range(num_ranks)]
    if schedule == "1f1b":
        return [_one_forward_one_backward(rank, num_ranks, num_micro_batches) for rank in range(num_ranks)]
    if schedule == "interleaved-1f1b":
        return [_interleaved(rank, num_ranks, num_micro_batches) for rank in range(num_ranks)]
    caps = [most_in_flight(schedule, num_ranks, rank, num_micro_batches) for rank in range(num_ranks)]
    return greedy_orders(ranks_of(schedule, num_ranks), caps, num_micro_batches, split=schedule in SPLIT_BACKWARD)


def _gpipe(rank: int, num_micro_batches: int) -> list[RankAction]:
    forwards = [RankAction(rank, "F", k) for k in range(num_micro_batches)]
    return forwards + [RankAction(rank, "B", k) for k in range(num_micro_batches)]


def _one_forward_one_backward(rank: int, num_ranks: int, num_micro_batches: int) -> list[RankAction]:
    warm_up = min(num_micro_batches, num_ranks - rank)
    forwards = [RankAction(rank, "F", k) for k in range(num_micro_batches)]
    backwards = [RankAction(rank, "B", k) for k in range(num_micro_batches)]
    return _alternate(forwards, backwards, warm_up)


def _alternate(forwards: list[RankAction], backwards: list[RankAction], warm_up: int) -> list[RankAction]:
    """Forwards until `warm_up` are in flight, then a backward and a forward in turn, then the other backwards."""
    found = forwards[:warm_up]
    for index, backward in enumerate(backwards):
        found.append(backward)
        found += forwards[warm_up + index : warm_up + index + 1]
    return found


def _interleaved(rank: int, num_ranks: int, num_micro_batches: int) -> list[RankAction]:
    """Rounds of as many micro-batches as ranks through one stage after another; backwards in the reverse order."""
    per_rank = STAGES_PER_RANK["interleaved-1f1b"]
    warm_up = min(num_micro_batches * per_rank, (per_rank - 1) * num_ranks + 2 * (num_ranks - 1 - rank) + 1)
    stages = [rank + chunk * num_ranks for chunk in range(per_rank)]
    rounds = [range(start, start + num_ranks) for start in range(0, num_micro_batches, num_ranks)]
    forwards = [RankAction(stage, "F", k) for members in rounds for stage in stages for k in members]
    backwards = [RankAction(stage, "B", k) for members in rounds for stage in stages[::-1] for k in members]
    return _alternate(forwards, backwards, warm_up)


def periodic_orders(
    operations: Sequence[PeriodicOperation],
    ranks: Ranks,
    num_ranks: int,
    period: float,
    num_micro_batches: int,
    replicas: Sequence[int] = (),
) -> Orders:
    """What each rank does when a periodic schedule runs this many micro-batches, warm-up and drain included."""
    replicas = replicas or [1] * len(ranks)
    found: list[list[tuple[float, int, RankAction]]] = [[] for _ in range(num_ranks)]
    for operation in operations:
        if operation.kind not in ("forward", "backward"):
            continue
        kind = "F" if operation.kind == "forward" else "B"
        for k in range(num_micro_batches):
            moment = operation.start_seconds + (operation.shift + k) * period
            # of operations without length at one moment, the chain says which comes first
            place = operation.stage if kind == "F" else 2 * len(ranks) - operation.stage
            rank = ranks[operation.stage] + k % replicas[operation.stage]
            found[rank].append((moment, place, RankAction(operation.stage, kind, k)))
    return [[action for _, _, action in sorted(own, key=lambda each: each[:2])] for own in found]


# ---- the greedy rule -------------------------------------------------------------------------------------------


def greedy_orders(
    ranks: Ranks,
    caps: Sequence[int],
    num_micro_batches: int,
    *,
    split: bool = False,
    seconds: Sequence[tuple[float, float, float]] | None = None,
) -> Orders:
    """Orders by list scheduling: backward first, then a forward below the cap of the rank, then weights.

    `seconds` are forward, backward (of inputs where `split`), and weights of every stage; all equal by default. A
    forward deeper in the chain goes before one at its start, so that the caps can never block a backward.
    """
    num_stages, num_ranks = len(ranks), max(ranks) + 1
    seconds = seconds or [(1.0, 1.0 if split else 2.0, 1.0)] * num_stages
    orders: Orders = [[] for _ in range(num_ranks)]
    ready: list[dict[str, list[RankAction]]] = [{"F": [], "B": [], "W": []} for _ in range(num_ranks)]
    held, free_at = [0] * num_ranks, [0.0] * num_ranks
    reserved = _reserved(ranks, caps)
    backward = "I" if split else "B"
    for k in range(num_micro_batches):
        ready[ranks[0]]["F"].append(RankAction(0, "F", k))
    moments: list[tuple[float, int, RankAction | None]] = [(0.0, -1, None)]
    while moments:
        now, _, ended = heapq.heappop(moments)
        if ended is not None:
            _hand_on(ended, ranks, ready, held, backward, split)
        while moments and math.isclose(moments[0][0], now, rel_tol=1e-12, abs_tol=1e-15):
            _, _, other = heapq.heappop(moments)
            if other is not None:
                _hand_on(other, ranks, ready, held, backward, split)
        for rank in range(num_ranks):
            action = _next_action(ready[rank], held[rank], caps[rank], reserved) if free_at[rank] <= now else None
            if action is None:
                continue
            orders[rank].append(action)
            held[rank] += action.kind == "F"
            length = seconds[action.stage]["FIW".index(action.kind) if split else "FB".index(action.kind)]
            free_at[rank] = now + length
            heapq.heappush(moments, (now + length, len(orders[rank]) * num_ranks + rank, action))
    return orders


def _reserved(ranks: Ranks, caps: Sequence[int]) -> dict[int, int]:
    """Copies that a rank keeps free for its later stages when it takes a forward of this stage."""
    return {stage: sum(other == rank for other in ranks[stage + 1 :]) for stage, rank in enumerate(ranks)}


def _next_action(
    ready: dict[str, list[RankAction]], held: int, cap: int, reserved: dict[int, int]
) -> RankAction | None:
    if ready["B"]:
        return _taken(ready["B"], min(ready["B"], key=lambda each: (each.micro_batch, -each.stage)))
    fitting = [each for each in ready["F"] if held + 1 + reserved[each.stage] <= max(cap, 1 + reserved[each.stage])]
    if fitting:
        return _taken(ready["F"], max(fitting, key=lambda each: (each.stage, -each.micro_batch)))
    return _taken(ready["W"], ready["W"][0]) if ready["W"] else None


def _taken(among: list[RankAction], action: RankAction) -> RankAction:
    among.remove(action)
    return action


def _hand_on(
    ended: RankAction,
    ranks: Ranks,
    ready: list[dict[str, list[RankAction]]],
    held: list[int],
    backward: str,
    split: bool,
) -> None:
    """What becomes ready when an action is over, and what it frees."""
    stage, kind, k = ended
    last = len(ranks) - 1
    if kind == "F":
        following = RankAction(stage + 1, "F", k) if stage < last else RankAction(stage, backward, k)
        ready[ranks[following.stage]]["F" if stage < last else "B"].append(following)
        return
    if kind in "BI" and stage:
        ready[ranks[stage - 1]]["B"].append(RankAction(stage - 1, backward, k))
    if kind == "I":
        ready[ranks[stage]]["W"].append(RankAction(stage, "W", k))
    if kind in "BW":
        held[ranks[stage]] -= 1
