"""Allocations with one special rank that may hold several stages (MadPipe): a dynamic program for a target period.

States, from the last layer to the first: layers left, ordinary ranks used, load and memory already on the special rank
(both rounded up to a grid), and whether the stage behind lies on it; the value is the least delay by the rule of
`steady.after`. A stage on the special rank takes its share of load and of memory, with the copies that its delay asks
for. Because the rank's stages share it, the delay is an estimate: the program only proposes allocations, and the
integer program of `scipy_schedule` finds their real period. A heuristic, after Beaumont, Eyraud-Dubois and Shilova
(2022), whose text was not at hand; ranks must be alike. O(L^2 P G^2) for a grid of G steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from memfit.plan.pipeline.case import PipelineCase, ProposedStage
from memfit.plan.pipeline.schedule.steady import ROUNDING, after, copies

GRID = 12
SPECIAL = -1


class _State(NamedTuple):
    """What is behind a layer."""

    num_ordinary: int
    load: int
    memory: int
    on_special: bool


class _Step(NamedTuple):
    """The least delay of a state, and the stage that led to it."""

    delay: float
    last: int
    special: bool
    behind: _State | None


def allocation_for(case: PipelineCase, period: float) -> tuple[ProposedStage, ...] | None:
    """Stages whose estimate keeps this period, with a shared rank; None when the program finds none."""
    tables: list[dict[_State, _Step]] = [{} for _ in range(case.num_layers + 1)]
    tables[case.num_layers][_State(0, 0, 0, False)] = _Step(0.0, -1, False, None)
    for first in reversed(range(case.num_layers)):
        for last in range(first, case.num_layers):
            if not case.can_cut(last) and last + 1 < case.num_layers:
                continue
            choice = case.plain_choice(first, last)
            load = choice.forward_seconds + choice.backward_seconds
            if load > period * (1 + ROUNDING):
                break
            for state, step in tables[last + 1].items():
                _extend(case, period, first, last, load, state, step, tables[first])
    for _, state in sorted((step.delay, state) for state, step in tables[0].items()):
        stages = _stages(case, tables, state)
        if len({stage.rank for stage in stages}) < len(stages):
            return stages
    return None


def _extend(
    case: PipelineCase,
    period: float,
    first: int,
    last: int,
    load: float,
    state: _State,
    step: _Step,
    table: dict[_State, _Step],
) -> None:
    """Put a stage in front of a state, on an ordinary rank and on the special one."""
    delay = _behind_link(case, last, step.delay, period)
    if delay is None:
        return
    choice, limit = case.plain_choice(first, last), case.limits_bytes[0]
    delay = after(delay, load, period)
    needed = case.stage_bytes(first, last, choice, copies(delay, period))
    if needed > limit:
        return
    if state.num_ordinary < case.num_ranks - 1:
        _keep(table, _State(state.num_ordinary + 1, state.load, state.memory, False), _Step(delay, last, False, state))
    if not state.on_special:
        new_load = state.load + math.ceil(load / period * GRID - ROUNDING)
        new_memory = state.memory + math.ceil(needed / limit * GRID - ROUNDING)
        if new_load <= GRID and new_memory <= GRID:
            _keep(table, _State(state.num_ordinary, new_load, new_memory, True), _Step(delay, last, True, state))


def _behind_link(case: PipelineCase, last: int, delay: float, period: float) -> float | None:
    """The delay with the transfer behind a stage; None when the transfer alone takes longer than the period."""
    if last + 1 == case.num_layers:
        return delay
    one_way = case.link_seconds(last)
    if case.link.full_duplex:
        return delay + 2 * one_way if one_way <= period else None
    return after(delay, 2 * one_way, period) if 2 * one_way <= period * (1 + ROUNDING) else None


def _keep(table: dict[_State, _Step], state: _State, step: _Step) -> None:
    if state not in table or step.delay < table[state].delay:
        table[state] = step


def _stages(case: PipelineCase, tables: list[dict[_State, _Step]], state: _State) -> tuple[ProposedStage, ...]:
    """Follow the steps; ranks are numbered as they come along the chain."""
    found: list[tuple[int, int, bool]] = []
    first: int = 0
    current: _State | None = state
    while current is not None and first < case.num_layers:
        step = tables[first][current]
        found.append((first, step.last, step.special))
        first, current = step.last + 1, step.behind
    ranks: dict[int, int] = {}
    stages = []
    for index, (start, last, special) in enumerate(found):
        rank = ranks.setdefault(SPECIAL if special else index, len(ranks))
        stages.append(ProposedStage(start, last, rank, case.plain_choice(start, last)))
    return tuple(stages)
