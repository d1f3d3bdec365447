"""Time of one step by a roofline, good for ranking, off by a factor of two either way; pure."""

from __future__ import annotations

from memfit.predict.devices.parse import DeviceSpec
from memfit.records.figure import Figure

REACHED_ARITHMETIC = 0.5
REACHED_BANDWIDTH = 0.6
FACTOR = 2.0
LAUNCH_SECONDS, CALL_SECONDS = 6e-6, 5e-6
"""What one operator costs Python and torch themselves: to launch it on a GPU, to run it on a CPU. Assumed."""


def gpu_step_time(
    device: DeviceSpec, half_flops: float, single_flops: float, moved_bytes: float, num_calls: int = 0
) -> Figure:
    """Products at half of the data sheet's rate, all else at 0.6 of its bandwidth; or as fast as the host launches."""
    if not (device.half_tflops and device.single_tflops and device.bandwidth_gb_per_second):
        return Figure(value=None, unit="seconds", reason="no rates are known for this device: name a GPU of the table")
    seconds = (
        half_flops / (device.half_tflops * 1e12 * REACHED_ARITHMETIC)
        + single_flops / (device.single_tflops * 1e12 * REACHED_ARITHMETIC)
        + moved_bytes / (device.bandwidth_gb_per_second * 1e9 * REACHED_BANDWIDTH)
    )
    seconds = max(seconds, num_calls * LAUNCH_SECONDS)
    return _figure(seconds, f"roofline of {device.name}; good to a factor of two, for ranking only")


def cpu_step_time(
    flops: float, moved_bytes: float, flops_per_second: float, bytes_per_second: float, num_calls: int = 0
) -> Figure:
    """At the rates of one matrix product and one copy measured on this machine, and a little for every call."""
    return _figure(
        flops / flops_per_second + moved_bytes / bytes_per_second + num_calls * CALL_SECONDS,
        "from a matrix product and a copy timed here; good to a factor of two, for ranking only",
    )


def _figure(seconds: float, method: str) -> Figure:
    return Figure(
        value=seconds, unit="seconds", source="predicted", method=method, low=seconds / FACTOR, high=seconds * FACTOR
    )
