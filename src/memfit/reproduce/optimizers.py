"""Statements on optimizers and techniques for DistilBERT (Windolph and Ogaja, 2024), judged on grids. Pure.

The slides measure question answering with DistilBERT under SGD and relatives of Adam, with mixed precision, gradient
checkpointing, batch size and gradient accumulation. They name two peaks, under mixed precision, and neither batch nor
length: the configurations that come nearest to both are searched for.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from memfit.records.grid import Grid, GridCell
from memfit.records.reproduction import NearestConfiguration, OptimizerResult, PrecisionPoint, Statement
from memfit.reproduce.statements import judged
from memfit.units import MIB, format_bytes, format_seconds

SOURCE = "Windolph and Ogaja, Memory footprints of selected DNN optimization algorithms, slides, 2024"
SHORT = "Windolph and Ogaja"
PUBLISHED_SGD_MIB, PUBLISHED_ADAM_MIB = 4492.2, 5000.7
PUBLISHED_DIFFERENCE_MIB = PUBLISHED_ADAM_MIB - PUBLISHED_SGD_MIB
OPTIMIZERS = ("sgd", "sgd-momentum", "adagrad", "rmsprop", "adam", "adamw", "adamax", "nadam", "adadelta")
MIXED = "fp16"
BATCHES = (1, 2, 4, 8, 16, 32)
TECHNIQUES = ("plain", MIXED, "checkpoint", "batch=8", "accumulate=4")
CONFIGURATIONS: tuple[tuple[int, int, str], ...] = (
    (48, 256, "eager"), (16, 512, "eager"), (32, 384, "eager"), (64, 320, "sdpa"), (80, 256, "sdpa"), (40, 512, "sdpa"),
    (16, 384, "eager"), (16, 384, "sdpa"),
)  # fmt: skip
"""Batch, length and attention that are tried against the published peaks."""
CLOSE = 0.02
"""How near a figure must come to a published one."""

STATES_SAY = "Adam keeps two more values per parameter than SGD"
LOWEST_SAYS = "SGD has the lowest peak of all optimizers"
FASTEST_SAYS = "SGD is the fastest optimizer per epoch"
COPY_SAYS = "mixed precision keeps a half-precision copy of the model beside it (1.5 times its size)"
EITHER_SAYS = "mixed precision can raise or lower memory, depending on model and batch"
ACTIVATIONS_SAY = "checkpointing and batch size act on activations only and do not depend on the optimizer"
ACCUMULATION_SAYS = "gradient accumulation trades time for memory"
MOMENTUM_SAYS = "optimizers with momentum take more memory"
SAID = (
    STATES_SAY, LOWEST_SAYS, FASTEST_SAYS, COPY_SAYS, EITHER_SAYS, ACTIVATIONS_SAY, ACCUMULATION_SAYS, MOMENTUM_SAYS,
)  # fmt: skip


def precision_points(grid: Grid) -> tuple[PrecisionPoint, ...]:
    """The peak with and without mixed precision over batch sizes, for the one optimizer of a grid."""
    row = grid.optimizers[0]
    points = []
    for batch in BATCHES:
        plain, mixed = _peak(grid, row, f"batch={batch}"), _peak(grid, row, f"{MIXED}+batch={batch}")
        if plain is not None and mixed is not None:
            points.append(PrecisionPoint(batch_size=batch, plain_bytes=int(plain), mixed_bytes=int(mixed)))
    return tuple(points)


def nearest_configurations(grids: Mapping[tuple[int, int, str], Grid]) -> tuple[NearestConfiguration, ...]:
    """Configurations with both peaks, the nearest to the published ones first."""
    found = []
    for (batch, length, attention), grid in grids.items():
        sgd, adam = _peak(grid, "sgd", MIXED), _peak(grid, "adam", MIXED)
        if sgd is None or adam is None:
            continue
        found.append(
            NearestConfiguration(
                batch_size=batch, length=length, attention=attention, sgd_bytes=int(sgd), adam_bytes=int(adam),
                sgd_error=sgd / MIB / PUBLISHED_SGD_MIB - 1, adam_error=adam / MIB / PUBLISHED_ADAM_MIB - 1,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda each: max(abs(each.sgd_error), abs(each.adam_error))))


def statements_on(found: OptimizerResult) -> tuple[Statement, ...]:
    """Every statement with its evidence and verdict."""
    grid = found.grid
    return (
        _on_states(found),
        _on_lowest(found),
        _on_fastest(found),
        _on_copy(found),
        _on_either(found),
        _on_activations(grid),
        _on_accumulation(found),
        _on_momentum(grid),
    )


def _peak(grid: Grid, optimizer: str, technique: str) -> float | None:
    cell = grid.cell(optimizer, technique)
    figures = None if cell is None else cell.predicted or cell.measured
    return None if figures is None else figures.peak.value


def _say(says: str, evidence: Sequence[str], holds: bool | None, *, published: str = "", reason: str = "") -> Statement:
    if not evidence:
        holds, reason = None, "the cells that would tell were not filled: memfit reproduce optimizers again"
    return judged(says, SHORT, published=published, evidence=evidence, holds=holds, reason=reason)


def _on_states(found: OptimizerResult) -> Statement:
    lines, differences = [], []
    for each in found.configurations[:3]:
        difference = (each.adam_bytes - each.sgd_bytes) / MIB
        differences.append(difference)
        lines.append(f"batch {each.batch_size}, length {each.length}, {each.attention}: {difference:.1f} MiB apart")
    published = f"{PUBLISHED_DIFFERENCE_MIB:.1f} MiB apart"
    near = any(abs(d / PUBLISHED_DIFFERENCE_MIB - 1) <= CLOSE for d in differences)
    state = _share(found.grid, "adam", "plain", "optimizer state")
    parameters = _share(found.grid, "adam", "plain", "parameter")
    if state and parameters:
        lines.append(f"state of Adam at the peak: {format_bytes(state)}, {state / parameters:.2f} times the parameters")
    return _say(STATES_SAY, lines, near and bool(state), published=published)


def _share(grid: Grid, optimizer: str, technique: str, category: str) -> int:
    cell = grid.cell(optimizer, technique)
    shares = () if cell is None or cell.predicted is None else cell.predicted.at_peak
    return next((share.num_bytes for share in shares if share.name == category), 0)


def _on_lowest(found: OptimizerResult) -> Statement:
    """Predicted, and where it was measured also here: no optimizer takes less, tensors to the byte."""
    predicted = {name: peak for name in found.grid.optimizers if (peak := _peak(found.grid, name, "plain")) is not None}
    measured = {} if found.measured is None else _tensors_measured(found.measured)
    lines = [f"{name}: {format_bytes(peak)}" for name, peak in sorted(predicted.items(), key=lambda pair: pair[1])]
    ordered = sorted(measured.items(), key=lambda pair: pair[1])
    lines += [f"{name}: {format_bytes(peak)} of tensors, measured here" for name, peak in ordered]
    least = [peaks for peaks in (predicted, measured) if peaks and min(peaks, key=lambda name: peaks[name]) == "sgd"]
    return _say(LOWEST_SAYS, lines, bool(predicted) and len(least) == 1 + bool(measured))


def _tensors_measured(grid: Grid) -> dict[str, float]:
    cells = {name: grid.cell(name, "plain") for name in grid.optimizers}
    figures = {name: cell.measured for name, cell in cells.items() if cell is not None and cell.measured is not None}
    return {name: each.tensors.value for name, each in figures.items() if each.tensors.value is not None}


def _on_fastest(found: OptimizerResult) -> Statement:
    """Decided where the median step and the quick steps say the same; other programs disturb quick steps least."""
    times = {} if found.measured is None else _step_times(found.measured)
    if "sgd" not in times or len(times) < 2:
        reason = "predicted times are good to a factor of two; --measure times steps on this machine"
        return _say(FASTEST_SAYS, ["no step was timed"], None, reason=reason)
    assert found.measured is not None
    lines = []
    for name, (middle, quick) in sorted(times.items(), key=lambda pair: pair[1]):
        epoch = "" if found.epochs is None else f", {format_seconds(middle * found.epochs.epoch_steps)} an epoch"
        lines.append(f"{name}: {format_seconds(middle)} a step{epoch}, quick ones {format_seconds(quick)}, measured")
    sgd = times["sgd"]
    others = [time for name, time in times.items() if name != "sgd"]
    verdicts = {all(sgd[which] <= other[which] for other in others) for which in (0, 1)}
    missing = [name for name in OPTIMIZERS if name not in times]
    if missing and verdicts == {True}:
        reason = f"fastest of those that were timed; not timed: {', '.join(missing)}; the same command goes on"
        return _say(FASTEST_SAYS, lines, None, reason=reason)
    reason = "the median and the quick steps disagree on which is fastest: a quieter machine, or more --epoch-steps"
    return _say(FASTEST_SAYS, lines, verdicts.pop() if len(verdicts) == 1 else None, reason=reason)


def _step_times(grid: Grid) -> dict[str, tuple[float, float]]:
    """The median step and the quick ones (a tenth is quicker) of every optimizer that was timed without techniques."""
    found = {name: _times_of(grid.cell(name, "plain")) for name in grid.optimizers}
    return {name: times for name, times in found.items() if times is not None}


def _times_of(cell: GridCell | None) -> tuple[float, float] | None:
    """Measured times for as many examples."""
    if cell is None or cell.measured is None or cell.measured.step_time.value is None or not cell.examples_ratio:
        return None
    figure = cell.measured.step_time
    low = figure.value if figure.low is None else figure.low
    return (figure.value or 0.0) / cell.examples_ratio, (low or 0.0) / cell.examples_ratio


def _on_copy(found: OptimizerResult) -> Statement:
    parameters = _share(found.grid, "sgd", "plain", "parameter")
    if not found.precision or not parameters:
        return _say(COPY_SAYS, [], None)
    smallest = found.precision[0]
    more = smallest.mixed_bytes - smallest.plain_bytes
    lines = [
        f"batch {smallest.batch_size}: mixed precision takes {format_bytes(abs(more))} "
        f"{'more' if more > 0 else 'less'}",
        f"half of the parameters is {format_bytes(parameters / 2)}; autocast keeps the copies from first use to the "
        "end of the backward, not beyond the step",
    ]
    return _say(COPY_SAYS, lines, more > 0.5 * parameters / 2, published="1.5 times the model")


def _on_either(found: OptimizerResult) -> Statement:
    points = found.precision
    lines = [
        f"batch {p.batch_size}: {format_bytes(p.plain_bytes)} plain, {format_bytes(p.mixed_bytes)} mixed"
        for p in points
    ]
    crossing = crossing_batch(points)
    if crossing is not None:
        lines.append(f"they cross at a batch of about {crossing:.1f}")
    return _say(EITHER_SAYS, lines, crossing is not None)


def crossing_batch(points: Sequence[PrecisionPoint]) -> float | None:
    """The batch at which both take the same, on a line between the points beside it; None where none lies between."""
    for low, high in itertools.pairwise(points):
        below, above = low.mixed_bytes - low.plain_bytes, high.mixed_bytes - high.plain_bytes
        if below > 0 >= above:
            return low.batch_size + (high.batch_size - low.batch_size) * below / (below - above)
    return None


def _on_activations(grid: Grid) -> Statement:
    """A saving is the same for all optimizers whose peak stays in forward or backward."""
    lines, agree = [], True
    for technique in ("checkpoint", "batch=8"):
        cells = [cell for cell in grid.cells if cell.technique == technique and cell.saved_bytes is not None]
        free = [cell for cell in cells if not _binds_in_update(cell)]
        if not free:
            continue
        saved = [cell.saved_bytes or 0 for cell in free]
        agree = agree and max(saved) - min(saved) <= CLOSE * max(saved)
        lines.append(
            f"{technique}: saves {format_bytes(min(saved))} to {format_bytes(max(saved))} with {len(free)} optimizers"
        )
        others = [cell.optimizer for cell in cells if _binds_in_update(cell)]
        if others:
            lines.append(f"{technique}: less with {', '.join(others)}, whose step binds then")
    return _say(ACTIVATIONS_SAY, lines, agree)


def _binds_in_update(cell: GridCell) -> bool:
    return cell.predicted is not None and cell.predicted.binds is not None and cell.predicted.binds.phase == "update"


def _on_accumulation(found: OptimizerResult) -> Statement:
    """It trades where it saves and is slower, by the median step and by the quick ones."""
    cell = found.grid.cell("adam", "accumulate=4")
    if cell is None or cell.saved_bytes is None:
        return _say(ACCUMULATION_SAYS, [], None)
    lines = [f"adam, four parts of the batch: saves {format_bytes(cell.saved_bytes)} (predicted)"]
    ratios = [ratio for name in ("adam", "sgd") for ratio in _accumulation_ratios(found.measured, name)]
    if not ratios:
        lines.append("its price in time was not measured: --measure")
        reason = "only the saving is known; --measure times both on this machine"
        return _say(ACCUMULATION_SAYS, lines, None, reason=reason)
    lines += [f"{name}: a step takes {middle:.2f} times as long, quick ones {quick:.2f} times, measured here"
              for name, middle, quick in ratios]  # fmt: skip
    slower = {ratio > 1 for _, *both in ratios for ratio in both}
    reason = "the median and the quick steps disagree on which is slower: a quieter machine, or more --epoch-steps"
    holds = None if len(slower) > 1 else cell.saved_bytes > 0 and slower.pop()
    return _say(ACCUMULATION_SAYS, lines, holds, reason=reason)


def _accumulation_ratios(grid: Grid | None, name: str) -> list[tuple[str, float, float]]:
    """How much longer a step in four parts takes, by the median and by the quick steps."""
    mine = None if grid is None else _times_of(grid.cell(name, "accumulate=4"))
    plain = None if grid is None else _times_of(grid.cell(name, "plain"))
    if mine is None or plain is None or not all(plain):
        return []
    return [(name, mine[0] / plain[0], mine[1] / plain[1])]


def _on_momentum(grid: Grid) -> Statement:
    pairs = (("sgd", "sgd-momentum"), ("rmsprop", "adam"))
    lines, holds = [], True
    for without, with_it in pairs:
        low, high = _peak(grid, without, "plain"), _peak(grid, with_it, "plain")
        if low is not None and high is not None:
            lines.append(f"{with_it} takes {format_bytes(high - low)} more than {without}")
            holds = holds and high > low
    return _say(MOMENTUM_SAYS, lines, holds)
