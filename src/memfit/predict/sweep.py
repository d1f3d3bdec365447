"""Sweep of one setting: the peak at each value, and the largest value that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from memfit.errors import UsageError
from memfit.job.description import JobDescription
from memfit.predict.batch_lengths import room_bytes
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.devices.parse import DeviceSpec, level_for, usable_bytes
from memfit.predict.engine import Question
from memfit.predict.lengths import (
    QUANTILES,
    check_has_place,
    longest_of_batches,
    num_too_large,
    read_lengths,
    with_length,
)
from memfit.predict.levels.savings import largest_fitting, sweep_peaks, values_between
from memfit.records.prediction import BatchLengths, LengthPoint, LevelName, Prediction, Sweep, SweepPoint
from memfit.units import format_bytes

FIRST_TRY = 64
Predict = Callable[[Question], Prediction]


def parse_sweep(text: str) -> tuple[str, int, int]:
    """Read 'batch_size=1:256'."""
    name, equals, span = text.partition("=")
    low, colon, high = span.partition(":")
    if not (equals and colon and name.isidentifier() and low.isdigit() and high.isdigit() and 0 < int(low) < int(high)):
        raise UsageError(
            "this is not a range", found=repr(text), hint="write NAME=LOW:HIGH, for example batch_size=1:256"
        )
    return name, int(low), int(high)


def check_can_vary(job: JobDescription, device: DeviceSpec, needs_limit: bool, is_callable: bool = False) -> None:
    """Refuse, before anything slow, what cannot be varied."""
    if is_callable:
        raise UsageError("a Python callable is predicted as it is", hint="write it to a file and give 'FILE:function'")
    if job.kind == "script":
        raise UsageError("a script has no settings to vary", hint="predict it once per value, or give FILE:function")
    if needs_limit and device.total_bytes is None:
        raise UsageError("nothing to fit into", hint="name a GPU (--device cuda:a100-40gb) or a size (--memory 24GiB)")


def sweep_setting(setting: str, low: int, high: int, question: Question, predict: Predict) -> Sweep:
    """The peak at both ends, at the powers of two between, straight lines where the curve is straight."""
    device = question.device
    level = level_for(device)
    failed: dict[int, bool] = {}

    def peak_at(value: int) -> int:
        prediction = predict(_at(setting, value, varied))
        failed[value] = prediction.failed is not None
        return _peak(prediction, level)

    with ForkServer(question.options.most_seconds) as server:
        varied = replace(question, fork_server=server, with_smallest=False, looks_here=False)
        peaks = sweep_peaks(peak_at, values_between(low, high))
    points = tuple(
        SweepPoint(
            value=value, peak_bytes=peak, how="traced" if how == "traced" else "interpolated",
            fits=_fits(value, failed) if device.total_bytes is not None else None,
        )
        for value, (peak, how) in peaks.items()
    )  # fmt: skip
    return Sweep(setting=setting, level=level, points=points)


def _fits(value: int, failed: dict[int, bool]) -> bool | None:
    """What fits at a larger value fits here, what fails at a smaller one fails here."""
    if any(not failed[other] for other in failed if other >= value):
        return True
    return False if any(failed[other] for other in failed if other <= value) else None


def fit_setting(setting: str, question: Question, predict: Predict) -> Sweep:
    """The largest value that fits, each candidate traced."""
    device = question.device
    level = level_for(device)
    tried: dict[int, SweepPoint] = {}

    def fits(value: int) -> bool:
        if value not in tried:
            prediction = predict(_at(setting, value, varied))
            tried[value] = SweepPoint(
                value=value, peak_bytes=_peak(prediction, level), how="traced", fits=prediction.failed is None
            )
        return bool(tried[value].fits)

    start = question.job.settings.get(setting)
    with ForkServer(question.options.most_seconds) as server:
        varied = replace(question, fork_server=server, with_smallest=False, looks_here=False)
        best = largest_fitting(
            fits, start if isinstance(start, int) else FIRST_TRY, lambda: _where_full(tried, usable_bytes(device))
        )
    points = tuple(tried[value] for value in sorted(tried))
    reason = _fit_sentence(setting, best, device)
    return Sweep(setting=setting, level=level, points=points, largest_fitting=best, reason=reason)


def predict_lengths(path: str, question: Question, predict: Predict) -> Prediction:
    """The prediction at the longest length of a file, with the peaks at typical and at great lengths."""
    job, device = question.job, question.device
    check_has_place(job)
    lengths = read_lengths(path)
    batch_size = job.settings.get("batch_size")
    is_known = type(batch_size) is int and batch_size > 0
    sizes = longest_of_batches(lengths, batch_size if type(batch_size) is int and is_known else 1)
    how = f"batches of {batch_size} samples drawn at random" if is_known else "each taken as the length of one batch"
    level = level_for(device)
    at: dict[int, Prediction] = {}
    with ForkServer(question.options.most_seconds) as server:
        varied = replace(
            question, fork_server=None if job.kind == "script" else server, with_smallest=False, looks_here=False
        )
        for share in QUANTILES.values():
            size = sizes.quantile(share)
            if size not in at:
                chosen = question if share == 1.0 else varied
                at[size] = predict(chosen.about(with_length(job, size)))
    points = tuple(_traced_point(name, sizes.quantile(share), at, device) for name, share in QUANTILES.items())
    longest = at[sizes.values[-1]]
    found = BatchLengths(
        source=f"{sum(lengths.values())} lengths of {path}, {how}",
        level=level,
        points=points,
        num_batches=sizes.num_batches,
        num_seen=sizes.num_batches,
        num_too_large=num_too_large(sizes, points, room_bytes(longest, device)) if device.total_bytes else None,
    )
    return msgspec.structs.replace(longest, lengths=found)


def _traced_point(name: str, size: int, at: dict[int, Prediction], device: DeviceSpec) -> LengthPoint:
    figure = at[size].level(level_for(device))
    assert figure is not None
    assert figure.value is not None
    return LengthPoint(name=name, size=size, shape=str(size), peak_bytes=int(figure.value), fits=at[size].fits)


def _fit_sentence(setting: str, best: int | None, device: DeviceSpec) -> str:
    limit = format_bytes(device.total_bytes or 0)
    if best is None:
        return f"not even {setting}=1 fits in {limit}"
    return f"the largest {setting} that fits in {limit} is {best}; {best + 1} does not"


def _where_full(tried: dict[int, SweepPoint], usable: int) -> float | None:
    """Where the line through the two largest values meets the memory; None when the peak does not grow there."""
    first, last = (tried[value] for value in sorted(tried)[-2:])
    grown = last.peak_bytes - first.peak_bytes
    if grown <= 0:
        return None
    return first.value + (usable - first.peak_bytes) * (last.value - first.value) / grown


def _at(setting: str, value: int, question: Question) -> Question:
    """The same question with another value of one setting."""
    job = question.job
    return question.about(msgspec.structs.replace(job, settings={**job.settings, setting: value}))


def _peak(prediction: Prediction, level: LevelName) -> int:
    figure = prediction.level(level)
    assert figure is not None
    assert figure.value is not None
    return int(figure.value)
