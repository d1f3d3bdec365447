"""Run-to-run noise of the peak: how far a repeat of the same run would land from this one.

Three sources, each with where it comes from:
  - the allocator: with glibc's moving mmap threshold, identical CPU jobs land in one of two modes, up to 7.5 %
    apart; with the threshold pinned they differed by up to 0.3 %, taken as 1 %. Measured on memfit's own test jobs,
    so for any other job it is an assumption.
  - the counter: resident counters are batched per thread; below 0.5 MiB two readings count as equal.
  - the steps of the run itself: a moving-block bootstrap of the median over steady steps (Kuensch 1989; blocks keep
    the correlation between neighbouring steps, which a plain bootstrap would take for independence).
The sources overlap, so the largest counts and they are not added. With four repeats or more on both sides none of
this is needed (explain/run/repeats.py).

Known limits: one run cannot show what the machine does to its pace, so times, energy and the mean over time, which
depends on how long each part of the run took, have no noise here: only repeats can tell.
"""

from __future__ import annotations

import numpy as np

from memfit.records.difference import NoiseInterval, NoiseSource
from memfit.records.run import RunHeader, RunRecord
from memfit.records.run_parts.steps import Steps
from memfit.units import MIB, format_ratio

COUNTER_BYTES = MIB // 2
DEFAULT_ALLOCATOR_RATIO = 0.075
STABLE_ALLOCATOR_RATIO = 0.01
TREE_RATIO = 0.02
MIN_STEADY_STEPS = 5

_NUM_RESAMPLES = 400
_MAX_VALUES = 2000
_SEED = 20_260_314
_PINNING = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")
"""Any one of these switches glibc's moving threshold off (mallopt(3))."""


def noise_interval(run: RunRecord) -> NoiseInterval | None:
    """Where the peak of a repeat may land; None when the peak itself is unknown."""
    peak_bytes = run.peak.value
    if peak_bytes is None:
        return None
    sources = peak_noise(run)
    half = max((source.half_width for source in sources), default=0.0)
    return NoiseInterval(
        unit="bytes", low=max(peak_bytes - half, 0.0), high=peak_bytes + half, half_width=half, sources=sources
    )


def peak_noise(run: RunRecord) -> tuple[NoiseSource, ...]:
    """Every source that moves the peak of this run."""
    if run.header.kind == "predicted":
        return ()
    peak_bytes = run.peak.value or 0.0
    sources = [allocator_noise(run.header, peak_bytes), counter_noise()]
    if len(run.processes) > 1 and run.tree_readings:
        reason = f"shared pages are read at {len(run.tree_readings)} moments and kept in between"
        sources.append(NoiseSource(name="tree", half_width=TREE_RATIO * peak_bytes, source="assumed", reason=reason))
    scatter = median_noise(run.steps.peak_bytes[steady_rows(run.steps)])
    if scatter is not None:
        sources.append(scatter)
    return tuple(sources)


def allocator_noise(header: RunHeader, num_bytes: float) -> NoiseSource:
    """What the C allocator alone does to resident bytes from repeat to repeat."""
    pinned = _pinned_by(header)
    if pinned:
        ratio, why = STABLE_ALLOCATOR_RATIO, f"{pinned} pins glibc's mmap threshold"
    else:
        ratio = DEFAULT_ALLOCATOR_RATIO
        why = "glibc's mmap threshold moves while the job runs; --stable would bring it to about 1 %"
    reason = f"allocator, up to {format_ratio(ratio)}: {why}"
    return NoiseSource(name="allocator", half_width=ratio * num_bytes, source="assumed", reason=reason)


def _pinned_by(header: RunHeader) -> str:
    """What holds glibc's threshold fixed; empty when nothing does."""
    if header.settings.stable:
        return "--stable"
    variables = header.environment.variables
    names = [name for name in _PINNING if variables.get(name)]
    if "mmap_threshold" in variables.get("GLIBC_TUNABLES", ""):
        names.append("GLIBC_TUNABLES")
    return names[0] if names else ""


def counter_noise() -> NoiseSource:
    """The grain of the kernel's resident counters."""
    reason = "counter: the kernel batches it per thread; below 0.5 MiB readings count as equal"
    return NoiseSource(name="counter", half_width=COUNTER_BYTES, source="measured", reason=reason)


def steady_rows(steps: Steps) -> np.ndarray:
    """Rows after warm-up: the first tenth, and at least the first two steps, are left out."""
    return np.arange(max(2, len(steps) // 10), len(steps))


def median_noise(values: np.ndarray) -> NoiseSource | None:
    """Half the width of the 95 % interval of the median over steps; None when there are too few."""
    known = values[~np.isnan(values)]
    if len(known) < MIN_STEADY_STEPS:
        return None
    if len(known) > _MAX_VALUES:
        known = known[np.linspace(0, len(known) - 1, _MAX_VALUES).astype(int)]
    medians = _block_medians(known)
    low, high = np.quantile(medians, [0.025, 0.975])
    middle = float(np.median(known))
    reason = f"steps: 95 % interval of the median over {len(known)} steady steps"
    half = max(high - middle, middle - low)
    return NoiseSource(name="steps", half_width=float(half), source="measured", reason=reason)


def _block_medians(values: np.ndarray) -> np.ndarray:
    """Medians of resamples made of blocks of neighbouring values; the seed is fixed, so is the answer."""
    rng = np.random.default_rng(_SEED)
    length = max(1, round(len(values) ** (1 / 3)))
    num_blocks = -(-len(values) // length)
    starts = rng.integers(0, len(values) - length + 1, (_NUM_RESAMPLES, num_blocks))
    rows = (starts[:, :, None] + np.arange(length)).reshape(_NUM_RESAMPLES, -1)[:, : len(values)]
    return np.median(values[rows], axis=1)
