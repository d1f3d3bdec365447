"""Measures what passes of a training loop take, some of them or all, and tells of what was found.

A pass lasts until the next one begins, so that the update counts as a part of it. On CUDA every pass is measured, by
the allocator's own peak; elsewhere some are, by its events, which cost time. Evaluations between passes count apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from memfit.fit.pass_kinds import PassKind
from memfit.fit.tensors_alive import alive_bytes
from memfit.profile.meter.meter import Meter, WindowPeak
from memfit.units import format_bytes

FIRST_MEASURED = 3
AFTER_EVALUATION = 2
"""Passes that are measured after an evaluation: of the first of a recording often only bounds are known."""
BETWEEN = 0
"""In place of the number of a pass, which begins at 1."""
MOST_WINDOWS = 25
"""Passes in one recording of events, so that it stays small."""


@dataclass(slots=True)
class MeasuredPasses:
    """Peaks of the passes that were measured under a plan."""

    num_passes: int = 0
    num_measured: int = 0
    highest_bytes: int | None = None
    highest_at: int | None = None
    least_bytes: int = 0
    """What the highest took at least."""
    is_exact: bool = False
    """Whether the highest is what a pass took, and no bound: one that is exact takes the place of bounds around it."""
    num_over: int = 0
    num_unsure: int = 0
    """Whose bounds lie on both sides of the budget; the first of several aside, of which the others tell more."""


@dataclass(slots=True)
class PassPeaks:
    """Measures passes and evaluations of one program, as they come."""

    budget_bytes: int
    measure_every: int
    departures: dict[str, None]
    """Sentences about passes that did not go as planned, added to by who owns it: all passes after one are measured."""
    say: Callable[[str], None]
    num_kinds: int = 1
    """Of passes, that were seen so far."""
    measured: MeasuredPasses = field(default_factory=MeasuredPasses)
    first_peak_bytes: int | None = None
    """The highest of the passes that ran before there was a plan."""
    num_between: int = 0
    """Stretches between passes in which a model was called without being trained: evaluations."""
    between_peak_bytes: int | None = None
    """The highest of those that were measured."""
    _meter: Meter | None = None
    _windows: list[int | None] = field(default_factory=list)
    """Of the passes that are being measured, their numbers under a plan; None before there was one, BETWEEN for a call
    of a model between two passes."""
    _is_between: bool = False
    _is_due_between: bool = False
    _num_calls_between: int = 0
    _next_call_between: int = 0
    _num_to_measure: int = 0
    """Passes after an evaluation: what it keeps counts in them."""

    @property
    def is_measuring(self) -> bool:
        """Whether the pass that goes on is measured."""
        return self._meter is not None

    def end_between(self) -> None:
        """A pass begins: what was called since the last one is over."""
        if self._is_between and self._is_due(self.num_between):
            self._num_to_measure = AFTER_EVALUATION
        self._is_between = False

    def measure_pass(self, device: torch.device, at_work: PassKind | None) -> None:
        """Go on measuring, begin or end it, as the pass that begins demands; it has the plan of the kind `at_work`."""
        is_planned = at_work is not None
        self.measured.num_passes += is_planned
        number = self.measured.num_passes
        is_first = at_work is not None and at_work.num_passes < FIRST_MEASURED
        if at_work is not None:
            at_work.num_passes += 1
        is_due = is_first or self._num_to_measure > 0 or self._is_due(number) or self._is_due(number + 1)
        self._num_to_measure = max(0, self._num_to_measure - 1)
        wanted = device.type == "cuda" or not is_planned or is_due
        if self._meter is not None and (not wanted or len(self._windows) >= MOST_WINDOWS):
            self.end()
        if self._meter is None and wanted:
            self.start_meter(device)
        self.begin_window(device, number if is_planned else None)

    def measure_between(self, device: torch.device | None) -> None:
        """Measure what an evaluation takes, call by call; on CUDA the window of the pass before it holds that too."""
        if device is None or device.type == "cuda":
            return
        if not self._is_between:
            self._is_between = True
            self.num_between += 1
            self._is_due_between = self._is_due(self.num_between)
            self._num_calls_between, self._next_call_between = 0, MOST_WINDOWS
        is_due = self._is_due_between and self._is_due_call()
        is_over = self._windows[-1:] == [BETWEEN] and not is_due
        if self._meter is not None and (is_over or len(self._windows) >= MOST_WINDOWS):
            self.end()
        if self._meter is None and is_due:
            self.start_meter(device)
        self.begin_window(device, BETWEEN)

    def start_meter(self, device: torch.device) -> None:
        """Begin a recording of several windows."""
        meter = Meter(device)
        self._meter = meter if meter.start() else None

    def begin_window(self, device: torch.device, number: int | None) -> None:
        """From now on what is measured is of this pass."""
        if self._meter is not None:
            self._meter.begin_window(alive_bytes(device))
            self._windows.append(number)  # only if it began: the end pairs them up

    def end(self) -> None:
        """End the recording, and note what its passes took."""
        meter, self._meter = self._meter, None
        windows, self._windows = self._windows, []
        if meter is None:
            return
        after_bytes, peaks = 0, []
        try:
            after_bytes = alive_bytes(meter.device) if windows else 0
        finally:
            peaks = meter.stop(after_bytes)
        has_later_pass = any(windows[1:])
        for position, (number, peak) in enumerate(zip(windows, peaks, strict=True)):
            if peak is None:
                continue
            if number is None:
                self.first_peak_bytes = max(self.first_peak_bytes or 0, peak.most_bytes)
            elif number == BETWEEN:
                self.between_peak_bytes = max(self.between_peak_bytes or 0, peak.least_bytes)
            else:
                self.count(number, peak, is_first=position == 0 and has_later_pass)

    def count(self, number: int, peak: WindowPeak, *, is_first: bool) -> None:
        """A pass under the plan; one of which only bounds are known counts if both lie on one side of the budget."""
        found = self.measured
        if peak.least_bytes <= self.budget_bytes < peak.most_bytes:
            found.num_unsure += not is_first
            return
        found.num_measured += 1
        found.num_over += peak.least_bytes > self.budget_bytes
        if peak.least_bytes > self.budget_bytes and found.num_over == 1:
            took = f"pass {number} under the plan took {format_bytes(peak.least_bytes)}, MORE than the budget"
            self.say(f"{took}: it is of another kind than the one that was planned, or the program keeps more")
        before_bytes = found.highest_bytes
        is_higher = before_bytes is None or peak.least_bytes > before_bytes
        is_better = (peak.is_exact, peak.most_bytes) > (found.is_exact, before_bytes or 0)
        if is_higher or (is_better and peak.most_bytes >= found.least_bytes):
            found.highest_bytes, found.highest_at, found.is_exact = peak.most_bytes, number, peak.is_exact
            found.least_bytes = peak.least_bytes

    def _is_due_call(self) -> bool:
        """Whether a call of an evaluation is measured: the first ones, then fewer and fewer, as a cache may grow."""
        self._num_calls_between += 1
        if self._num_calls_between < self._next_call_between:
            return self._num_calls_between < MOST_WINDOWS
        self._next_call_between = self._num_calls_between * 5 // 4 + 1
        return True

    def _is_due(self, number: int) -> bool:
        """Whether a pass is measured: the first ones, some later ones, and all since one did not go as planned."""
        every = max(self.measure_every, self.num_kinds)
        is_its_turn = number % every < self.num_kinds and number >= every  # one of each kind
        return bool(self.departures) or number <= FIRST_MEASURED or is_its_turn
