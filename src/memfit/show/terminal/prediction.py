"""A prediction in the terminal.

Every rank of a distributed training in the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memfit.records.figure import Figure
from memfit.records.prediction import BatchLengths, Prediction, RankClass, RankPredictions, Share, Sweep, named_ranks
from memfit.show.text_output import unwrapped_console
from memfit.units import format_bytes, format_ratio, format_seconds

MOST_ROWS = 6


def prediction_text(prediction: Prediction, *, width: int = 80, color: bool = False) -> str:
    """Peaks, who is alive, what was assumed; long lines are left to the terminal to wrap."""
    stream = io.StringIO()
    console = unwrapped_console(stream, width, color)
    print_prediction(prediction, console)
    return stream.getvalue()


def print_prediction(prediction: Prediction, console: Console) -> None:
    """The whole of it, on a console that is there already."""
    console.print(_title(prediction))
    console.print(_levels(prediction))
    peak = prediction.at_peak
    console.print(Text(f"\nAlive at the peak of the tensors (step {peak.step}, {peak.phase}):"))
    for name, shares in (("category", peak.by_category), ("module", peak.by_module), ("line", peak.by_line)):
        console.print(_shares(name, shares))
    if prediction.phases:
        parts = ", ".join(f"{share.name} {format_bytes(share.num_bytes)}" for share in prediction.phases)
        console.print(Text(f"Largest within each phase: {parts}"))
    if prediction.sweep is not None:
        console.print(_sweep(prediction.sweep))
    if prediction.lengths is not None:
        _print_lengths(prediction.lengths, prediction.memory_limit_bytes, console)
    _print_savings(prediction, console)
    if prediction.step_time is not None:
        method = f" ({prediction.step_time.method})" if prediction.step_time.method else ""
        console.print(Text(f"Time per step: {_seconds(prediction.step_time)}{method}"))
    _print_verdict(prediction, console)
    _print_assumptions(prediction, console)


def _title(prediction: Prediction) -> Text:
    settings = " ".join(f"{name}={value}" for name, value in prediction.settings.items())
    cost = f" in {format_seconds(prediction.cost.total_seconds)}" if prediction.cost else ""
    how = f"{prediction.num_steps} steps predicted{cost} ({prediction.route}, torch {prediction.torch_version})"
    return Text(f"{prediction.target} {settings}".rstrip() + f" on {prediction.device}: {how}")


def _levels(prediction: Prediction) -> Text:
    rows = [(level.name, _bytes(level.figure), level.meaning) for level in prediction.levels]
    names, figures = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = [f"{name:<{names}}  {figure:<{figures}}  {meaning}" for name, figure, meaning in rows]
    return Text("\n".join(lines))


def _bytes(figure: Figure) -> str:
    span = ""
    if figure.low is not None and figure.high is not None:
        span = f"{format_bytes(figure.low)} to {format_bytes(figure.high)}"
    if figure.value is None:
        return span or "unknown"
    mark = " (assumed)" if figure.source == "assumed" else ""
    return format_bytes(figure.value) + mark + (f"  [{span}]" if span else "")


def _seconds(figure: Figure) -> str:
    if figure.value is None:
        return f"unknown: {figure.reason}"
    return f"{format_seconds(figure.value)}" + (
        f" ({format_seconds(figure.low)} to {format_seconds(figure.high)})" if figure.low and figure.high else ""
    )


def _shares(name: str, shares: Iterable[Share]) -> Table:
    rows = list(shares)
    total = sum(share.num_bytes for share in rows) or 1
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    table.add_column(f"by {name}", min_width=34)
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for share in rows[:MOST_ROWS]:
        table.add_row(share.name or "(outside)", format_bytes(share.num_bytes), format_ratio(share.num_bytes / total))
    if len(rows) > MOST_ROWS:
        rest = sum(share.num_bytes for share in rows[MOST_ROWS:])
        table.add_row(f"{len(rows) - MOST_ROWS} more", format_bytes(rest), format_ratio(rest / total))
    return table


def _sweep(sweep: Sweep) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=None)
    for name in (sweep.setting, f"{sweep.level} peak", "how", "fits"):
        table.add_column(name, justify="right")
    for point in sweep.points:
        fits = "" if point.fits is None else "yes" if point.fits else "no"
        table.add_row(f"{point.value:g}", format_bytes(point.peak_bytes), point.how, fits)
    return table


def _print_lengths(lengths: BatchLengths, limit_bytes: int | None, console: Console) -> None:
    seen = "" if lengths.num_seen == lengths.num_batches else f", {lengths.num_seen:,} of them looked at"
    console.print(Text(f"\nOver the lengths of {lengths.num_batches:,} batches of an epoch ({lengths.source}{seen}):"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("batch", "length", f"{lengths.level} peak", "fits"):
        table.add_column(name, justify="left" if name == "batch" else "right")
    for point in lengths.points:
        fits = "" if point.fits is None else "yes" if point.fits else "no"
        table.add_row(_MEANS.get(point.name, point.name), point.shape, format_bytes(point.peak_bytes), fits)
    console.print(table)
    if not any(point.name == "longest" for point in lengths.points):
        console.print(Text("The script ended before it came to longer batches: these are not in the figures."))
    elif not lengths.is_whole:
        console.print(Text("Only part of the batches was looked at: the longest of an epoch may be longer."))
    if lengths.num_too_large is not None and limit_bytes is not None:
        console.print(Text(_too_large_sentence(lengths, limit_bytes)))


_MEANS = {"typical": "typical (half are shorter)", "90 %": "longer than 90 %", "99 %": "longer than 99 %"}


def _too_large_sentence(lengths: BatchLengths, limit_bytes: int) -> str:
    number = round(lengths.num_too_large or 0)
    if not any(point.fits is False for point in lengths.points):
        which = "batch of an epoch" if lengths.is_whole else "batch that was looked at"
        return f"No {which} is too large for {format_bytes(limit_bytes)}."
    about = "About" if any(point.fits for point in lengths.points) else "At least"
    share = format_ratio(number / max(1, lengths.num_batches))
    return (
        f"{about} {max(1, number):,} of {lengths.num_batches:,} batches of an epoch ({share}) would run out of "
        f"{format_bytes(limit_bytes)}."
    )


def _print_savings(prediction: Prediction, console: Console) -> None:
    for saving in prediction.savings:
        rest = f"{saving.how}; leaves {format_bytes(saving.peak_bytes)}"
        console.print(Text(f"Would save {format_bytes(saving.saved_bytes)}: {saving.change} ({rest})"))


def _print_verdict(prediction: Prediction, console: Console) -> None:
    if prediction.sweep is not None and prediction.sweep.reason:
        console.print(Text(prediction.sweep.reason))
    limit = prediction.memory_limit_bytes
    if limit is None:
        return
    failed = prediction.failed
    if failed is None:
        console.print(Text(f"It fits in {format_bytes(limit)}.", style="green"))
        return
    console.print(Text(f"It does not fit in {format_bytes(limit)}: step {failed.step}, {failed.phase}.", style="red"))
    where = ", ".join(part for part in (failed.module, failed.operator, failed.line) if part)
    if where:
        console.print(Text(f"  first failure: {format_bytes(failed.requested_bytes)} in {where}"))
    console.print(Text(f"  {failed.message}"))


def _print_assumptions(prediction: Prediction, console: Console) -> None:
    if prediction.error_band:
        console.print(Text(f"Error band: {prediction.error_band}", style="dim"))
    for item in prediction.assumptions:
        where = f" at {item.line}" if item.line else ""
        times = f" ({item.count} times)" if item.count > 1 else ""
        console.print(Text(f"Assumed: {item.text}{where}{times}", style="dim"))


HIDDEN = ("allocated", "cudnn", "context", "network", "smallest", "process")
"""Levels that the rows leave out; the fullest rank shows all of them."""


def ranks_text(found: RankPredictions, *, width: int = 80, color: bool = False) -> str:
    """A row for each class of ranks, why they are alike, and the fullest one in full."""
    stream = io.StringIO()
    console = unwrapped_console(stream, width, color)
    console.print(_ranks_title(found))
    console.print(_ranks_table(found))
    for each in found.classes:
        if len(each.ranks) > 1:
            console.print(Text(f"Ranks {named_ranks(each.ranks)}: {each.why}", style="dim"))
    if found.asked_at and len(found.classes) < found.num_ranks:
        lines = ", ".join(found.asked_at[:4]) + (", ..." if len(found.asked_at) > 4 else "")
        text = f"The job itself asks for its rank ({lines}): ranks that were not run are taken to go the same way"
        console.print(Text(text, style="dim"))
    console.print(Text(f"\nThe fullest: rank {found.fullest.traced[0]} of {found.num_ranks}"))
    print_prediction(found.fullest.prediction, console)
    return stream.getvalue()


def _ranks_title(found: RankPredictions) -> Text:
    traced = sum(len(each.traced) for each in found.classes)
    kinds = "all alike" if len(found.classes) == 1 else f"{len(found.classes)} kinds of them"
    took = format_seconds(found.total_seconds)
    return Text(f"{found.target} on {found.num_ranks} x {found.device}: {kinds}, {traced} ranks run in {took}")


def _ranks_table(found: RankPredictions) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = [level.name for level in found.classes[0].prediction.levels if level.name not in HIDDEN]
    table.add_column("ranks")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("fits")
    table.add_column("most of it", no_wrap=True, overflow="ellipsis")
    for each in found.classes:
        figures = [_level_bytes(each.prediction, name) for name in names]
        table.add_row(named_ranks(each.ranks), *figures, _rank_fits(each), _largest_shares(each))
    return table


def _level_bytes(prediction: Prediction, name: str) -> str:
    figure = next((level.figure for level in prediction.levels if level.name == name), None)
    return "" if figure is None or figure.value is None else format_bytes(figure.value)


def _rank_fits(each: RankClass) -> str:
    fits = each.prediction.fits
    return "" if fits is None else "yes" if fits else "no"


def _largest_shares(each: RankClass) -> str:
    """The two largest categories at the peak."""
    shares = each.prediction.at_peak.by_category[:2]
    return ", ".join(f"{share.name} {format_bytes(share.num_bytes)}" for share in shares)
