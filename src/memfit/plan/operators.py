"""Planner inside of blocks: which saved tensors are recomputed or moved, operator by operator.

For a set of dropped tensors the step is replayed on the moments of its trace: a dropped tensor is gone between its
last reader in the forward and its first use in the backward. There it is made again by the operators that made it,
from tensors that are kept, or from others that are made again on the way and stay where the backward waits for them.
A kept tensor stays until the last of those that are made from it is there. Where there is a link to a larger memory, a
tensor may be moved instead: it is sent when autograd saves it, and fetched at its first use, also as what others are
made from. The step waits for both, so that bytes do not depend on the speed of the link.

Choosing the best set is NP-hard (knapsack is a special case). This is a descent: from sets that keep what modules of
one depth return, and from the empty set, tensors are dropped or kept one by one where that takes most from what lies
above the budget for each second; then tensors that turn out not to be needed are kept again, dearest first. A search
of at most MOST_REPLAYS replays, each linear in the moments and in the operators that are run again. No promise of
optimality; the replay itself is exact but for what frees itself within one moment, which is counted as if it stayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from memfit.records.operators import DroppedTensor, OperatorChoice, OperatorTrace, TracedTensor
from memfit.records.plan import Binding, Decision, Link, Part, Plan

NAME = "operators"
Price = Literal["seconds", "operators", "nothing"]
"""What a descent weighs bytes against; seconds are measured, and so another number each time."""

MOST_REPLAYS = 400
"""For one search."""
MOST_TRIED = 12
"""Tensors that are tried at one moment."""
ENOUGH = 3
"""Of so many sets that are better, the best is taken."""
MOST_KNOWN = 4
"""Recipes that are remembered for each tensor."""
MOST_REMEMBERED_BYTES = 1 << 24
"""For replays that are remembered."""
MOST_ROUNDS = 60
"""In which the cheapest tensors are dropped at the highest moment."""
NUM_STARTS = 3
REPLAY_SECONDS = 2.5e-4
"""What running an operator again costs in Python, beside its own time."""
NOTE_SECONDS = 3e-5
"""What it costs to see an operator of the forward go by."""


class Sets(NamedTuple):
    """What is decided for the tensors of a step."""

    dropped: frozenset[int] = frozenset()
    """What is not there from the forward to the backward."""
    passing: frozenset[int] = frozenset()
    """Of these, what does not stay when it was made again for another."""
    moved: frozenset[int] = frozenset()
    """Of these, what is moved and fetched instead of made again; it always stays."""

    def keeping(self, number: int) -> Sets:
        """The same with one tensor kept."""
        return Sets(*(each - {number} for each in self))

    def dropping(self, numbers: Iterable[int], *, move: bool = False) -> Sets:
        """The same with more tensors made again, or moved."""
        more = frozenset(numbers)
        if move:
            return Sets(self.dropped | more, self.passing - more, self.moved | more)
        return Sets(self.dropped | more, self.passing, self.moved - more)


@dataclass(slots=True)
class ReplayedOperators:
    """A step under one decision."""

    sets: Sets
    levels: np.ndarray
    """The most alive in each moment, above what was there before the step."""
    made_again: list[tuple[int, int]]
    """Moment and tensor, in the order in which they are made again or fetched."""
    repeated: set[int]
    """Operators that are run again."""
    sources: set[int]
    """Tensors that are kept and from which others are made again."""
    seconds: float
    """Paid beside the plain step."""

    @property
    def dropped(self) -> frozenset[int]:
        """What is not there from the forward to the backward."""
        return self.sets.dropped

    @property
    def peak_bytes(self) -> int:
        """The most alive at any moment."""
        return int(self.levels.max())

    @property
    def moment(self) -> int:
        """Where that is."""
        return int(self.levels.argmax())


@dataclass(slots=True, frozen=True)
class _Recipe:
    """How one tensor is made again, as long as the same others are dropped and there."""

    on_the_way: frozenset[int]
    """Other dropped tensors that are made for it."""
    passing: frozenset[int]
    """Of these, what does not stay."""
    fetched: frozenset[int]
    """What is fetched for it, itself included."""
    sources: frozenset[int]
    staying: frozenset[int]
    operators: frozenset[int]
    burst_bytes: int
    """The most alive while it is made, above what stays of it."""
    seconds: float

    def holds(self, wanted: int, sets: Sets, there: dict[int, int]) -> bool:
        """Whether it is also the one for these sets."""
        if not self.on_the_way <= sets.dropped or not there.keys().isdisjoint(self.on_the_way):
            return False
        if (self.on_the_way | {wanted}) & sets.moved != self.fetched:
            return False
        return self.on_the_way & sets.passing == self.passing and self.sources & sets.dropped <= there.keys()


class Replayer:
    """Replays one trace under any set of dropped tensors; a link is where some of them may be moved."""

    def __init__(self, trace: OperatorTrace, link: Link | None = None) -> None:
        self.trace, self.link = trace, link
        self.peaks = np.array(trace.peaks, dtype=np.int64)
        self.starts = np.array(trace.starts, dtype=np.int64)
        self.num_replays = 0
        self._replays: dict[Sets, ReplayedOperators] = {}
        self._known: list[list[_Recipe]] = [[] for _ in trace.tensors]
        self.reads = [self._reads(number) for number in range(len(trace.tensors))]
        self.by_use = sorted(
            (n for n, each in enumerate(trace.tensors) if each.may_drop or each.may_move),
            key=lambda n: trace.tensors[n].used,
        )

    def _reads(self, number: int) -> list[int]:
        tensor, operators = self.trace.tensors[number], self.trace.operators
        return sorted({each for writer in tensor.writers for each in operators[writer].reads} - {number})

    def send_seconds(self, number: int) -> float:
        """What the forward waits for a tensor to be moved."""
        return self._link_seconds(number, None if self.link is None else self.link.out_bytes_per_second)

    def fetch_seconds(self, number: int) -> float:
        """What the backward waits for it."""
        return self._link_seconds(number, None if self.link is None else self.link.in_bytes_per_second)

    def _link_seconds(self, number: int, bytes_per_second: float | None) -> float:
        if self.link is None or bytes_per_second is None:
            return math.inf
        return self.trace.tensors[number].num_bytes / bytes_per_second + self.link.latency_seconds

    def replay(
        self,
        dropped: frozenset[int] = frozenset(),
        passing: frozenset[int] = frozenset(),
        moved: frozenset[int] = frozenset(),
    ) -> ReplayedOperators:
        """Bytes at every moment and seconds paid; descents that begin at one set meet the same ones again."""
        self.num_replays += 1
        sets = Sets(dropped, passing, moved)
        known = self._replays.get(sets)
        if known is None:
            known = self._replays[sets] = self._replay(sets)
            if len(self._replays) * self.peaks.nbytes > MOST_REMEMBERED_BYTES:
                del self._replays[next(iter(self._replays))]
        return known

    def _replay(self, sets: Sets) -> ReplayedOperators:
        tensors, count, dropped = self.trace.tensors, len(self.peaks), sets.dropped
        changes = [0] * (count + 1)
        bursts: list[tuple[int, int]] = []
        there: dict[int, int] = {}
        """Tensors that were made again or fetched, and when."""
        until: dict[int, int] = {}
        """Tensors from which others are made after the step without a choice has freed them, and the last time."""
        repeated: set[int] = set()
        sources: set[int] = set()
        seconds = sum(self.send_seconds(number) for number in sets.moved)
        for number in self.by_use:
            if number not in dropped or number in there:
                continue
            moment, recipe = tensors[number].used, self._recipe(number, sets, there)
            bursts.append((moment, recipe.burst_bytes))
            seconds += recipe.seconds
            repeated |= recipe.operators
            sources |= recipe.sources
            there.update(dict.fromkeys(recipe.staying, moment))
            until.update((each, moment) for each in recipe.sources if tensors[each].ends < moment)
        waiting: dict[int, int] = {}
        """Of these, the bytes that go in a moment, after what was made from them."""
        for number, moment in until.items():
            changes[tensors[number].ends] += tensors[number].num_bytes
            changes[moment] -= tensors[number].num_bytes
            waiting[moment] = waiting.get(moment, 0) + tensors[number].num_bytes
        for number in dropped:
            if tensors[number].gone < there[number]:
                changes[tensors[number].gone] -= tensors[number].num_bytes
                changes[there[number]] += tensors[number].num_bytes
        changed = np.cumsum(np.array(changes, dtype=np.int64))[:count]
        levels = self.peaks + changed
        for moment, burst in bursts:
            here = self.starts[moment] + changed[moment] + waiting.get(moment, 0)
            levels[moment] = max(levels[moment], here + burst)
        if dropped:
            seconds += NOTE_SECONDS * len(self.trace.operators)
        made_again = [(at, n) for n, at in there.items()]
        return ReplayedOperators(sets, levels, made_again, repeated, sources - dropped, seconds)

    def seconds_again(self, number: int, now: ReplayedOperators) -> float:
        """What it would cost to make one more tensor again, beside those that are dropped."""
        return self._recipe(number, now.sets.dropping([number]), {}).seconds

    def _recipe(self, wanted: int, sets: Sets, there: dict[int, int]) -> _Recipe:
        """How one tensor is made again when some others are there; most sets share most of their recipes."""
        for known in self._known[wanted]:
            if known.holds(wanted, sets, there):
                return known
        dropped, passing = sets.dropped, sets.passing
        made, sources = self._cone(wanted, sets, there)
        fetched = made & sets.moved
        operators = sorted({w for number in made - fetched for w in self.trace.tensors[number].writers})
        staying = {each for each in made if each == wanted or (each in dropped and each not in passing)}
        new_bytes = sum(self.trace.tensors[each].num_bytes for each in staying)
        recipe = _Recipe(
            on_the_way=frozenset(each for each in made if each in dropped and each != wanted),
            passing=frozenset(each for each in made if each in passing and each != wanted),
            fetched=frozenset(fetched),
            sources=frozenset(sources),
            staying=frozenset(staying),
            operators=frozenset(operators),
            burst_bytes=self._burst_bytes(made, fetched, operators, staying) - new_bytes,
            seconds=sum(self.trace.operators[each].seconds + REPLAY_SECONDS for each in operators)
            + sum(self.fetch_seconds(each) for each in fetched),
        )
        self._known[wanted] = [recipe, *self._known[wanted][: MOST_KNOWN - 1]]
        return recipe

    def _cone(self, wanted: int, sets: Sets, there: dict[int, int]) -> tuple[set[int], set[int]]:
        """Tensors that have to be made or fetched for one, and those that are there for it."""
        made: set[int] = set()
        sources: set[int] = set()
        waiting = [wanted]
        while waiting:
            number = waiting.pop()
            if number in made or number in sources:
                continue
            is_kept = self.trace.tensors[number].is_saved and number not in sets.dropped
            if number != wanted and (number in there or is_kept):
                sources.add(number)
                continue
            made.add(number)
            if number not in sets.moved:
                waiting += self.reads[number]
        return made, sources

    def _burst_bytes(self, made: set[int], fetched: set[int], operators: list[int], staying: set[int]) -> int:
        """The most alive while tensors are made again, above what was there before; what is fetched comes first."""
        tensors, trace = self.trace.tensors, self.trace
        last = {each: op for op in operators for each in trace.operators[op].reads if each in made}
        alive = most = sum(tensors[each].num_bytes for each in fetched)
        for op in operators:
            operator = trace.operators[op]
            alive += sum(tensors[each].num_bytes for each in operator.makes)
            most = max(most, alive + operator.transient_bytes)
            for each in operator.makes:
                if each not in made or each in fetched or (each not in last and each not in staying):
                    alive -= tensors[each].num_bytes
            for each in operator.reads:
                if last.get(each) == op and each not in staying:
                    alive -= tensors[each].num_bytes
        return most


class OperatorPlanner:
    """Chooses sets of dropped tensors for one trace; with a link, some of them may be moved."""

    def __init__(self, trace: OperatorTrace, link: Link | None = None) -> None:
        self.trace, self.replayer, self.link = trace, Replayer(trace, link), link
        self.plain = self.replayer.replay()
        self._least: ReplayedOperators | None = None

    def within(self, budget_bytes: int) -> ReplayedOperators | None:
        """The fastest set found whose step stays within so many bytes above what was there before it."""
        if self.plain.peak_bytes <= budget_bytes:
            return self.plain
        cheapest = self._cheapest_first(budget_bytes)
        found = [each for start in self._starts(budget_bytes) if (each := self._descend(start, budget_bytes))]
        found += [] if cheapest is None else [cheapest]
        if not found and self.least().peak_bytes <= budget_bytes:
            found = [self.least()]
        if not found:
            return None
        return min((self._keep_again(each, budget_bytes) for each in found), key=lambda each: each.seconds)

    def least(self) -> ReplayedOperators:
        """The set of the lowest peak that is found; seconds do not count, so that it is always the same one."""
        if self._least is None:
            ways: tuple[Price, ...] = ("operators", "nothing")
            found = [self._lower(start, price) for start in self._starts(0) for price in ways]
            self._least = min(found, key=lambda each: each.peak_bytes)
        return self._least

    def _lower(self, best: ReplayedOperators, price: Price) -> ReplayedOperators:
        for step in (0.9, 0.97, 0.99):
            while (found := self._descend(best, int(step * best.peak_bytes), price)) is not None:
                best = found
        return best

    def _starts(self, budget_bytes: int) -> list[ReplayedOperators]:
        """Nothing dropped, and everything but what modules of some depth return; the most promising first."""
        may = [n for n, each in enumerate(self.trace.tensors) if each.may_drop]
        depths = sorted({self.trace.tensors[n].depth for n in may})
        sets = {frozenset(n for n in may if self.trace.tensors[n].depth > depth) for depth in [0, *depths]}
        found = [self.plain, *(self.replayer.replay(each) for each in sets if each)]
        found = sorted(found, key=lambda each: _excess(each, budget_bytes))[:NUM_STARTS]
        everything = Sets()
        for number in sorted(range(len(self.trace.tensors)), key=lambda n: -self.trace.tensors[n].num_bytes):
            if self._may_move(number, everything):
                everything = everything.dropping([number], move=True)
        return [*found, self.replayer.replay(*everything)] if everything.moved else found

    def _descend(
        self, start: ReplayedOperators, budget_bytes: int, price: Price = "seconds"
    ) -> ReplayedOperators | None:
        """Drop, keep or pass one tensor after the other until the step fits; None when nothing helps any more."""
        now, until = start, self.replayer.num_replays + MOST_REPLAYS
        while now.peak_bytes > budget_bytes:
            excess = _excess(now, budget_bytes)
            better: list[tuple[float, ReplayedOperators]] = []
            for sets in self._neighbours(now, price):
                if self.replayer.num_replays >= until:
                    return None
                other = self.replayer.replay(*sets)
                gain = excess - _excess(other, budget_bytes)
                if gain > 0:
                    better.append((gain / max(_paid(other, price) - _paid(now, price), 1e-9), other))
                if len(better) >= ENOUGH:
                    break
            if not better:
                return None
            now = max(better, key=lambda pair: pair[0])[1]
        return now

    def _cheapest_first(self, budget_bytes: int) -> ReplayedOperators | None:
        """Drop what costs least for its bytes at the highest moment, then at the next, until all fit; None if stuck."""
        now = self.plain
        for _ in range(MOST_ROUNDS):
            over_bytes = now.peak_bytes - budget_bytes
            if over_bytes <= 0:
                return now
            sets = now.sets
            for number, move in self._by_price(now):
                if over_bytes <= 0:
                    break
                if move and not self._may_move(number, sets):
                    continue
                sets = sets.dropping([number], move=move)
                over_bytes -= self.trace.tensors[number].num_bytes
            if sets == now.sets:
                return None
            now = self.replayer.replay(*sets)
        return None

    def _by_price(self, now: ReplayedOperators) -> list[tuple[int, bool]]:
        """What could be gone at the highest moment, by its seconds for each byte, and whether it is moved for them."""
        tensors, replayer, prices = self.trace.tensors, self.replayer, dict[int, tuple[float, bool]]()
        for n in self._could_go(now):
            again = replayer.seconds_again(n, now) if tensors[n].may_drop else math.inf
            move = self._move_seconds(n) if self._may_move(n, now.sets) else math.inf
            prices[n] = min(again, move) / tensors[n].num_bytes, move < again
        return [(n, prices[n][1]) for n in sorted(prices, key=lambda n: (prices[n][0], n))]

    def _could_go(self, now: ReplayedOperators) -> list[int]:
        """What is there at the highest moment and need not be."""
        moment, sets = now.moment, now.sets
        return [
            n for n, each in enumerate(self.trace.tensors)
            if n not in sets.dropped and each.gone <= moment < each.used and (each.may_drop or self._may_move(n, sets))
        ]  # fmt: skip

    def _may_move(self, number: int, sets: Sets) -> bool:
        """Whether one more tensor may be moved, and there is room for it."""
        tensors, link = self.trace.tensors, self.link
        if link is None or not tensors[number].may_move or number in sets.moved:
            return False
        away = sum(tensors[each].num_bytes for each in sets.moved)
        return link.capacity_bytes is None or away + tensors[number].num_bytes <= link.capacity_bytes

    def _move_seconds(self, number: int) -> float:
        return self.replayer.send_seconds(number) + self.replayer.fetch_seconds(number)

    def _neighbours(self, now: ReplayedOperators, price: Price) -> list[Sets]:
        """Sets in which one tensor is gone at the highest moment, or is not made again there, or does not stay."""
        tensors, moment, sets = self.trace.tensors, now.moment, now.sets
        could_go = self._could_go(now)
        here = [(n, at) for at, n in now.made_again if at <= moment <= max(at, tensors[n].ends)]
        here = sorted(here, key=lambda pair: (-tensors[pair[0]].num_bytes, pair[0]))[:MOST_TRIED]
        found = [sets.dropping([n]) for n in self._largest([n for n in could_go if tensors[n].may_drop], price)]
        movable = [n for n in [*could_go, *(n for n, _ in here)] if self._may_move(n, sets)]
        found += [sets.dropping([n], move=True) for n in self._largest(movable, price, move=True)]
        found += [sets.keeping(n) for n, _ in here]
        passing = [n for n, at in here if at < tensors[n].used and n not in sets.moved]
        return found + [sets._replace(passing=sets.passing | {n}) for n in passing]

    def _largest(self, numbers: list[int], price: Price, *, move: bool = False) -> list[int]:
        """The tensors that are worth most."""
        worth = {n: self.trace.tensors[n].num_bytes / self._weight(n, price, move=move) for n in numbers}
        return sorted(numbers, key=lambda n: (-worth[n], n))[:MOST_TRIED]

    def _keep_again(self, now: ReplayedOperators, budget_bytes: int) -> ReplayedOperators:
        """Keep what need not be dropped, dearest first, and let stay what may."""
        for number in sorted(now.dropped, key=lambda n: self._paid_for(n, now), reverse=True):
            for sets in self._less_for(number, now.sets):
                other = self.replayer.replay(*sets)
                if other.peak_bytes <= budget_bytes and other.seconds <= now.seconds:
                    now = other
                    break
        return now

    def _less_for(self, number: int, sets: Sets) -> list[Sets]:
        """One tensor kept; or made again once instead of moved, or of twice."""
        found = [sets.keeping(number)]
        if number in sets.passing:
            found.append(sets._replace(passing=sets.passing - {number}))
        if number in sets.moved and self.trace.tensors[number].may_drop:
            found.append(sets.dropping([number]))
        return found

    def _paid_for(self, number: int, now: ReplayedOperators) -> float:
        return self._move_seconds(number) if number in now.sets.moved else self._price(number)

    def _weight(self, number: int, price: Price, *, move: bool = False) -> float:
        if price == "seconds":
            return self._move_seconds(number) if move else self._price(number) + REPLAY_SECONDS
        if move:
            return 1.0
        return 1.0 + len(self.trace.tensors[number].writers) if price == "operators" else 1.0

    def _price(self, number: int) -> float:
        tensor = self.trace.tensors[number]
        return sum(self.trace.operators[each].seconds for each in tensor.writers)

    # ---- as a plan ---------------------------------------------------------------------------------------------------

    def plan(self, everything_kept: Plan, before_bytes: int, budget_bytes: int, input_bytes: int) -> Plan | None:
        """The fastest plan found within a budget; `before_bytes` are there before the step."""
        found = self.within(budget_bytes - before_bytes)
        return None if found is None else self._as_plan(everything_kept, found, before_bytes, budget_bytes, input_bytes)

    def smallest(self, everything_kept: Plan, before_bytes: int, input_bytes: int) -> Plan:
        """The plan of the lowest peak that was found."""
        found = self.least()
        budget_bytes = before_bytes + found.peak_bytes
        return self._as_plan(everything_kept, found, before_bytes, budget_bytes, input_bytes)

    def _as_plan(
        self, kept: Plan, found: ReplayedOperators, before_bytes: int, budget_bytes: int, input_bytes: int
    ) -> Plan:
        seconds = kept.plain_seconds + found.seconds
        stall_seconds = sum(self._move_seconds(n) for n in found.sets.moved)
        return msgspec.structs.replace(
            kept,
            solver=NAME,
            operators=self.choice(found, input_bytes),
            budget_bytes=budget_bytes,
            peak_bytes=max(before_bytes + found.peak_bytes, kept.steps[-1].memory_bytes),
            plain_peak_bytes=max(before_bytes + self.plain.peak_bytes, kept.steps[-1].memory_bytes),
            seconds=seconds,
            link=self.link,
            recompute_seconds=found.seconds - stall_seconds,
            stall_seconds=stall_seconds,
            moved_bytes=sum(self.trace.tensors[n].num_bytes for n in found.sets.moved),
            lower_bound_seconds=kept.plain_seconds,
            bound_of="all plans: it is the plain step",
            smallest_budget_bytes=min(budget_bytes, before_bytes + found.peak_bytes),
            binding=self._binding(found, before_bytes),
            decisions=self._decisions(found),
        )

    def _binding(self, found: ReplayedOperators, before_bytes: int) -> Binding:
        moment, tensors = found.moment, self.trace.tensors
        held = [
            Part(name=f"{self.trace.operators[each.operator].name} of {self._where(each)}", num_bytes=each.num_bytes)
            for n, each in enumerate(tensors)
            if each.is_saved and n not in found.dropped and each.operator <= moment <= each.ends
        ]
        named = sorted(held, key=lambda part: -part.num_bytes)[:2]
        rest = found.peak_bytes - sum(part.num_bytes for part in named)
        parts = [
            Part(name="parameters, optimizer state and the batch", num_bytes=before_bytes),
            Part(name="gradients and everything else", num_bytes=rest),
            *named,
        ]
        return Binding(
            step=0,
            where=self.trace.labels[moment],
            parts=tuple(sorted(parts, key=lambda part: -part.num_bytes)),
            unavoidable_bytes=before_bytes,
            a_plan_helps=True,
        )

    def _decisions(self, found: ReplayedOperators) -> tuple[Decision, ...]:
        return tuple(
            Decision(
                what=self._what(n, found.sets),
                stages=(),
                saved_bytes=self.trace.tensors[n].num_bytes,
                freed_bytes=self.trace.tensors[n].num_bytes,
                paid_seconds=self._paid_for(n, found),
            )
            for n in sorted(found.dropped)
        )

    def _what(self, number: int, sets: Sets) -> str:
        tensor = self.trace.tensors[number]
        made = f"{self.trace.operators[tensor.operator].name} of {self._where(tensor)}"
        return f"move {made} out and back" if number in sets.moved else f"make {made} again"

    def _where(self, tensor: TracedTensor) -> str:
        return self.trace.operators[tensor.operator].where or "the model"

    def choice(self, found: ReplayedOperators, input_bytes: int) -> OperatorChoice:
        """What a model needs to know to carry a set out."""
        tensors, operators = self.trace.tensors, self.trace.operators
        last = max([*found.repeated, *(tensors[n].operator for n in found.sets.moved)], default=-1)
        return OperatorChoice(
            names=tuple(each.name for each in operators[: last + 1]),
            dropped=tuple(
                DroppedTensor(
                    operator=tensors[n].operator, output=tensors[n].output, name=operators[tensors[n].operator].name,
                    where=operators[tensors[n].operator].where, num_bytes=tensors[n].num_bytes,
                    stays=n not in found.sets.passing,
                    is_moved=n in found.sets.moved,
                )
                for n in sorted(found.dropped)
            ),
            repeated=tuple(sorted(found.repeated)),
            sources=tuple(sorted({tensors[n].operator for n in found.sources} - found.repeated)),
            input_bytes=input_bytes,
            constants=tuple(n for n, each in enumerate(operators[: last + 1]) if each.is_constant),
        )  # fmt: skip


def _paid(found: ReplayedOperators, price: Price) -> float:
    if price == "nothing":
        return 0.0
    return found.seconds if price == "seconds" else float(len(found.repeated))


def _excess(found: ReplayedOperators, budget_bytes: int) -> int:
    return int(np.maximum(found.levels - budget_bytes, 0).sum())
