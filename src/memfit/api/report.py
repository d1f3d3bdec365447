"""Reports of a run: what is drawn of it, pages and pictures, and files for other tools.

A run is explained once: its ledgers (who held the peak) and the noise of its peak are computed by `explain_run`, and
every view, page and comparison of the same run takes them from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from memfit.api.diff import diff_runs
from memfit.api.measure import ExplainedRun, explain_run
from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.difference import Comparison
    from memfit.records.prediction import Prediction
    from memfit.records.run import RunRecord
    from memfit.show.views.run import RunView


def view_run(record: RunRecord | ExplainedRun, *, fine: bool = False, prediction: Prediction | None = None) -> RunView:
    """What is drawn of a run, explained and with its noise; `fine` keeps enough detail to zoom into."""
    from memfit.show.page.data import PAGE_ROWS, PAGE_STEPS
    from memfit.show.views.run import build_view

    detail = {"max_rows": PAGE_ROWS, "max_steps": PAGE_STEPS} if fine else {}
    run = explain_run(record)
    return build_view(run.record, ledgers=run.ledgers, noise=run.noise, prediction=prediction, **detail)


@checked_options
def write_report(
    record: RunRecord | ExplainedRun,
    *,
    html: str | Path | None = None,
    png: str | Path | None = None,
    svg: str | Path | None = None,
    over: RunRecord | ExplainedRun | None = None,
    comparison: Comparison | None = None,
    prediction: Prediction | None = None,
    overwrite: bool = True,
) -> tuple[Path, ...]:
    """Write the page and pictures that are asked for; when none is, the page and the picture into the run folder.

    `over` lays a second run over the first, with their comparison below (made here unless it is given); `prediction`
    lays a predicted curve over it.

    >>> write_report(memfit.read_run("runs/first"), html="report.html", png="timeline.png")  # doctest: +SKIP
    (PosixPath('report.html'), PosixPath('timeline.png'))
    """
    from memfit.show.page.run_page import Targets, beside_the_record, write_all

    run = explain_run(record)
    second = None if over is None else explain_run(over)
    targets = Targets(html=html, png=png, svg=svg)
    if targets == Targets():
        targets = beside_the_record(run.record.folder)
    if second is not None and comparison is None:
        comparison = diff_runs(run, second)
    other = view_run(second, fine=True) if second is not None else None
    view = view_run(run, prediction=prediction)
    page_view = view_run(run, fine=True, prediction=prediction)
    return write_all(view, page_view, targets, other=other, comparison=comparison, overwrite=overwrite)


@checked_options
def export_run(
    record: RunRecord,
    to: Literal["csv", "json", "chrome-trace", "perfetto", "memory-viewer", "tensorboard", "openmetrics"],
    path: str | Path | None = None,
    *,
    table: str | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write a run as 'csv', 'json', 'chrome-trace', 'perfetto', 'memory-viewer', 'tensorboard' or 'openmetrics'.

    Returns the files written; `export_record` does the same for studies, predictions and grids.

    >>> export_run(memfit.read_run("runs/first"), "csv", "steps.csv", table="steps")  # doctest: +SKIP
    """
    from memfit.show.export.formats import export

    return export(record, to, path, table=table, overwrite=overwrite)
