"""How are pairs of blocks run, interleaved over all tools, within a given time?"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import ClassVar

from benchmarks.overhead.paired import Estimate, ratio, rounds
from benchmarks.overhead.quiet import OthersAtWork, Quiet
from benchmarks.overhead.samplers import NoSampler
from benchmarks.overhead.trainer import Block, Trainer

CONTROL = "nothing (control)"
REST_SECONDS = (0.02, 0.12)
"""A pause before every block, with a tool or without: its length is drawn, so that a block falls anywhere between two
looks of a sampler, and both blocks of a pair come out of the same sleep."""


class OthersWereAtWork(RuntimeError):
    """No pair was left undisturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One row of a table: what is inside of the process, and who watches from outside."""

    sampler: NoSampler
    inside: str = "off"
    pairs_per_round: int = 1
    num_warm: int = 3
    num_steps: int = 25


@dataclass(slots=True)
class Pairs:
    """All blocks of one tool, each next to its block without; pairs that others disturbed are only counted."""

    MOST_OTHERS_CORES: ClassVar[float] = 0.25
    on: list[Block] = field(default_factory=list)
    off: list[Block] = field(default_factory=list)
    num_disturbed: int = 0

    def add(self, others: Pairs) -> None:
        """Those of another pass as well."""
        self.on += others.on
        self.off += others.off
        self.num_disturbed += others.num_disturbed

    def cpu_ratio(self, seed: int) -> Estimate:
        """CPU time of the training process in the loop."""
        return ratio([sum(b.cpu_seconds) for b in self.on], [sum(b.cpu_seconds) for b in self.off], seed)

    def wall_ratio(self, seed: int) -> Estimate:
        """Wall time in the loop."""
        return ratio([sum(b.wall_seconds) for b in self.on], [sum(b.wall_seconds) for b in self.off], seed)

    def cpu_ratio_with_switching(self, seed: int) -> Estimate:
        """CPU time with starting and stopping the tool."""
        on = [sum(b.cpu_seconds) + b.switch_cpu_seconds for b in self.on]
        return ratio(on, [sum(b.cpu_seconds) for b in self.off], seed)


def run_pairs(
    trainer: Trainer, subjects: dict[str, Subject], *, seconds: float, num_rounds: int, quiet: Quiet, seed: int
) -> dict[str, Pairs]:
    """Run whole rounds until they or the time are over; at least three, and a pair of each, or it is an error."""
    found = {name: Pairs() for name in subjects}
    draw = random.Random(seed)
    deadline = time.monotonic() + seconds
    schedule = rounds({name: subject.pairs_per_round for name, subject in subjects.items()}, num_rounds, seed)
    for number, turns in enumerate(schedule):
        if number >= 3 and time.monotonic() > deadline:
            break
        quiet.wait()
        for turn in turns:
            _run_pair(trainer, subjects[turn.tool], found[turn.tool], turn.on_first, draw.uniform(*REST_SECONDS))
    if not all(pairs.on for pairs in found.values()):
        raise OthersWereAtWork("other programs were at work all the time: there is no pair left to judge by")
    return found


def _run_pair(trainer: Trainer, subject: Subject, pairs: Pairs, on_first: bool, rest_seconds: float) -> None:
    others = OthersAtWork([pid for pid in (trainer.pid, subject.sampler.pid) if pid is not None])
    blocks = {is_on: _run_block(trainer, subject, is_on, rest_seconds) for is_on in (on_first, not on_first)}
    if others.cores() > Pairs.MOST_OTHERS_CORES:
        pairs.num_disturbed += 1
        return
    pairs.on.append(blocks[True])
    pairs.off.append(blocks[False])


def _run_block(trainer: Trainer, subject: Subject, is_on: bool, rest_seconds: float) -> Block:
    if not is_on:
        time.sleep(rest_seconds)
        return trainer.block("off", "", subject.num_warm, subject.num_steps)
    subject.sampler.go()
    try:
        time.sleep(rest_seconds)
        return trainer.block(subject.inside, subject.sampler.folder, subject.num_warm, subject.num_steps)
    finally:
        subject.sampler.pause()
