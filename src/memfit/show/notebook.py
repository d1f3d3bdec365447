"""Records as small pieces of HTML for Jupyter: one sentence, a table, a drawing; no script, no style sheet, no file.

Everything that a user or a file wrote is escaped. Drawings are SVG in the ink of the notebook's own theme, a few
kilobytes each: curves are thinned to a few hundred points that keep every peak.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from memfit.records.files.only_text import only_text
from memfit.records.fit import Fit
from memfit.records.grid import Grid, GridCell
from memfit.records.pipeline import PipelinePlan
from memfit.records.plan import Plan
from memfit.records.prediction import Prediction, RankPredictions, named_ranks
from memfit.records.run import RunRecord
from memfit.records.study import Study, TrialRecord
from memfit.show.page.documents.plan import budget_of
from memfit.show.views.decimate import decimate
from memfit.show.views.study_ranking import rank_trials
from memfit.show.wording import bounds_text, command_text, cut, figure_text
from memfit.units import format_bytes, format_ratio, format_seconds

WIDTH, HEIGHT = 520, 120
MOST_POINTS = 240
MOST_DOTS = 400
MOST_ROWS = 6
MOST_CLASSES = 12
_LETTERS = 120
_CELL_LETTERS = 4000
"""Of a cell: every hyperparameter of a trial has room in it."""
_BLUE, _ORANGE, _GREY = "#0072B2", "#E69F00", "#8a929c"
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8a929c")

Cells = Sequence[str]


def html_of(record: object) -> str:
    """The HTML of a run, prediction (of one process or every rank), study, plan, fit, pipeline or grid."""
    for kind, make in _MAKERS.items():
        if isinstance(record, kind):
            return f'<div style="font-family:sans-serif;font-size:13px;line-height:1.5">{make(record)}</div>'
    raise TypeError(f"no HTML for {type(record).__name__}")


# ---- one function per record -----------------------------------------------------------------------------------------


def _run(run: RunRecord) -> str:
    bounds = bounds_text(run.peak)
    head = f"Peak {figure_text(run.peak)}" + (f" ({bounds})" if bounds else "")
    average = run.tree.mean_bytes()
    rows = [
        ("command", command_text(run.header.command)),
        ("ended", f"{run.outcome.kind}, after {format_seconds(run.duration_seconds)}"),
        ("average", "unknown" if average is None else format_bytes(average)),
        ("processes, steps", f"{len(run.processes)}, {run.steps.total}"),
    ]
    level = decimate(run.tree.time_seconds, run.tree.tree_bytes, MOST_POINTS)
    drawing = _curve(level.time_seconds, level.high, format_bytes, format_seconds)
    return _head(head) + _table(rows) + drawing + _notes(run.notes)


def _prediction(found: Prediction) -> str:
    level = next((each for each in reversed(found.levels) if each.figure.value is not None), None)
    peak = "unknown peak" if level is None else f"Peak {figure_text(level.figure)} ({level.name})"
    fits = {None: "", True: "; it fits", False: "; it does not fit"}[found.fits]
    rows = [("target", found.target), ("device", found.device), ("how", found.route)]
    rows += [(each.name, f"{figure_text(each.figure)}: {each.meaning}") for each in found.levels]
    rows += [("accuracy", found.error_band)] if found.error_band else []
    shares = [(share.name, float(share.num_bytes)) for share in found.at_peak.by_category]
    return _head(peak + fits) + _table(rows) + _bar(shares) + _notes(each.text for each in found.assumptions)


def _study(study: Study) -> str:
    counts = Counter(trial.kind for trial in study.trials)
    counted = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common()) or "no trials yet"
    best = rank_trials(study, "metric").ranked
    rows = [_trial_row(trial) for trial in best[:MOST_ROWS]]
    heads = ("trial", "metric", "peak", "parameters")
    listing = _table(rows, heads) if rows else ""
    more = f"<div>the best {len(rows)} of {len(best):,} with a metric</div>" if len(best) > len(rows) else ""
    return _head(f"{study.settings.name or study.study_id}: {counted}") + listing + more + _dots(study)


def _trial_row(trial: TrialRecord) -> Cells:
    words = ", ".join(f"{name}={_value(value)}" for name, value in trial.flat_parameters.items())
    peak = figure_text(trial.peak).replace(" ", "\N{NO-BREAK SPACE}", 1)
    return (str(trial.number), _value(trial.metric), peak, words)


def _plan(plan: Plan) -> str:
    budget_bytes, fits = budget_of(plan), "within" if plan.fits else "above"
    budget = "without a budget" if budget_bytes is None else f"{fits} the budget of {format_bytes(budget_bytes)}"
    head = f"Peak {format_bytes(plan.peak_bytes)}, {budget}"
    rows = [
        ("planner", plan.solver),
        ("everything kept", format_bytes(plan.plain_peak_bytes)),
        ("time", f"{format_seconds(plan.seconds)}, {plan.slowdown:.3g} times that with everything kept"),
        ("from the best", f"at most {format_ratio(plan.gap)} slower ({plan.bound_of})"),
        ("smallest budget", format_bytes(plan.smallest_budget_bytes)),
    ]
    points = sorted((point.peak_bytes, point.seconds) for point in plan.frontier)
    drawing = ""
    if len(points) > 1:
        memory, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
        drawing = _curve(memory, seconds, format_seconds, format_bytes, mark=(plan.peak_bytes, plan.seconds))
    return _head(head) + _table(rows) + drawing + _notes(plan.notes)


def _fit(fit: Fit) -> str:
    proof = fit.unproven_because or "not proven"
    if fit.proof is not None:
        proof = "bit-equal to the plain step" if fit.proof.bit_equal else "same" if fit.proof.same else "NOT the same"
        if fit.proof.measured_peak_bytes is not None:
            proof += f"; measured {format_bytes(fit.proof.measured_peak_bytes)}"
    return _table([("target", fit.target), ("proof", proof)]) + _plan(fit.plan) + _notes(fit.notes)


def _grid(grid: Grid) -> str:
    shown = grid.optimizers[: 3 * MOST_ROWS]
    rows = [(name, *(_cell(grid.cell(name, technique)) for technique in grid.techniques)) for name in shown]
    rest = len(grid.optimizers) - len(shown)
    notes = [*grid.notes, *([f"{rest} more optimizers are in the record"] if rest else [])]
    head = f"{grid.target} on {grid.device}: peak ({grid.level}) of {len(grid.cells)} cells"
    return _head(head) + _table(rows, ("optimizer", *grid.techniques)) + _notes(notes)


def _cell(cell: GridCell | None) -> str:
    figures = None if cell is None else cell.figures
    if cell is None or figures is None or figures.peak.value is None:
        return "-" if cell is None else cell.state
    return figure_text(figures.peak)


def _ranks(found: RankPredictions) -> str:
    rows = [
        (named_ranks(each.ranks), format_bytes(found.bytes_of(each)), each.why) for each in found.classes[:MOST_CLASSES]
    ]
    rest = len(found.classes) - len(rows)
    more = [f"{rest} more kinds of ranks are in the record"] if rest else []
    head = (
        f"{found.target} on {found.num_ranks} x {found.device}: the fullest is rank {named_ranks(found.fullest.ranks)}"
    )
    listing = _table(rows, ("ranks", f"peak ({found.level}, predicted)", "why they are alike"))
    return _head(head) + listing + _notes(more) + _prediction(found.fullest.prediction)


def _pipeline(plan: PipelinePlan) -> str:
    fits = "every rank fits" if plan.fits else "not every rank fits"
    head = f"A step takes {format_seconds(plan.step.seconds)} on {plan.cut.num_ranks} ranks; {fits}"
    rows = [("planner", plan.planner), ("a micro-batch every", format_seconds(plan.period_seconds))]
    full = plan.ranks[plan.fullest_rank]
    limit = "" if full.limit_bytes is None else f" of {format_bytes(full.limit_bytes)}"
    rows.append((f"rank {full.rank}, the fullest", f"{format_bytes(full.total_bytes)}{limit}"))
    parts = [(part.name, float(part.num_bytes)) for part in full.parts]
    return _head(head) + _table(rows) + _bar(parts) + _notes((*plan.reasons, *plan.notes))


_MAKERS: dict[type, Callable[..., str]] = {
    RunRecord: _run, Prediction: _prediction, RankPredictions: _ranks, Study: _study, Plan: _plan, Fit: _fit,
    Grid: _grid, PipelinePlan: _pipeline,
}  # fmt: skip


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _escaped(text: str, letters: int = _LETTERS) -> str:
    return html.escape(only_text(cut(text, letters)))


def _value(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _head(text: str) -> str:
    return f"<div><b>{_escaped(text)}</b></div>"


def _table(rows: Iterable[Cells], heads: Cells = ()) -> str:
    cell = "padding:1px 12px 1px 0;text-align:left"
    top = "".join(f'<th style="{cell}">{_escaped(head)}</th>' for head in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{cell}">{_escaped(each, _CELL_LETTERS)}</td>' for each in row) + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse;font-size:inherit">{f"<tr>{top}</tr>" if top else ""}{body}</table>'


def _notes(notes: Iterable[str]) -> str:
    """The first notes, and how many more there are."""
    every = list(notes)
    shown = [f"<li>{_escaped(note)}</li>" for note in every[:MOST_ROWS]]
    more = [f"<li>and {len(every) - MOST_ROWS} more</li>"] if len(every) > MOST_ROWS else []
    return f'<ul style="margin:4px 0;opacity:.8">{"".join([*shown, *more])}</ul>' if every else ""


def _curve(
    across: np.ndarray, up: np.ndarray, up_text: Callable[[float], str], across_text: Callable[[float], str],
    mark: tuple[float, float] | None = None,
) -> str:  # fmt: skip
    """A line from zero to its highest point, which is marked and named."""
    if len(across) < 2 or not float(np.max(up)) > 0:
        return ""
    left, right, top = float(across[0]), float(across[-1]), float(np.max(up))
    x = (across - left) / (right - left or 1) * (WIDTH - 10) + 5
    y = HEIGHT - 18 - up / top * (HEIGHT - 36)
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
    peak = int(np.argmax(up))
    at = (float(x[peak]), float(y[peak]), up_text(top))
    if mark is not None:
        place = (mark[0] - left) / (right - left or 1) * (WIDTH - 10) + 5
        at = (place, HEIGHT - 18 - mark[1] / top * (HEIGHT - 36), up_text(mark[1]))
    parts = [
        f'<polyline points="{line}" fill="none" stroke="{_BLUE}" stroke-width="1.5"/>',
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3.5" fill="{_ORANGE}"/>',
        _words(min(max(at[0], 50), WIDTH - 50), max(12.0, at[1] - 6), at[2], "middle"),
        _words(5, HEIGHT - 4, across_text(left), "start"),
        _words(WIDTH - 5, HEIGHT - 4, across_text(right), "end"),
    ]
    return _svg(parts)


def _bar(shares: Sequence[tuple[str, float]]) -> str:
    """One bar cut into parts, each named below."""
    total = sum(size for _, size in shares)
    if total <= 0:
        return ""
    parts, x = [], 0.0
    for index, (name, size) in enumerate(sorted(shares, key=lambda share: -share[1])[: len(_COLORS)]):
        width, color = size / total * WIDTH, _COLORS[index]
        parts.append(f'<rect x="{x:.1f}" y="4" width="{width:.1f}" height="26" fill="{color}"/>')
        row, column = divmod(index, 2)
        parts.append(f'<rect x="{column * 260}" y="{42 + 18 * row}" width="10" height="10" fill="{color}"/>')
        parts.append(_words(column * 260 + 16, 51 + 18 * row, f"{name} {format_bytes(size)}", "start"))
        x += width
    return _svg(parts)


def _dots(study: Study) -> str:
    """Metric against memory, a dot per trial; of many trials every k-th."""
    ranked = [trial for trial in rank_trials(study, "metric").ranked if trial.peak.value is not None]
    shown = ranked[:: max(1, math.ceil(len(ranked) / MOST_DOTS))]
    if len(shown) < 2:
        return ""
    peaks = np.array([trial.peak.value for trial in shown], dtype=float)
    metrics = np.array([trial.metric for trial in shown], dtype=float)
    x, y = _spread(peaks) * (WIDTH - 20) + 10, HEIGHT - 24 - _spread(metrics) * (HEIGHT - 40)
    places = zip(x.tolist(), y.tolist(), strict=True)
    parts = [f'<circle cx="{a:.0f}" cy="{b:.0f}" r="2" fill="{_BLUE}" fill-opacity=".5"/>' for a, b in places]
    parts.append(f'<circle cx="{x[0]:.0f}" cy="{y[0]:.0f}" r="4" fill="{_ORANGE}"/>')
    parts.append(_words(10, HEIGHT - 4, f"peak {format_bytes(float(peaks.min()))}", "start"))
    parts.append(_words(WIDTH - 10, HEIGHT - 4, format_bytes(float(peaks.max())), "end"))
    parts.append(_words(10, 12, f"metric {metrics.max():.4g} (top) to {metrics.min():.4g}", "start"))
    return _svg(parts)


def _spread(values: np.ndarray) -> np.ndarray:
    span = float(np.ptp(values))
    return (values - values.min()) / span if span else np.full(len(values), 0.5)


def _words(x: float, y: float, text: str, anchor: str) -> str:
    style = 'font-size="11" fill="currentColor"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style} text-anchor="{anchor}">{_escaped(text)}</text>'


def _svg(parts: Sequence[str]) -> str:
    box = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg {box} xmlns="http://www.w3.org/2000/svg" style="max-width:100%">{"".join(parts)}</svg>'
