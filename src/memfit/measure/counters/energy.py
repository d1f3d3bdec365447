"""Joules from readings of energy counters, or the reason why they are not known.

Standard library only: the sampler process uses this. Each reader (`read_powercap`, `read_nvml`) answers with marks, the
running totals of its domains at one moment; two marks of a domain make a span; a span becomes an event of the run
folder.

    meters = [open_powercap(), open_nvml()]
    start = read_meters(meters)
    ...                                        # and again at least every read_interval_seconds(meters)
    events = energy_events(start, read_meters(meters))
    close_meters(meters)

A figure is never guessed: a window shorter than the counter can resolve, a counter that stood still or one that may not
be read give no joules and a reason. Assumed watts make a span of their own, which is never added to a measured one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Event = dict[str, Any]

IDLE_INTERVAL_SECONDS = 60.0
"""How often to read when no counter asks for more: keeps a figure almost to the end when the end itself is missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """A counter that cannot be read: why, and what to try."""

    reason: str
    hint: str = ""
    domain: str = ""
    """What would have been read: 'package', 'gpu'."""
    exists: bool = False
    """Whether the hardware is there, so that a missing figure is a gap and not simply nothing to measure."""

    def sentence(self) -> str:
        """Reason and hint in one line."""
        return f"{self.reason}; try: {self.hint}" if self.hint else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyMark:
    """The running total of one domain at one moment; only differences mean something."""

    domain: str
    """'package-0', 'dram-0', 'gpu-0'."""
    scope: str
    """Whose energy it is: 'socket' or 'device', other people's work on it included."""
    method: str
    time_seconds: float
    microjoules: int | None
    smallest_window_seconds: float
    """Below this window the counter's own refresh makes the difference meaningless."""
    reason: str = ""
    """Why there is no total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySpan:
    """Joules of one domain between two moments, or why they are not known."""

    domain: str
    scope: str
    method: str
    joules: float | None
    window_seconds: float
    source: str = "measured"
    reason: str = ""


class EnergyMeter(Protocol):
    """What both readers can do."""

    @property
    def read_every_seconds(self) -> float | None:
        """How often the counter must be read so that nothing is lost; None when both ends are enough."""
        ...

    def marks(self, time_seconds: float) -> list[EnergyMark]:
        """The running total of every domain."""
        ...

    def close(self) -> None:
        """Close the counter."""
        ...


Meters = Sequence[EnergyMeter | Unavailable]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReadings:
    """All domains at one moment, and the meters that could not be opened."""

    time_seconds: float
    marks: dict[str, EnergyMark]
    unavailable: tuple[Unavailable, ...] = ()


def close_meters(meters: Meters) -> None:
    """Close the meters that were opened."""
    for meter in meters:
        if not isinstance(meter, Unavailable):
            meter.close()


def read_meters(meters: Meters, clock: Callable[[], float] = time.monotonic) -> EnergyReadings:
    """Read every domain of every meter once."""
    marks: dict[str, EnergyMark] = {}
    for meter in meters:
        if not isinstance(meter, Unavailable):
            marks.update((mark.domain, mark) for mark in meter.marks(clock()))
    missing = tuple(meter for meter in meters if isinstance(meter, Unavailable))
    return EnergyReadings(time_seconds=clock(), marks=marks, unavailable=missing)


def read_interval_seconds(meters: Meters) -> float:
    """How often `read_meters` must be called while the job runs."""
    wishes = [meter.read_every_seconds for meter in meters if not isinstance(meter, Unavailable)]
    return min([IDLE_INTERVAL_SECONDS, *(wish for wish in wishes if wish is not None)])


def span_between(start: EnergyMark, end: EnergyMark) -> EnergySpan:
    """Joules of one domain between two marks."""
    window_seconds = end.time_seconds - start.time_seconds
    joules, reason = None, start.reason or end.reason
    if start.microjoules is not None and end.microjoules is not None:
        joules, reason = _judge(start.microjoules, end.microjoules, window_seconds, end.smallest_window_seconds)
    return EnergySpan(
        domain=end.domain,
        scope=end.scope,
        method=end.method,
        joules=joules,
        window_seconds=window_seconds,
        reason=reason,
    )


def _judge(start_uj: int, end_uj: int, window_seconds: float, smallest_seconds: float) -> tuple[float | None, str]:
    if window_seconds < smallest_seconds:
        window_ms, smallest_ms = window_seconds * 1e3, smallest_seconds * 1e3
        return None, f"the window of {window_ms:.1f} ms is too short for this counter (at least {smallest_ms:.0f} ms)"
    if end_uj < start_uj:
        return None, "the counter fell: it was reset in between, for example by a reload of the driver"
    if end_uj == start_uj:
        return None, f"the counter did not move in {window_seconds:.3f} s: it is slower than the window, or not wired"
    return (end_uj - start_uj) / 1e6, ""


def assumed_energy(watts: float, seconds: float) -> EnergySpan:
    """What the user's own figure for the power comes to; marked as assumed, and never part of a measured total."""
    return EnergySpan(
        domain="assumed",
        scope="machine",
        method=f"{watts:g} W given by the user, times the window",
        joules=watts * seconds,
        window_seconds=seconds,
        source="assumed",
    )


def measured_total_joules(spans: Iterable[EnergySpan]) -> float | None:
    """The sum of what was measured; None when nothing was. Assumed spans are left out."""
    known = [span.joules for span in spans if span.source == "measured" and span.joules is not None]
    return sum(known) if known else None


def energy_spans(start: EnergyReadings, end: EnergyReadings) -> list[EnergySpan]:
    """One span for every domain seen at either end."""
    window_seconds = end.time_seconds - start.time_seconds
    spans = []
    for domain in dict.fromkeys([*start.marks, *end.marks]):
        first, last = start.marks.get(domain), end.marks.get(domain)
        if first and last:
            spans.append(span_between(first, last))
            continue
        one = first or last
        assert one is not None
        gone = "the counter was there at only one end of the window"
        spans.append(_gap(domain, one.scope, one.method, gone, window_seconds))
    return spans


def _gap(domain: str, scope: str, method: str, reason: str, window_seconds: float) -> EnergySpan:
    return EnergySpan(
        domain=domain, scope=scope, method=method, joules=None, window_seconds=window_seconds, reason=reason
    )


def energy_events(start: EnergyReadings, end: EnergyReadings, assume_watts: float | None = None) -> list[Event]:
    """The events of a run folder: 'energy' for each domain, or 'energy_unavailable' where there is nothing at all."""
    window_seconds = end.time_seconds - start.time_seconds
    spans = energy_spans(start, end)
    missing = [one for one in end.unavailable if one.exists or one.domain != "gpu"]
    gaps = [
        _gap(one.domain, "device" if one.domain == "gpu" else "socket", "", one.sentence(), window_seconds)
        for one in missing
    ]
    events = [energy_event(span) for span in (*spans, *gaps)] if spans else []
    if assume_watts is not None:
        events.append(energy_event(assumed_energy(assume_watts, window_seconds)))
        if not spans:
            why = "; ".join(one.reason for one in missing)
            events.append({"kind": "note", "message": f"energy is assumed, not measured: {why}"})
    why = "; ".join(one.sentence() for one in missing)
    return events or [{"kind": "energy_unavailable", "reason": why or "no energy counter was opened"}]


def energy_event(span: EnergySpan) -> Event:
    """One span in the words of the run folder."""
    return {
        "kind": "energy",
        "domain": span.domain,
        "joules": span.joules,
        "source": span.source if span.joules is not None else None,
        "method": span.method,
        "scope": span.scope,
        "window_seconds": span.window_seconds,
        "reason": span.reason,
    }


# How much energy is it when a device tells only its power? The area under the readings, if they are close enough.
#
# Trapezoids between neighbouring readings. One reading held over a long gap is a guess, not a measurement, so a gap
# longer than `longest_gap_seconds` makes the figure unknown from there on, and so does a reading that fails.


class PowerIntegral:
    """The running area under the power of one device."""

    read_every_seconds = 0.1
    longest_gap_seconds = 1.0

    def __init__(self) -> None:
        self.num_readings = 0
        self.reason = ""
        self._joules = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, time_seconds: float, watts: float) -> None:
        """Take one reading."""
        self.num_readings += 1
        if self._last is not None:
            gap_seconds = time_seconds - self._last[0]
            self._joules += gap_seconds * (watts + self._last[1]) / 2
            if gap_seconds > self.longest_gap_seconds:
                most = f"at most {self.longest_gap_seconds:g} s"
                self.give_up(
                    f"the device has no energy counter and its power was not read for {gap_seconds:.1f} s ({most})"
                )
        self._last = time_seconds, watts

    def give_up(self, reason: str) -> None:
        """Remember the first reason why there can be no figure."""
        self.reason = self.reason or reason

    @property
    def microjoules(self) -> int | None:
        """The energy since the first reading."""
        return None if self.reason else round(self._joules * 1e6)

    @property
    def method(self) -> str:
        """How the figure was had."""
        return f"NVML power, {self.num_readings} readings integrated"
