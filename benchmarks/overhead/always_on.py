"""What does it cost to be watched all the time, where steps take 1, 2, 5 and 50 ms?"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.overhead.blocks import CONTROL, Pairs, Subject, run_pairs
from benchmarks.overhead.options import Options
from benchmarks.overhead.paired import Estimate, verdict_below
from benchmarks.overhead.report import Finding, Part, ratio_text
from benchmarks.overhead.samplers import Memfit, Mprof, NoSampler, Psrecord, Psutil, Sampler, paused_samplers
from benchmarks.overhead.trainer import Trainer

TARGET = 1.01
PRECISE = 0.01
"""A width of intervals at which a length needs no further pass."""
LENGTHS = ("1 ms", "2 ms", "5 ms", "50 ms")
WARM_SECONDS, BLOCK_SECONDS = 0.02, 0.12
"""A pair of blocks is as noisy when it is long as when it is short, so many short ones tell most."""
MEMFIT, PSUTIL, MPROF = "memfit (default)", "psutil, own process, 10 ms", "mprof, 100 ms"
KINDS: dict[str, Sampler] = {
    CONTROL: NoSampler,
    MEMFIT: Memfit,
    PSUTIL: Psutil,
    MPROF: Mprof,
    "psrecord, default": Psrecord,
    "memray": NoSampler,
}
INSIDE = {MEMFIT: "kept marks", "memray": "memray"}
PAIRS_PER_ROUND = {CONTROL: 3, MEMFIT: 6, PSUTIL: 3, MPROF: 3}
METHOD = (
    "Training loops of an MLP with Adam and 1 thread, as wide and with as many rows as the step length needs on this "
    "machine. Blocks of 0.12 s in one process, each tool on in one block and off in the next, order alternating, "
    "tools shuffled; before every block, with a tool or without, a rest of 20 to 120 ms, so that a block lies "
    "anywhere between two looks of a sampler. Median quotient on/off of the wall time with its 90 % bootstrap "
    "interval, and the number of pairs. The control switches nothing on: what its interval covers is noise. Pairs "
    "during which other programs took more than {others:.2f} cores are left out, whatever they showed ({dropped}). "
    "memfit is all of its default in the middle of a run: the sampler, the exact peak of every step or group of short "
    "steps, and the peaks of the phases of as many steps as fit into a thousandth of the time."
)


def measure(options: Options) -> Part:
    """Run the blocks of every step length and judge them."""
    turns = take_turns(options, KINDS, is_enough=lambda pairs: _is_precise(pairs, options.seed))
    return judge(turns, options.seed, name="always_on", title="Always on", what="wall time, always on", method=METHOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What was found, by length of a step."""

    found: dict[str, dict[str, Pairs]]
    step_seconds: dict[str, list[float]]

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of a table with one column for each length."""
        medians = [statistics.median(seconds) for seconds in self.step_seconds.values()]
        return ("wall, on / off", *(f"steps of {1e3 * seconds:.2g} ms" for seconds in medians))


def take_turns(options: Options, kinds: dict[str, Sampler], is_enough: Callable[[dict[str, Pairs]], bool]) -> Turns:
    """Pass over the lengths of steps, once or for as long as was asked for, but for those of which there is enough."""
    turns = Turns(
        found={length: {name: Pairs() for name in kinds} for length in LENGTHS},
        step_seconds={length: [] for length in LENGTHS},
    )
    deadline = time.monotonic() + 60 * options.minutes
    for number in itertools.count():
        waiting = [length for length in LENGTHS if number == 0 or not is_enough(turns.found[length])]
        if not waiting or (number > 0 and time.monotonic() > deadline):
            break
        for length in waiting:
            seconds = _measure_length(length, options, turns.found[length], options.seed + number, kinds)
            turns.step_seconds[length].append(seconds)
    return turns


def _is_precise(pairs: dict[str, Pairs], seed: int) -> bool:
    """Whether more pairs are not needed, going by the width of intervals alone, wherever they lie."""
    found = [pairs[name].wall_ratio(seed) for name in (CONTROL, MEMFIT, PSUTIL, MPROF)]
    return all(each.high - each.low <= PRECISE for each in found)


def _measure_length(
    length: str, options: Options, found: dict[str, Pairs], seed: int, kinds: dict[str, Sampler]
) -> float:
    """One pass of pairs of one length, added to those that were found; seconds of a step."""
    with Trainer(f"mlp, {length}") as trainer, paused_samplers(kinds, trainer.pid) as samplers:
        num_warm, num_steps = (max(2, round(s / trainer.step_seconds)) for s in (WARM_SECONDS, BLOCK_SECONDS))
        subjects = {
            name: Subject(
                sampler=samplers[name],
                inside=INSIDE.get(name, "off"),
                pairs_per_round=PAIRS_PER_ROUND.get(name, 1),
                num_warm=num_warm,
                num_steps=num_steps,
            )
            for name in kinds
        }
        seconds = options.seconds(quick=15, full=75)
        for name, pairs in run_pairs(
            trainer, subjects, seconds=seconds, num_rounds=1000, quiet=options.quiet, seed=seed
        ).items():
            found[name].add(pairs)
        return trainer.step_seconds


def judge(turns: Turns, seed: int, *, name: str, title: str, what: str, method: str) -> Part:
    """The table of all lengths, and whether memfit lies within its target and below its peers."""
    found = turns.found
    wall = {length: {name: p.wall_ratio(seed) for name, p in pairs.items()} for length, pairs in found.items()}
    cpu = {length: {name: p.cpu_ratio(seed) for name, p in pairs.items()} for length, pairs in found.items()}
    tools = list(next(iter(found.values())))
    rows = [(tool, *(_cell(wall[length][tool]) for length in found)) for tool in tools]
    rows.append((f"memfit <= {TARGET}", *(_verdict(wall[length]) for length in found)))
    for peer in (PSUTIL, MPROF):
        rows.append((f"memfit below {peer.split(',')[0]}", *(_order(wall[length], peer) for length in found)))
    dropped = sum(p.num_disturbed for pairs in found.values() for p in pairs.values())
    kept = sum(len(p.on) for pairs in found.values() for p in pairs.values())
    return Part(
        name=name,
        title=title,
        method=method.format(others=Pairs.MOST_OTHERS_CORES, dropped=f"{dropped} of {dropped + kept}"),
        columns=turns.columns,
        rows=rows,
        findings=[_finding(f"{what}, steps of {length}", wall[length]) for length in found],
        raw={"cpu": cpu, "wall": wall, "num_disturbed": dropped},
    )


def _finding(what: str, wall: dict[str, Estimate]) -> Finding:
    peers = ", ".join(f"{name.split(',')[0]} {wall[name].value:.3f}" for name in wall if name not in (CONTROL, MEMFIT))
    return Finding(
        what=what,
        peers=peers,
        memfit=ratio_text(wall[MEMFIT]),
        target=f"<= {TARGET}, below psutil and mprof",
        verdict=f"{_verdict(wall)}; psutil: {_order(wall, PSUTIL)}; mprof: {_order(wall, MPROF)}",
    )


def _cell(found: Estimate) -> str:
    return f"{ratio_text(found)}, {found.num_values}"


def _verdict(wall: dict[str, Estimate]) -> str:
    return verdict_below(wall[MEMFIT], TARGET, wall[CONTROL])


def _order(wall: dict[str, Estimate], peer: str) -> str:
    """Whether memfit is cheaper than a peer; intervals that overlap leave it open."""
    ours, theirs = wall[MEMFIT], wall[peer]
    if ours.high < theirs.low:
        return "below"
    if ours.low > theirs.high:
        return "above"
    return f"{'below' if ours.value < theirs.value else 'above'} by the median, intervals overlap"
