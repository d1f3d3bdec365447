"""Best plan of a tiny chain by trying all of them; shares no code with the planners.

Plans are tuples of their own: `("keep", stage, option)` and `("again", inside)`. Each is acted out on a meter that
holds and drops bytes; transfers are acted out moment by moment. Everything is written for plainness, nothing for
speed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from memfit.records.plan import Chain, Link

Plan = tuple["Act", ...]
Act = tuple
"""("keep", stage, option) or ("again", plan)."""


def every_plan(chain: Chain, first: int, end: int, *, to_the_end: bool = False) -> Iterator[Plan]:
    """All nested plans of stages `first` to `end - 1`.

    Recomputing a run that reaches the end is left out unless asked for: it computes a stage twice in a row.
    """
    if first == end:
        yield ()
        return
    stage = chain.stages[first]
    for option in (None, *range(len(stage.options))):
        for rest in every_plan(chain, first + 1, end, to_the_end=to_the_end):
            yield (("keep", first, option), *rest)
    for middle in range(first + 1, end + 1 if to_the_end else end):
        if not _may_repeat(chain, first, middle):
            continue
        for inside in every_plan(chain, first, middle, to_the_end=to_the_end and middle < end):
            for rest in every_plan(chain, middle, end, to_the_end=to_the_end):
                yield (("again", inside), *rest)


def _may_repeat(chain: Chain, first: int, end: int) -> bool:
    stages = chain.stages[first:end]
    return all(stage.recomputable for stage in stages) and all(stage.joins_next for stage in stages[:-1])


# ---- acting a plan out ---------------------------------------------------------------------------------------


@dataclass
class Happening:
    """One thing the processor does, with who is in memory meanwhile."""

    seconds: float
    present: dict[str, int]
    extra_bytes: int
    reads: tuple[str, ...]
    forward: bool


@dataclass
class Stage0:
    """The stage of a theatre: who is in memory now, and what has happened."""

    chain: Chain
    present: dict[str, int] = field(default_factory=dict)
    happened: list[Happening] = field(default_factory=list)
    forward: bool = True
    names: Iterator[int] = field(default_factory=itertools.count)

    def enter(self, what: str, num_bytes: int) -> str:
        name = f"{what}#{next(self.names)}"
        self.present[name] = num_bytes
        return name

    def do(self, seconds: float, extra_bytes: int, *reads: str) -> None:
        self.happened.append(Happening(seconds, dict(self.present), extra_bytes, reads, self.forward))


def act_out(chain: Chain, plan: Plan) -> list[Happening]:
    """Everything that happens in one step of training; the left-behinds of the first forward are called 'left<k>'."""
    theatre = Stage0(chain)
    fixed = chain.fixed
    theatre.enter(
        "base", fixed.parameter_bytes + fixed.gradient_bytes + fixed.optimizer_state_bytes + fixed.other_bytes
    )
    batch = theatre.enter("batch", chain.input_bytes)
    left = _go(theatre, plan, batch, outer=True)
    theatre.forward = False
    gradient = theatre.enter("gradient", chain.stages[-1].output_bytes)
    gradient = _return(theatre, plan, left, batch, gradient)
    del theatre.present[gradient]
    theatre.do(chain.update_seconds, chain.update_transient_bytes)
    return theatre.happened


def _go(theatre: Stage0, plan: Plan, source: str, *, outer: bool = False) -> list[str]:
    left = []
    for position, act in enumerate(plan):
        title = f"left{position}" if outer else "inner"
        if act[0] == "keep":
            way = _way(theatre.chain, act)
            name = theatre.enter(title, way.saved_bytes)
            theatre.do(way.forward_seconds, way.forward_transient_bytes, source)
        else:
            name, stages = source, _stages(act)
            for index in stages:
                stage = theatre.chain.stages[index]
                what = title if index == stages[-1] else "passing"
                before, name = name, theatre.enter(what, stage.output_bytes)
                theatre.do(stage.forward_seconds + stage.checkpoint_seconds, stage.forward_transient_bytes, before)
                if before != source:
                    del theatre.present[before]
        left.append(name)
        source = name
    return left


def _return(theatre: Stage0, plan: Plan, left: list[str], batch: str, gradient: str) -> str:
    sources = [batch, *left]
    for position in reversed(range(len(plan))):
        act, source, mine = plan[position], sources[position], sources[position + 1]
        if act[0] == "keep":
            gradient = _one_backward(theatre, act, mine, source, gradient)
            del theatre.present[mine]
        else:
            inner = _go(theatre, act[1], source)
            gradient = _return(theatre, act[1], inner, source, gradient)
            if position == len(plan) - 1:
                del theatre.present[mine]
        if position and plan[position - 1][0] == "again":
            del theatre.present[source]
    return gradient


def _one_backward(theatre: Stage0, act: Act, mine: str, source: str, gradient: str) -> str:
    chain, index = theatre.chain, act[1]
    way = _way(chain, act)
    upstream = chain.stages[index - 1].output_bytes if index else chain.input_gradient_bytes
    name = theatre.enter("gradient", upstream)
    theatre.enter("parameter gradients", chain.stages[index].gradient_bytes)
    theatre.do(way.backward_seconds, way.backward_transient_bytes, mine, source, gradient)
    del theatre.present[gradient]
    return name


def _way(chain: Chain, act: Act):
    stage = chain.stages[act[1]]
    return stage if act[2] is None else stage.options[act[2]]


def _stages(act: Act) -> list[int]:
    return [act[1]] if act[0] == "keep" else [index for inner in act[1] for index in _stages(inner)]


def cost_of(happened: list[Happening]) -> tuple[float, int]:
    """Seconds and peak when nothing is moved."""
    seconds = sum(event.seconds for event in happened)
    return seconds, max(sum(event.present.values()) + event.extra_bytes for event in happened)


def best_nested(chain: Chain, *, to_the_end: bool = False) -> list[tuple[int, float]]:
    """(peak, seconds) of all nested plans that no other one beats in both, by rising peak."""
    costs: set[tuple[int, float]] = set()
    for plan in every_plan(chain, 0, len(chain.stages), to_the_end=to_the_end):
        seconds, peak_bytes = cost_of(act_out(chain, plan))
        costs.add((peak_bytes, seconds))
    return unbeaten(costs)


def unbeaten(costs: set[tuple[int, float]]) -> list[tuple[int, float]]:
    """The lower left edge of a cloud."""
    edge: list[tuple[int, float]] = []
    for peak, seconds in sorted(costs):
        if not edge or seconds < edge[-1][1]:
            edge.append((peak, seconds))
    return edge


# ---- moving ----------------------------------------------------------------------------------------------------


@dataclass
class Traveller:
    """A left-behind that is moved."""

    name: str
    num_bytes: int
    made: int
    last_forward: int
    needed: int
    freed: int


def travellers(happened: list[Happening], chosen: tuple[int, ...]) -> list[Traveller]:
    """What the chosen acts of the first forward leave behind, in order."""
    found = []
    for position in chosen:
        name = next(n for e in happened if e.forward for n in e.reads if n.startswith(f"left{position}#"))
        readers = [k for k, event in enumerate(happened) if name in event.reads]
        here = [k for k, event in enumerate(happened) if name in event.present]
        forward = [k for k in readers if happened[k].forward]
        found.append(
            Traveller(
                name, happened[here[0]].present[name], here[0], max(forward),
                min(k for k in readers if not happened[k].forward), here[-1],
            )
        )  # fmt: skip
    return found


def move(happened: list[Happening], chosen: tuple[int, ...], link: Link, budget_bytes: int) -> float | None:
    """Seconds when the chosen left-behinds travel and the budget is never exceeded; None when that cannot be.

    A fetch starts as soon as it could stay until it is needed without any later happening lacking room.
    """
    people = travellers(happened, chosen)
    if link.capacity_bytes is not None and sum(person.num_bytes for person in people) > link.capacity_bytes:
        return None
    starts = []
    for position, person in enumerate(people):
        turn = next(k for k, event in enumerate(happened) if not event.forward)
        crowded = [k for k in range(turn, person.needed) if _room(happened[k], people[:position], budget_bytes) < 0]
        starts.append(crowded[-1] if crowded else turn - 1)
    return travel(happened, people, starts, link, budget_bytes)


def _room(event: Happening, absent: list[Traveller], budget_bytes: int) -> int:
    names = {person.name for person in absent}
    there = sum(size for name, size in event.present.items() if name not in names)
    return budget_bytes - there - event.extra_bytes


def travel(
    happened: list[Happening], people: list[Traveller], starts: list[int], link: Link, budget_bytes: int
) -> float | None:
    """Act out given fetches: each happening waits for sends until there is room; None when it never comes."""
    out_seconds = [link.latency_seconds + p.num_bytes / link.out_bytes_per_second for p in people]
    in_seconds = [link.latency_seconds + p.num_bytes / link.in_bytes_per_second for p in people]
    now, ends = 0.0, []
    for index, event in enumerate(happened):
        sent = _sent(people, out_seconds, ends)
        back = _back(people, in_seconds, starts, sent, ends)
        for position, person in enumerate(people):
            if person.needed <= index:
                fetched = back[position]
                if fetched is None:
                    return None
                now = max(now, fetched[1])
        while True:
            end = now + event.seconds
            if _fits(event, index, people, sent, back, now, end, budget_bytes):
                break
            later = [when for when in sent if when > now]
            if not later:
                return None
            now = min(later)
        now = end
        ends.append(now)
    return now


def _sent(people: list[Traveller], out_seconds: list[float], ends: list[float]) -> list[float]:
    """When each send is over, as far as that is known."""
    sent: list[float] = []
    for person, seconds in zip(people, out_seconds, strict=True):
        if person.made >= len(ends):
            break
        sent.append(max(ends[person.made], sent[-1] if sent else 0.0) + seconds)
    return sent


def _back(people, in_seconds, starts, sent, ends) -> list[tuple[float, float] | None]:
    """Start and end of each fetch, as far as that is known."""
    back: list[tuple[float, float] | None] = [None] * len(people)
    if len(sent) < len(people):
        return back
    free = sent[-1] if sent else 0.0
    for position in reversed(range(len(people))):
        if starts[position] >= len(ends):
            break
        begin = max(free, ends[starts[position]])
        free = begin + in_seconds[position]
        back[position] = (begin, free)
    return back


def _fits(event, index, people, sent, back, start, end, budget_bytes) -> bool:
    """Whether there is room from start to end of a happening."""
    total = sum(event.present.values()) + event.extra_bytes
    for position, person in enumerate(people):
        if person.name not in event.present:
            continue
        gone = position < len(sent) and sent[position] <= start and person.last_forward < index < person.needed
        returned = back[position] is not None and (back[position][0] < end or back[position][0] <= start)
        if gone and not returned:
            total -= person.num_bytes
    return total <= budget_bytes


def best_moving(chain: Chain, link: Link, budget_bytes: int, plan: Plan | None = None) -> float | None:
    """The least seconds over all sets of left-behinds of one plan; everything kept unless said otherwise."""
    plan = plan or tuple(("keep", index, None) for index in range(len(chain.stages)))
    happened = act_out(chain, plan)
    least = None
    for count in range(len(plan)):
        for chosen in itertools.combinations(range(len(plan) - 1), count):
            seconds = move(happened, chosen, link, budget_bytes)
            if seconds is not None and (least is None or seconds < least):
                least = seconds
    return least


def best_of_all(chain: Chain, link: Link, budget_bytes: int, *, to_the_end: bool = False) -> float | None:
    """The least seconds over all nested plans and all sets of what they leave."""
    found = [
        best_moving(chain, link, budget_bytes, plan)
        for plan in every_plan(chain, 0, len(chain.stages), to_the_end=to_the_end)
    ]
    return min((seconds for seconds in found if seconds is not None), default=None)


def best_starts(happened: list[Happening], chosen: tuple[int, ...], link: Link, budget_bytes: int) -> float | None:
    """The least seconds over all moments at which each fetch may start, for one set."""
    people = travellers(happened, chosen)
    turn = next(k for k, event in enumerate(happened) if not event.forward)
    choices = [range(turn - 1, person.needed) for person in people]
    found = [travel(happened, people, list(starts), link, budget_bytes) for starts in itertools.product(*choices)]
    return min((seconds for seconds in found if seconds is not None), default=None)


# ---- beyond nested plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class _Moment:
    """Which bare outputs and which saved sets are in memory, and down to which boundary the backward has come."""

    down_to: int
    turned: bool
    bare: frozenset[int]
    saved: frozenset[int]


def best_unrestricted(chain: Chain, budget_bytes: int) -> float | None:
    """The least seconds of any order of forwards, backwards and discards, nested or not; nothing is moved.

    Stages are kept the plain way and may all be repeated.
    """
    count = len(chain.stages)
    start = _Moment(count, False, frozenset(), frozenset())
    todo: list[tuple[float, int, _Moment]] = [(chain.update_seconds, 0, start)]
    done: set[_Moment] = set()
    ticket = itertools.count(1)
    while todo:
        seconds, _, moment = heapq.heappop(todo)
        if moment in done:
            continue
        done.add(moment)
        if moment.down_to == 0:
            return seconds
        for more, after in _next_moments(chain, moment, budget_bytes):
            if after not in done:
                heapq.heappush(todo, (seconds + more, next(ticket), after))
    return None


def _next_moments(chain: Chain, moment: _Moment, budget_bytes: int) -> Iterator[tuple[float, _Moment]]:
    for value in moment.bare:
        yield 0.0, replace(moment, bare=moment.bare - {value})
    for value in moment.saved:
        yield 0.0, replace(moment, saved=moment.saved - {value})
    there = {-1, *moment.bare, *moment.saved}
    room = budget_bytes - _held_bytes(chain, moment)
    for index, stage in enumerate(chain.stages[: moment.down_to]):
        if index - 1 not in there:
            continue
        if stage.output_bytes + stage.forward_transient_bytes <= room and index not in there:
            yield stage.forward_seconds + stage.checkpoint_seconds, replace(moment, bare=moment.bare | {index})
        if stage.saved_bytes + stage.forward_transient_bytes <= room and index not in moment.saved:
            yield stage.forward_seconds, replace(moment, saved=moment.saved | {index})
    last = moment.down_to - 1
    if last in moment.saved and last - 1 in there:
        stage = chain.stages[last]
        upstream = chain.stages[last - 1].output_bytes if last else chain.input_gradient_bytes
        first = 0 if moment.turned else stage.output_bytes
        if upstream + stage.gradient_bytes + stage.backward_transient_bytes + first <= room:
            yield stage.backward_seconds, _Moment(last, True, moment.bare - {last}, moment.saved - {last})


def _held_bytes(chain: Chain, moment: _Moment) -> int:
    fixed = chain.fixed
    held = fixed.parameter_bytes + fixed.gradient_bytes + fixed.optimizer_state_bytes + fixed.other_bytes
    held += chain.input_bytes + sum(chain.stages[k].output_bytes for k in moment.bare)
    held += sum(chain.stages[k].saved_bytes for k in moment.saved)
    if moment.turned:
        held += chain.stages[moment.down_to - 1].output_bytes if moment.down_to else 0
        held += sum(stage.gradient_bytes for stage in chain.stages[moment.down_to :])
    return held
