"""Energy and GPU memory in the sampler: opened after the job is started, read beside its loop, turned into events.

The readers are imported late: what is loaded before the job starts raises the floor of the job's high-water mark.
"""

from __future__ import annotations

from collections.abc import Collection


class EnergyAndGpu:
    """The counters besides memory: read at both ends, and as often as they would otherwise lose something."""

    def __init__(self, assume_watts: float | None) -> None:
        from memfit.measure.counters import energy, nvml, powercap
        from memfit.measure.sampler.gpu_events import gpu_events

        self._energy = energy
        self._gpu_events = gpu_events
        self._assume_watts = assume_watts
        self._meters: energy.Meters = [powercap.open_powercap(), nvml.open_nvml()]
        self._start = energy.read_meters(self._meters)
        self._every_us = int(energy.read_interval_seconds(self._meters) * 1e6)
        self._next_us = self._every_us
        self._gpu = nvml.gpu_reader(self._meters)

    def keep_up(self, now_us: int) -> None:
        """Read the energy counters before one of them could have wrapped around twice."""
        if now_us >= self._next_us:
            self._next_us = now_us + self._every_us
            self._energy.read_meters(self._meters)

    def gpu_events(self, pids: Collection[int]) -> list[dict[str, object]]:
        """Memory of every GPU now; nothing where there is none."""
        return self._gpu_events(self._gpu, pids) if self._gpu is not None else []

    def finish(self) -> list[dict[str, object]]:
        """The energy of the whole run as events, and the counters closed."""
        events = self._energy.energy_events(self._start, self._energy.read_meters(self._meters), self._assume_watts)
        self._energy.close_meters(self._meters)
        return events
