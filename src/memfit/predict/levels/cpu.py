"""Process level of a CPU prediction: imports + tensors + slack of the C heap; pure.

With the mmap threshold of malloc pinned, every large block is its own mapping, and the resident peak is what the
tensors take plus a little for autograd, Python and libraries. With glibc's default the threshold grows to 32 MiB
while the program runs, blocks share heaps and stay resident after their release: 21 measured cases lay between 1.17
and 2.09 times the tensors and the same program differed by 15 % between runs. There a range is the honest answer,
never a point.
"""

from __future__ import annotations

from memfit.records.figure import Figure
from memfit.records.prediction import Level
from memfit.units import KIB, MIB, format_bytes

PINNED_SLACK_BYTES = (0, 32 * MIB)
FIXED_SLACK_BYTES, SLACK_RATIO, OPERATOR_BYTES = 4 * MIB, 0.010, 4 * KIB
"""Libraries' own buffers, page ends, and Python and autograd objects for every traced operator."""
DEFAULT_RATIO = (1.10, 2.15)
MEANING = "resident memory of the process: interpreter, imports and libraries, tensors, slack of the C heap"


def process_level(
    tensor_peak_bytes: int,
    baseline_bytes: int | None,
    *,
    pinned: bool,
    num_operators: int = 0,
    data_bytes: int = 0,
    untouched_bytes: int = 0,
    more_bytes: int = 0,
    unmeasured_because: str = "",
) -> Level:
    """The resident peak as a figure (pinned) or as a range (default glibc); a data set lies there for the whole run.

    What kernels asked for and never wrote to (`untouched_bytes` at the peak) has no pages. `more_bytes` may come to the
    tensors' peak; they widen the range alone.
    """
    if baseline_bytes is None:
        why = unmeasured_because or "leave out --no-probes"
        figure = Figure(value=None, unit="bytes", reason=f"the bare process was not measured: {why}")
        return Level(name="process", figure=figure, meaning=MEANING)
    floor_bytes = baseline_bytes + data_bytes
    touched_bytes = tensor_peak_bytes - untouched_bytes
    figure = (
        _pinned(touched_bytes, floor_bytes, num_operators, more_bytes)
        if pinned
        else _default(touched_bytes, tensor_peak_bytes + more_bytes, floor_bytes)
    )
    meaning = MEANING + (f"; {format_bytes(data_bytes)} of it is the data set" if data_bytes else "")
    meaning += f"; {format_bytes(untouched_bytes)} of the tensors is never written to" if untouched_bytes else ""
    return Level(name="process", figure=figure, meaning=meaning)


def _pinned(tensor_bytes: int, floor_bytes: int, num_operators: int, more_bytes: int) -> Figure:
    low, high = (floor_bytes + tensor_bytes + slack for slack in PINNED_SLACK_BYTES)
    slack = round(FIXED_SLACK_BYTES + SLACK_RATIO * tensor_bytes + OPERATOR_BYTES * num_operators)
    value = floor_bytes + tensor_bytes + slack
    method = "bare process measured here + tensor peak + slack by rule, malloc's mmap threshold pinned"
    return Figure(
        value=value,
        unit="bytes",
        source="predicted",
        method=method,
        low=min(low, value),
        high=max(high, value) + more_bytes,
    )


def _default(touched_bytes: int, tensor_bytes: int, floor_bytes: int) -> Figure:
    reason = "glibc's moving mmap threshold makes it differ from run to run; pinned (--malloc pinned) it is a point"
    return Figure(
        value=None,
        unit="bytes",
        method="bare process + 1.10 to 2.15 times the tensor peak",
        low=floor_bytes + round(DEFAULT_RATIO[0] * touched_bytes),
        high=floor_bytes + round(DEFAULT_RATIO[1] * tensor_bytes),
        reason=reason,
    )
