"""Simulator that judges every plan: its time, its live bytes at each moment, and its stalls.

One compute stream runs the operations in order. Two directions of one link carry one transfer each. A send starts when
its value has been made and the sends before it are over; its bytes are free when it is over and the forward has read
them. A fetch holds its bytes from its start. Schedules that read what is not there, fetch what has not left, leave a
wait out or overfill the link are refused.

It knows no budget: it replays what it is given and says what came out.
"""

from __future__ import annotations

from dataclasses import dataclass

from memfit.errors import InvalidSchedule
from memfit.plan.problem.program import INPUT, Program
from memfit.plan.problem.transfers import Transfers
from memfit.records.plan import Link

Span = tuple[float, float]


@dataclass(slots=True)
class Replayed:
    """What came out of a replay."""

    seconds: float
    peak_bytes: int
    peak_at: int
    """Index of the operation that ran, or was about to run, at the peak."""
    stall_seconds: float
    starts: list[float]
    stalls: list[float]
    memory_bytes: list[int]
    sends: list[Span]
    fetches: list[Span]
    """In the order of sending, like the sends."""


def simulate(program: Program, transfers: Transfers | None = None, link: Link | None = None) -> Replayed:
    """Replay operations and transfers."""
    transfers = transfers or Transfers([], [0] * len(program.operations), [])
    if transfers.moved and link is None:
        raise InvalidSchedule("values are moved, but there is no link", hint="give a link")
    _refuse_wrong_orders(program, transfers, link)
    _refuse_missing_reads(program, transfers)
    clock = _Clock(program, transfers, link)
    memory = _memory_of(program, transfers, clock)
    peak_at = max(range(len(memory)), key=memory.__getitem__)
    return Replayed(
        seconds=clock.now,
        peak_bytes=memory[peak_at],
        peak_at=peak_at,
        stall_seconds=sum(clock.stalls),
        starts=clock.starts,
        stalls=clock.stalls,
        memory_bytes=memory,
        sends=clock.sends,
        fetches=clock.fetches,
    )


def clock_seconds(program: Program, transfers: Transfers, link: Link) -> float:
    """Seconds alone, for searches; what they find is replayed in full."""
    return _Clock(program, transfers, link).now


class _Clock:
    """Start and end of everything; lives as long as one replay."""

    def __init__(self, program: Program, transfers: Transfers, link: Link | None) -> None:
        self.program, self.transfers, self.link = program, transfers, link
        self.now = 0.0
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.stalls: list[float] = []
        self.sends: list[Span] = []
        self.fetches: list[Span] = [(0.0, 0.0)] * len(transfers.moved)
        self._run()

    def _run(self) -> None:
        moved = self.transfers.moved
        next_fetch = len(moved) - 1
        for index, operation in enumerate(self.program.operations):
            ready = self.now
            while len(self.sends) < self.transfers.wait_sent[index]:
                self._send()
            if self.transfers.wait_sent[index]:
                ready = max(ready, self.sends[self.transfers.wait_sent[index] - 1][1])
            while next_fetch >= 0 and moved[next_fetch].needed_by <= index:
                self._fetch(next_fetch)
                ready = max(ready, self.fetches[next_fetch][1])
                next_fetch -= 1
            self.stalls.append(ready - self.now)
            self.starts.append(ready)
            self.now = ready + operation.seconds
            self.ends.append(self.now)

    def _send(self) -> None:
        assert self.link is not None
        unit = self.transfers.moved[len(self.sends)]
        start = max(self.ends[unit.made_by], self.sends[-1][1] if self.sends else 0.0)
        seconds = self.link.latency_seconds + unit.num_bytes / self.link.out_bytes_per_second
        self.sends.append((start, start + seconds))

    def _fetch(self, position: int) -> None:
        assert self.link is not None
        while len(self.sends) < len(self.transfers.moved):
            self._send()
        free = self.fetches[position + 1][1] if position + 1 < len(self.fetches) else 0.0
        start = max(self.ends[self.transfers.fetch_after[position]], self.sends[-1][1], free)
        seconds = self.link.latency_seconds + self.transfers.moved[position].num_bytes / self.link.in_bytes_per_second
        self.fetches[position] = (start, start + seconds)


def _memory_of(program: Program, transfers: Transfers, clock: _Clock) -> list[int]:
    """The most alive during each operation, or just before it."""
    changes = _changes_by_the_link(transfers, clock)
    alive = program.chain.fixed.total_bytes + program.chain.input_bytes
    memory: list[int] = []
    at = 0
    for index, operation in enumerate(program.operations):
        most = alive
        start, end = clock.starts[index], clock.ends[index]
        while at < len(changes) and changes[at][0] <= start and changes[at][1] < index:
            alive += changes[at][2]
            most = max(most, alive)
            at += 1
        alive += sum(program.values[value].num_bytes for value in operation.makes)
        most = max(most, alive + operation.transient_bytes)
        while at < len(changes) and changes[at][0] < end and changes[at][1] < index:
            alive += changes[at][2]
            most = max(most, alive + operation.transient_bytes)
            at += 1
        memory.append(most)
        alive -= sum(program.values[value].num_bytes for value in operation.frees)
    return memory


def _changes_by_the_link(transfers: Transfers, clock: _Clock) -> list[tuple[float, int, int]]:
    """(time, operation that must be over, change in bytes): releases after sends, then starts of fetches.

    Sends are over before fetches start, so that the two lists follow each other in time.
    """
    releases, starts = [], []
    latest = 0.0
    for position, unit in enumerate(transfers.moved):
        latest = max(latest, clock.sends[position][1], clock.ends[unit.last_read_forward])
        releases.append((latest, unit.last_read_forward, -unit.num_bytes))
        after = transfers.fetch_after[position]
        starts.append((clock.fetches[position][0], after, unit.num_bytes))
    return [*releases, *reversed(starts)]


# ---- what is refused -----------------------------------------------------------------------------------------


def _refuse_wrong_orders(program: Program, transfers: Transfers, link: Link | None) -> None:
    count = len(transfers.moved)
    if len(transfers.wait_sent) != len(program.operations) or len(transfers.fetch_after) != count:
        raise InvalidSchedule("waits and operations do not match", hint="plan again for this chain")
    for index, waits in enumerate(transfers.wait_sent):
        if not 0 <= waits <= count or any(unit.made_by >= index for unit in transfers.moved[:waits]):
            raise InvalidSchedule(
                "an operation waits for a send that cannot have started", found=f"operation {index} waits for {waits}"
            )
    for position, unit in enumerate(transfers.moved):
        if position and unit.made_by <= transfers.moved[position - 1].made_by:
            raise InvalidSchedule("values are not sent in the order in which they are made", found=f"{unit.boundary}")
        if not unit.last_read_forward <= transfers.fetch_after[position] < unit.needed_by:
            raise InvalidSchedule(
                f"what boundary {unit.boundary} holds is fetched at the wrong time",
                found=f"after operation {transfers.fetch_after[position]}, read by operation {unit.needed_by}",
            )
    moved_bytes = sum(unit.num_bytes for unit in transfers.moved)
    if link is not None and link.capacity_bytes is not None and moved_bytes > link.capacity_bytes:
        raise InvalidSchedule(f"{link.name} is too small", found=f"{moved_bytes} bytes for {link.capacity_bytes}")


def _refuse_missing_reads(program: Program, transfers: Transfers) -> None:
    """Every value is made once before it is read, is not read while away, and is freed at most once."""
    alive = {INPUT}
    away = {unit.value: unit for unit in transfers.moved}
    for index, operation in enumerate(program.operations):
        alive.update(operation.makes)
        for value in operation.reads:
            unit = away.get(value)
            absent = unit is not None and unit.last_read_forward < index < unit.needed_by
            if value not in alive or absent:
                raise InvalidSchedule(
                    f"operation {index} reads what is not there", found=program.values[value].label, hint="plan again"
                )
        for value in operation.frees:
            if value not in alive:
                raise InvalidSchedule(f"operation {index} frees what is not there", found=program.values[value].label)
            alive.remove(value)
