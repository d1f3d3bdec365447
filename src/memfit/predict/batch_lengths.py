"""The peaks of a script's steps over the lengths of its own batches: `memfit predict --lengths auto`."""

from __future__ import annotations

import msgspec

from memfit.errors import UsageError
from memfit.predict.devices.parse import DeviceSpec
from memfit.predict.lengths import QUANTILES, Survey, num_too_large, step_of
from memfit.predict.levels.liveness import peak_in_step
from memfit.records.prediction import BatchLengths, LengthPoint, Prediction


def with_lengths_of_loader(prediction: Prediction, survey: Survey, device: DeviceSpec, where: str) -> Prediction:
    """A prediction of a script that was given batches of chosen sizes, with the peaks of its steps."""
    assert prediction.timeline is not None
    room = room_bytes(prediction, device)
    points: list[LengthPoint] = []
    for index, (name, share) in enumerate(QUANTILES.items()):
        peak_bytes = peak_in_step(prediction.timeline, where, step_of(index))
        if peak_bytes is None or step_of(index) > prediction.num_steps:
            break
        fits = _fits_in_step(prediction, device, step_of(index), peak_bytes, room)
        size, shape = survey.sizes.quantile(share), survey.shapes[index]
        points.append(LengthPoint(name=name, size=size, shape=shape, peak_bytes=peak_bytes, fits=fits))
    if not points:
        raise UsageError(
            "the script ended before its batches could be distinguished",
            found=f"{prediction.num_steps} steps",
            hint=f"{step_of(0)} steps are needed for a typical batch, {step_of(len(QUANTILES) - 1)} for the longest",
        )
    is_known = len(points) == len(QUANTILES) or any(point.fits is False for point in points)
    found = BatchLengths(
        source=f"the data loader at {survey.line}" if survey.line else "the script's data loader",
        level="tensors",
        points=tuple(points),
        num_batches=survey.sizes.num_batches,
        num_seen=survey.num_seen,
        num_too_large=num_too_large(survey.sizes, points, room) if device.total_bytes and is_known else None,
    )
    return msgspec.structs.replace(prediction, lengths=found)


def _fits_in_step(prediction: Prediction, device: DeviceSpec, step: int, peak_bytes: int, room: float) -> bool | None:
    """Whether the training gets past a step."""
    if device.total_bytes is None:
        return None
    if prediction.failed is None:
        return True
    return prediction.failed.step > step if device.kind == "cuda" else peak_bytes <= room


def room_bytes(prediction: Prediction, device: DeviceSpec) -> float:
    """The tensor bytes that fit, as the first failure tells: beside the bare process, or what was allocated then."""
    failed = prediction.failed
    if failed is None or device.total_bytes is None:
        return float("inf")
    if device.kind == "cuda":
        return failed.allocated_bytes
    return device.total_bytes - (failed.requested_bytes - failed.allocated_bytes)
