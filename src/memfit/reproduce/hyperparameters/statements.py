"""The conclusions of the published study of hyperparameters, each with what the tables and the re-run say of it.

Source: Mahendran N, "Analysis of memory consumption by neural networks based on hyperparameters". The published number
is the memory that the whole system used; ours is the peak of the training's own processes, so that other programs are
not in it. What five or eleven trials that vary everything at once cannot show, trials that change one hyperparameter
alone do (`single_changes.py`). What the source names as its limitations is put into figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from memfit.records.reproduction import Rerun, RerunRow, SingleChange, Statement
from memfit.reproduce.hyperparameters import single_changes as single
from memfit.reproduce.hyperparameters.published_tables import TABLES
from memfit.reproduce.statements import CHANCE, judged, rank_correlation
from memfit.units import MIB, format_bytes

SOURCE = "Mahendran"
NODES = "the number of nodes in the hidden layers drives memory"
SMALL = "networks with at most 200 nodes in every layer take least"
RATE = "the learning rate drives memory (MNIST)"
RATE_FASHION = "the learning rate has little impact on Fashion-MNIST"
EPOCHS = "the number of epochs does not contribute"
BATCH = "the batch size does not contribute"
DEPTH = "the number of layers does not contribute"
CIFAR = "CIFAR-10 takes more than MNIST"
SHIFT = "background processes explain the shift between the first and the later trials of the MNIST table"
CONVOLUTIONS = "the conclusions on nodes, batch size and depth carry over to convolutional layers, which the text names"
SYSTEM = "limitation: what psutil reads is the whole system, background processes included"
AVERAGE = "limitation: memory is read every 5 s and averaged, so that the peak is not seen"
SAID = (NODES, SMALL, RATE, RATE_FASHION, EPOCHS, BATCH, DEPTH, CIFAR, SHIFT, CONVOLUTIONS, SYSTEM, AVERAGE)

SMALL_WIDTH = 200
LEAST_STEPS = 10
"""Of a trial, for a statement on how memory goes on."""
PAIR = (5, 6)
"""Rows of the MNIST table with one network and everything else alike but the learning rate."""
FIRST_ROWS = 5
"""Of the MNIST table; the later ones lie several hundred MiB higher."""
NEGLIGIBLE = 0.1
"""An effect here of less than a tenth of the published one is not that effect."""
STEADY = 0.01
NOT_RUN = "the trials it is about were not run here: memfit reproduce hyperparameters"
AT_ONCE = "every published trial changes all hyperparameters at once, and those that change this one alone were not run"
NO_SPREAD = "one replicate each has no known spread: --repeat 3"
BETWEEN = "what it changes is about a tenth of what nodes change, or within the spread of replicates"


def statements_on(reruns: Sequence[Rerun], changes: Sequence[SingleChange] = ()) -> tuple[Statement, ...]:
    """Every conclusion with its verdict, in the order of the source; its limitations come last."""
    tables = {rerun.data: rerun for rerun in reruns if any(row.published.value is not None for row in rerun.rows)}
    mnist = tables.get("mnist")
    return (
        _on_nodes(reruns, _changes_of(changes, "mlp", single.NODES)),
        _on_small(reruns),
        _on_rate(mnist, _changes_of(changes, "mlp", single.RATE, "mnist")),
        _without_effect(RATE_FASHION, changes, [single.RATE], data="fashion-mnist", also=_rate_evidence(tables)),
        _on_epochs(reruns),
        _without_effect(BATCH, changes, [single.BATCH]),
        _without_effect(DEPTH, changes, [single.DEPTH_NODES, single.DEPTH_WIDTH]),
        _on_cifar(mnist, tables.get("cifar-10")),
        _on_shift(mnist),
        _on_convolutions(changes),
        _on_system(reruns),
        _on_average(reruns),
    )


# ---- one hyperparameter alone ----------------------------------------------------------------------------------------


def _changes_of(changes: Sequence[SingleChange], workload: str, name: str, data: str = "") -> list[SingleChange]:
    chosen = [each for each in changes if (each.workload, each.name) == (workload, name) and data in ("", each.data)]
    return [each for each in chosen if all(peak.value is not None for peak in each.peaks)]


def span_of(change: SingleChange) -> tuple[float, float]:
    """The least and the most by which two values may differ, by the ends of their replicates; of one replicate each
    nothing is known of the least and the most."""
    if any(peak.low is None or peak.high is None for peak in change.peaks):
        return 0.0, float("inf")
    lows, highs = [peak.low or 0.0 for peak in change.peaks], [peak.high or 0.0 for peak in change.peaks]
    return max(0.0, max(lows) - min(highs)), max(highs) - min(lows)


def change_text(change: SingleChange) -> str:
    """One sentence with the peak at every value."""
    means = [peak.value or 0.0 for peak in change.peaks]
    peaks = ", ".join(f"{level}: {format_bytes(mean)}" for level, mean in zip(change.levels, means, strict=True))
    least, most = span_of(change)
    spread = "an unknown distance" if most == float("inf") else f"{format_bytes(least)} to {format_bytes(most)}"
    return f"{change.workload} on {change.data}, {change.name} alone ({peaks}): {spread} apart"


def _without_effect(
    says: str, changes: Sequence[SingleChange], names: Sequence[str], *, workload: str = "mlp", data: str = "",
    also: Iterable[str] = (),
) -> Statement:  # fmt: skip
    """Holds where the most it can change is below a tenth of the least that nodes change; refuted where the least it
    changes is above that."""
    chosen = [each for name in names for each in _changes_of(changes, workload, name, data)]
    nodes = _changes_of(changes, workload, single.NODES, data)
    evidence = [*also, *map(change_text, [*chosen, *nodes[:1]])]
    if not chosen or not nodes:
        return judged(says, SOURCE, evidence=evidence, holds=None, reason=AT_ONCE)
    holds = _is_negligible(chosen, nodes[0])
    reason = NO_SPREAD if any(span_of(each)[1] == float("inf") for each in (*chosen, nodes[0])) else BETWEEN
    return judged(says, SOURCE, evidence=evidence, holds=holds, reason=reason)


def _is_negligible(chosen: Sequence[SingleChange], nodes: SingleChange) -> bool | None:
    least_of_nodes, most_of_nodes = span_of(nodes)
    if all(span_of(each)[1] < NEGLIGIBLE * least_of_nodes for each in chosen):
        return True
    return False if any(span_of(each)[0] > NEGLIGIBLE * most_of_nodes for each in chosen) else None


def _on_convolutions(changes: Sequence[SingleChange]) -> Statement:
    """Holds where filters change memory beyond the spread, and batch and depth make less than a tenth of that."""
    nodes = _changes_of(changes, "cnn", single.NODES)
    others = [each for name in (single.BATCH, single.DEPTH_WIDTH) for each in _changes_of(changes, "cnn", name)]
    evidence = [change_text(each) for each in (*nodes, *others)]
    if not nodes or len(others) < 2:
        return judged(CONVOLUTIONS, SOURCE, evidence=evidence, holds=None, reason=NOT_RUN)
    holds = _is_negligible(others, nodes[0])
    if holds is not False and span_of(nodes[0])[0] <= 0:
        holds = None
    reason = NO_SPREAD if span_of(nodes[0])[1] == float("inf") else BETWEEN
    return judged(CONVOLUTIONS, SOURCE, evidence=evidence, holds=holds, reason=reason)


# ---- limitations -----------------------------------------------------------------------------------------------------


def _on_system(reruns: Sequence[Rerun]) -> Statement:
    """Holds where other programs make most of the number, or move it more than the networks do."""
    rows = [row for rerun in reruns for row in _measured(rerun) if row.background.value is not None]
    if len(rows) < 4:
        return judged(SYSTEM, SOURCE, evidence=(), holds=None, reason=NOT_RUN)
    others, own = [row.background.value or 0.0 for row in rows], [row.average.value or 0.0 for row in rows]
    shares = [other / (other + mine) for other, mine in zip(others, own, strict=True)]
    moved, networks = max(others) - min(others), max(own) - min(own)
    evidence = (
        f"re-run: other programs hold {min(shares):.0%} to {max(shares):.0%} of the system's memory in these trials",
        f"they move by {format_bytes(moved)} from row to row; the trainings' own averages lie within "
        f"{format_bytes(networks)}",
    )
    return judged(SYSTEM, SOURCE, evidence=evidence, holds=fmean(shares) > 0.5 or moved > networks)


def _on_average(reruns: Sequence[Rerun]) -> Statement:
    """Holds where the average is a tenth or more below the peak."""
    rows = [row for rerun in reruns for row in _measured(rerun) if row.average.value]
    if len(rows) < 4:
        return judged(AVERAGE, SOURCE, evidence=(), holds=None, reason=NOT_RUN)
    below = [1 - (row.average.value or 0.0) / _peak(row) for row in rows]
    evidence = (
        f"re-run: the average of a training's own memory lies {min(below):.0%} to {max(below):.0%} below its peak; the "
        "share depends on how long the training runs",
    )
    return judged(AVERAGE, SOURCE, evidence=evidence, holds=fmean(below) >= NEGLIGIBLE)


# ---- the tables ------------------------------------------------------------------------------------------------------


def _on_nodes(reruns: Sequence[Rerun], alone: Sequence[SingleChange]) -> Statement:
    """Holds where the re-run with most points has more memory with more nodes, beyond chance; the reverse refutes.
    Nodes that were changed alone decide where the re-run does not."""
    evidence, judgements = [change_text(each) for each in alone], []
    for rerun in reruns:
        rows = _measured(rerun)
        if len(rows) < 4:
            continue
        nodes, peaks = [float(sum(_widths(row))) for row in rows], [_peak(row) for row in rows]
        rho, chance = rank_correlation(nodes, peaks)
        span = format_bytes(max(peaks) - min(peaks))
        evidence.append(
            f"{rerun.data}, re-run: rank correlation of nodes and peak {rho:+.2f} (by chance in {chance:.1%} of "
            f"shuffles), {len(rows)} networks; all peaks lie within {span}"
        )
        judgements.append((len(rows), (rho > 0) if chance <= CHANCE else None))
    for data in dict.fromkeys(rerun.data for rerun in reruns):
        evidence.append(_published_nodes(data))
    holds = max(judgements, key=lambda pair: pair[0])[1] if judgements else None
    if holds is None and alone and all(_rises(each) for each in alone):
        holds = True
    reason = NOT_RUN if not judgements else "the correlation is not beyond chance; --random 40 tries more networks"
    return judged(NODES, SOURCE, evidence=evidence, holds=holds, reason=reason)


def _rises(change: SingleChange) -> bool:
    """Whether every value's replicates lie above all of the value before."""
    pairs = zip(change.peaks, change.peaks[1:], strict=False)
    return all(a.high is not None and b.low is not None and a.high < b.low for a, b in pairs)


def _published_nodes(data: str) -> str:
    nodes = [float(sum(map(int, row[3].split("-")))) for row in TABLES[data]]
    memory = [row[4] for row in TABLES[data]]
    rho, chance = rank_correlation(nodes, memory)
    span = format_bytes((max(memory) - min(memory)) * MIB)
    return f"{data}, published: {rho:+.2f} (by chance in {chance:.1%}), system memory within {span}"


def _on_small(reruns: Sequence[Rerun]) -> Statement:
    """Holds where every small network lies below every other beyond the spread; one other below the small by more than
    the spread and a tenth of what all networks differ by refutes."""
    evidence, verdicts, is_single = [], [], False
    for rerun in reruns:
        small = [row for row in _measured(rerun) if max(_widths(row)) <= SMALL_WIDTH]
        others = [row for row in _measured(rerun) if max(_widths(row)) > SMALL_WIDTH]
        if not small or not others:
            continue
        if not _have_spread((*small, *others)):
            verdicts.append(None)
            is_single = True
            continue
        least = min(others, key=_peak)
        peaks_bytes = [_peak(row) for row in (*small, *others)]
        margin_bytes = NEGLIGIBLE * (max(peaks_bytes) - min(peaks_bytes))
        lower = [row for row in others if any(_high(row) + margin_bytes < _low(other) for other in small)]
        clear = all(_high(row) < _low(other) for row in small for other in others)
        verdicts.append(False if lower else True if clear else None)
        peaks = ", ".join(format_bytes(_peak(row)) for row in small)
        gap_bytes = min(_low(other) for other in others) - max(_high(row) for row in small)
        apart = f"; all replicates lie {format_bytes(gap_bytes)} or more apart" if clear else ""
        evidence.append(
            f"{rerun.data}, re-run: {len(small)} such network(s) with a peak of {peaks}; the least of {len(others)} "
            f"others {format_bytes(_peak(least))}; {len(lower)} of them clearly below a small one{apart}"
        )
    holds = None if not verdicts or (None in verdicts and False not in verdicts) else all(verdicts)
    reason = "they lie within the spread of replicates, or of a tenth of all" if verdicts else NOT_RUN
    reason = NO_SPREAD if is_single else reason
    return judged(SMALL, SOURCE, evidence=evidence, holds=holds, reason=reason)


def _on_rate(mnist: Rerun | None, alone: Sequence[SingleChange]) -> Statement:
    """Refuted where the pair that differs in the rate alone is less than a tenth of the published distance apart; where
    the pair was not run, the rate that was changed alone decides."""
    first, second = (TABLES["mnist"][row - 1] for row in PAIR)
    published_bytes = abs(second[4] - first[4]) * MIB
    says = f"rows {PAIR[0]} and {PAIR[1]} differ in the rate alone ({first[0]:g} and {second[0]:g})"
    published = f"{says} and by {format_bytes(published_bytes)}"
    changed_alone = [change_text(each) for each in alone]
    rows = [row for row in _measured(mnist) if row.row in PAIR] if mnist is not None else []
    if len(rows) < 2:
        holds = False if alone and span_of(alone[0])[1] < NEGLIGIBLE * published_bytes else None
        return judged(RATE, SOURCE, published=published, evidence=changed_alone, holds=holds, reason=NOT_RUN)
    if not _have_spread(rows):
        return judged(RATE, SOURCE, published=published, evidence=changed_alone, holds=None, reason=NO_SPREAD)
    left, right = rows
    most_bytes = max(abs(_high(left) - _low(right)), abs(_high(right) - _low(left)))
    least_bytes = max(0.0, _low(right) - _high(left), _low(left) - _high(right))
    evidence = (
        f"re-run: peaks of {format_bytes(_peak(left))} and {format_bytes(_peak(right))}, at most "
        f"{format_bytes(most_bytes)} apart in any two of {left.num_done} and {right.num_done} replicates",
        *changed_alone,
    )
    holds = False if most_bytes < NEGLIGIBLE * published_bytes else None
    if least_bytes > published_bytes / 2:
        holds = True
    reason = "the replicates differ too much among themselves; more of them would tell (--replicates 6)"
    return judged(RATE, SOURCE, published=published, evidence=evidence, holds=holds, reason=reason)


def _rate_evidence(tables: dict[str, Rerun]) -> Iterator[str]:
    rerun = tables.get("fashion-mnist")
    rows = _measured(rerun) if rerun is not None else []
    if len(rows) >= 4:
        span = max(map(_peak, rows)) - min(map(_peak, rows))
        rates = [row.parameters["lr"] for row in rows]
        yield (
            f"re-run: rates from {min(rates):g} to {max(rates):g}, all peaks within {format_bytes(span)}, which holds "
            "the effect of everything that differs"
        )


def _on_epochs(reruns: Sequence[Rerun]) -> Statement:
    """Holds where no later step's exact peak is a hundredth above the second one's: more epochs repeat these steps.
    Refuted where all replicates of one network grow so; in single trials it may be the allocator."""
    found = [rerun.evidence for rerun in reruns if rerun.evidence.share.value is not None]
    if not found:
        return judged(EPOCHS, SOURCE, evidence=(), holds=None, reason=NOT_RUN)
    worst = max(found, key=lambda one: one.share.value or 0.0)
    share, grown = worst.share.value or 0.0, worst.growth.value or 0.0
    num_trials, num_steps = sum(one.num_trials for one in found), min(one.num_steps for one in found)
    evidence = (
        f"re-run: after step 2 no step's exact peak is more than {format_bytes(grown)} ({share:.1%}) above it, in "
        f"{num_trials} trials of at least {num_steps} steps",
    )
    if share < STEADY:
        if num_steps < LEAST_STEPS:
            reason = f"{num_steps} steps were seen; {LEAST_STEPS} or more are needed"
            return judged(EPOCHS, SOURCE, evidence=evidence, holds=None, reason=reason)
        return judged(EPOCHS, SOURCE, evidence=evidence, holds=True)
    repeated = max((one.repeated.value for one in found if one.repeated.value is not None), default=None)
    if repeated is None:
        return judged(EPOCHS, SOURCE, evidence=evidence, holds=None, reason="no network was run twice")
    evidence = (*evidence, f"in all replicates of one network it is {repeated:.1%} at most")
    if repeated >= STEADY:
        return judged(EPOCHS, SOURCE, evidence=evidence, holds=False)
    return judged(
        EPOCHS, SOURCE, evidence=evidence, holds=None, reason="replicates of the same network did not grow so"
    )


def _on_cifar(mnist: Rerun | None, cifar: Rerun | None) -> Statement:
    """Holds where every trial on CIFAR-10 takes more than every trial on MNIST; refuted where the mean does not."""
    lows, highs = ([row[4] for row in TABLES[data]] for data in ("cifar-10", "mnist"))
    published = f"system memory of at least {min(lows):.0f} MiB against at most {max(highs):.0f} MiB"
    left, right = (_measured(rerun) if rerun is not None else [] for rerun in (cifar, mnist))
    if not left or not right:
        return judged(CIFAR, SOURCE, published=published, evidence=(), holds=None, reason=NOT_RUN)
    more, most = min(map(_low, left)), max(map(_high, right))
    means = fmean(map(_peak, left)), fmean(map(_peak, right))
    evidence = (
        f"re-run: peaks of at least {format_bytes(more)} on CIFAR-10 ({len(left)} networks) against at most "
        f"{format_bytes(most)} on MNIST ({len(right)}); on average {format_bytes(means[0])} against "
        f"{format_bytes(means[1])}",
    )
    holds = True if more > most else False if means[0] <= means[1] else None
    reason = "more on average, but not in every trial: the networks of the two tables differ"
    return judged(CIFAR, SOURCE, published=published, evidence=evidence, holds=holds, reason=reason)


def _on_shift(mnist: Rerun | None) -> Statement:
    """Holds where the jobs themselves make less than a tenth of the shift: what they do not hold, others did."""
    memory = [row[4] for row in TABLES["mnist"]]
    published_bytes = (fmean(memory[FIRST_ROWS:]) - fmean(memory[:FIRST_ROWS])) * MIB
    later_rows = f"rows {FIRST_ROWS + 1}-{len(memory)}"
    published = f"{later_rows} lie {format_bytes(published_bytes)} above rows 1-{FIRST_ROWS}"
    rows = _measured(mnist) if mnist is not None else []
    first, later = ([_peak(row) for row in rows if (row.row > FIRST_ROWS) == is_late] for is_late in (False, True))
    if not first or not later:
        return judged(SHIFT, SOURCE, published=published, evidence=(), holds=None, reason=NOT_RUN)
    here_bytes = fmean(later) - fmean(first)
    evidence = (
        f"re-run, in shuffled order: the same networks' own peaks differ by {_signed(here_bytes)} on average; the rest "
        "of the published shift was not held by such a training",
    )
    holds = True if abs(here_bytes) < NEGLIGIBLE * published_bytes else None
    reason = "the networks themselves differ as well"
    return judged(SHIFT, SOURCE, published=published, evidence=evidence, holds=holds, reason=reason)


def _signed(num_bytes: float) -> str:
    return ("-" if num_bytes < 0 else "+") + format_bytes(abs(num_bytes))


def _measured(rerun: Rerun) -> list[RerunRow]:
    """The rows that were measured here."""
    return [row for row in rerun.rows if row.peak.value is not None]


def _peak(row: RerunRow) -> float:
    return row.peak.value or 0.0


def _have_spread(rows: Sequence[RerunRow]) -> bool:
    """Whether every row was run more than once."""
    return all(row.peak.low is not None and row.peak.high is not None for row in rows)


def _low(row: RerunRow) -> float:
    return _peak(row) if row.peak.low is None else row.peak.low


def _high(row: RerunRow) -> float:
    return _peak(row) if row.peak.high is None else row.peak.high


def _widths(row: RerunRow) -> list[int]:
    return [int(width) for width in str(row.parameters["hidden"]).split("-")]
