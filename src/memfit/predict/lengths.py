"""Lengths of batches: how long a typical, a long and the longest batch is, and how many of an epoch are too large.

Lengths come from a file (one per sample), or from the batches that a script's own data loader makes. Pure arithmetic.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from memfit.errors import UsageError
from memfit.job.description import JobDescription, SettingValue
from memfit.records.prediction import LengthPoint
from memfit.regular_file import describe_error, read_regular

AUTO = "auto"
"""Lengths of the script's own batches, instead of a file."""
PLACEHOLDER = "{length}"
QUANTILES: dict[str, float] = {"typical": 0.5, "90 %": 0.9, "99 %": 0.99, "longest": 1.0}
LONGEST = 10**9
STEPS_BEFORE, STEPS_EACH = 1, 2
"""A script's first step has no state of an optimizer yet; then each size is given for two steps, so that one of them
sees it whether or not the script fetches a batch ahead."""
NUM_STEPS = STEPS_BEFORE + STEPS_EACH * len(QUANTILES)
HOW_TO_PLACE = (
    f"write {PLACEHOLDER} where the length goes: --set length={PLACEHOLDER}, or behind `--`: --max-length {PLACEHOLDER}"
)


class BatchSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How large the batches of an epoch are: each size with the number of batches that have it."""

    values: tuple[int, ...] = ()
    """Rising."""
    counts: tuple[float, ...] = ()
    """Expected numbers where batches are drawn."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return round(sum(self.counts))

    def quantile(self, share: float) -> int:
        """The smallest size that at least this share of the batches does not exceed."""
        below = np.cumsum(self.counts) / sum(self.counts)
        return self.values[min(int(np.searchsorted(below, share - 1e-9)), len(self.values) - 1)]

    def num_above(self, size: float) -> float:
        """How many batches are larger."""
        return float(sum(self.counts[bisect_right(self.values, size) :]))


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of an epoch of one data loader."""

    line: str = ""
    sizes: BatchSizes = BatchSizes()
    """In elements of all tensors of a batch."""
    num_seen: int = 0
    shapes: tuple[str, ...] = ()
    """Of the batch of each quantile."""


def step_of(index: int) -> int:
    """The step, counted from 1, that is sure to train on the batch of this quantile."""
    return STEPS_BEFORE + STEPS_EACH * (index + 1)


# ---- lengths from a file -----------------------------------------------------------------------------------------


def read_lengths(path: str) -> Counter[int]:
    """Lengths of samples: one per line, or 'LENGTH COUNT', or a JSON list."""
    try:
        text = read_regular(path).decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read", found=describe_error(error), hint="a file of lengths") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no list of lengths", found="bytes that are no text", hint=_FORM) from None
    rows = _json_rows(text, path) if text.lstrip().startswith("[") else _text_rows(text, path)
    lengths: Counter[int] = Counter()
    for where, length, count in rows:
        if not 0 < length <= LONGEST or not 0 <= count <= LONGEST:
            raise UsageError(f"{path} is no list of lengths", found=f"{length} {count} {where}", hint=_FORM)
        if count:
            lengths[length] += count
    if not lengths:
        raise UsageError(f"{path} has no lengths", found="nothing but empty lines", hint=_FORM)
    return lengths


_FORM = "one whole number per line, the length of a sample; or 'LENGTH COUNT'; or a JSON list of lengths"


def _text_rows(text: str, path: str) -> list[tuple[str, int, int]]:
    rows: list[tuple[str, int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.partition("#")[0].replace(",", " ").split()
        if not parts:
            continue
        if len(parts) > 2 or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
            raise UsageError(f"{path} is no list of lengths", found=f"{line[:60]!r} in line {number}", hint=_FORM)
        rows.append((f"in line {number}", int(parts[0]), int(parts[1]) if len(parts) > 1 else 1))
    return rows


def _json_rows(text: str, path: str) -> list[tuple[str, int, int]]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no list of lengths", found=str(error)[:100], hint=_FORM) from None
    wrong = next((item for item in found if type(item) is not int), None)
    if wrong is not None:
        raise UsageError(f"{path} is no list of lengths", found=repr(wrong)[:60], hint=_FORM)
    return [(f"at place {index}", item, 1) for index, item in enumerate(found)]


def longest_of_batches(lengths: Counter[int], batch_size: int) -> BatchSizes:
    """How long batches of samples drawn at random are, each as long as its longest sample."""
    num_samples = sum(lengths.values())
    batch_size = min(batch_size, num_samples)
    num_batches = math.ceil(num_samples / batch_size)
    values, counts, below, before = [], [], 0, 0.0
    for length in sorted(lengths):
        below += lengths[length]
        share = _share_within(below, num_samples, batch_size)
        values.append(length)
        counts.append(num_batches * (share - before))
        before = share
    return BatchSizes(values=tuple(values), counts=tuple(counts))


def _share_within(num_short: int, num_samples: int, batch_size: int) -> float:
    """How often all samples of a batch, drawn without putting back, are among the short ones."""
    if num_short < batch_size:
        return 0.0
    if num_short == num_samples:
        return 1.0

    def log_ways(total: int) -> float:
        return math.lgamma(total + 1) - math.lgamma(total - batch_size + 1)

    return math.exp(log_ways(num_short) - log_ways(num_samples))


def with_length(job: JobDescription, length: int) -> JobDescription:
    """The job with the length put where the placeholder stands."""
    settings = {name: _filled(value, length) for name, value in job.settings.items()}
    arguments = tuple(argument.replace(PLACEHOLDER, str(length)) for argument in job.arguments)
    return msgspec.structs.replace(job, settings=settings, arguments=arguments)


def check_has_place(job: JobDescription) -> None:
    """Refuse a job that would not notice the length."""
    texts = [*job.arguments, *(value for value in job.settings.values() if isinstance(value, str))]
    if not any(PLACEHOLDER in text for text in texts):
        raise UsageError("the job does not get the length", found=job.target, hint=HOW_TO_PLACE)


def _filled(value: SettingValue, length: int) -> SettingValue:
    if not isinstance(value, str) or PLACEHOLDER not in value:
        return value
    return length if value.strip() == PLACEHOLDER else value.replace(PLACEHOLDER, str(length))


# ---- how many are too large --------------------------------------------------------------------------------------


def num_too_large(sizes: BatchSizes, points: Sequence[LengthPoint], room_bytes: float) -> float:
    """Batches of an epoch whose peak, on the line between traced points, does not fit; what was traced counts first.

    Where no traced batch fits, only those are counted that are at least as large as one of them.
    """
    fitting = max((point.size for point in points if point.fits), default=0)
    failing = min((point.size for point in points if point.fits is False), default=None)
    if failing is None:
        return 0.0
    if not fitting:
        return sizes.num_above(failing - 1)
    traced = sorted({point.size: point.peak_bytes for point in points}.items())
    known = [size for size in sizes.values if fitting < size < failing]
    peaks = np.interp(known, [size for size, _ in traced], [peak for _, peak in traced])
    below = [size for size, peak in zip(known, peaks, strict=True) if peak <= room_bytes]
    return sizes.num_above(max(below, default=fitting))
