"""How much energy is it when a device tells only its power? The area under the readings, if they are close enough.

Trapezoids between neighbouring readings. One reading held over a long gap is a guess, not a measurement, so a gap
longer than `longest_gap_seconds` makes the figure unknown from there on, and so does a reading that fails.
"""

from __future__ import annotations


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
