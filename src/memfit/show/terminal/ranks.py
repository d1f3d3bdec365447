"""Every rank of a distributed training in the terminal."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memfit.records.prediction import Prediction
from memfit.records.ranks import RankClass, RankPredictions, named_ranks
from memfit.show.terminal.prediction import print_prediction
from memfit.units import format_bytes, format_seconds


def ranks_text(found: RankPredictions, *, width: int = 80, color: bool = False) -> str:
    """A row for each class of ranks, why they are alike, and the fullest one in full."""
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, highlight=False, soft_wrap=True, force_terminal=color, no_color=not color,
        color_system="standard" if color else None, legacy_windows=False,
    )  # fmt: skip
    console.print(_title(found))
    console.print(_table(found))
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


def _title(found: RankPredictions) -> Text:
    traced = sum(len(each.traced) for each in found.classes)
    kinds = "all alike" if len(found.classes) == 1 else f"{len(found.classes)} kinds of them"
    took = format_seconds(found.total_seconds)
    return Text(f"{found.target} on {found.num_ranks} x {found.device}: {kinds}, {traced} ranks run in {took}")


def _table(found: RankPredictions) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = [level.name for level in found.classes[0].prediction.levels if level.name not in ("cudnn", "context")]
    table.add_column("ranks")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("fits")
    table.add_column("most of it")
    for each in found.classes:
        figures = [_bytes(each.prediction, name) for name in names]
        table.add_row(named_ranks(each.ranks), *figures, _verdict(each), _most(each))
    return table


def _bytes(prediction: Prediction, name: str) -> str:
    figure = next((level.figure for level in prediction.levels if level.name == name), None)
    return "" if figure is None or figure.value is None else format_bytes(figure.value)


def _verdict(each: RankClass) -> str:
    fits = each.prediction.fits
    return "" if fits is None else "yes" if fits else "no"


def _most(each: RankClass) -> str:
    """The two largest categories at the peak."""
    shares = each.prediction.at_peak.by_category[:2]
    return ", ".join(f"{share.name} {format_bytes(share.num_bytes)}" for share in shares)
