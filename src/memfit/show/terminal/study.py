"""A study in the terminal: how it went, the best and the largest trials, then every trial.

Columns are laid out by hand: ten thousand rows are a listing, and come in a second. No hyperparameter is ever cut: on a
terminal they go on in the next line, and elsewhere a trial is one line however long.

A list of studies in the terminal: folder, state, how many trials.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence

from memfit.records.figure import Figure
from memfit.records.files.only_text import quoted_if_unclear
from memfit.records.study import Study, StudyEntry, StudySettings, TrialRecord
from memfit.show.views.study_ranking import rank_trials
from memfit.show.wording import cut
from memfit.units import format_bytes, format_seconds

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\n")}
"""Parameters and messages are the user's: they must not steer the reader's terminal."""
HEADS = ("#", "outcome", "peak", "average", "background", "time", "per epoch", "metric", "parameters")
_LEFT = {"outcome", "parameters"}
MOST_NOTES = 8
"""Of each kind on a terminal; elsewhere all are listed."""


def study_text(study: Study, *, width: int | None = 80) -> str:
    """The whole study as text for a terminal of this width; None is no terminal, and nothing is shortened."""
    parts = [_title(study, width), _counts(study), *_best(study), "", *_table(study, width), *_notes(study, width)]
    return "\n".join(parts).translate(_CONTROLS).rstrip() + "\n"


def _title(study: Study, width: int | None) -> str:
    settings = study.settings
    what = settings.command or settings.workload
    tuner = settings.tuner.name or settings.tuner.class_name
    return f"{settings.name or study.study_id}: {what if width is None else cut(what, 60)}, tuner {tuner}"


def _counts(study: Study) -> str:
    counts = Counter(trial.kind for trial in study.trials)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) or "no trials yet"


def _best(study: Study) -> list[str]:
    lines = []
    front = front_of(study)
    if study.settings.memory.use == "objective" and front:
        lines.append(f"On the front of metric and memory: trials {', '.join(str(t.number) for t in front)}")
    elif front:
        best = front[0]
        lines.append(f"Best: trial {best.number}, metric {best.metric:.6g}, peak {_bytes(best.peak)}")
    sized = [trial for trial in study.trials if trial.kind == "done" and trial.peak.value is not None]
    if len(sized) > 1:
        sized.sort(key=lambda trial: trial.peak.value or 0)
        ends = [f"{_bytes(trial.peak)} (trial {trial.number})" for trial in (sized[0], sized[-1])]
        lines.append(f"Peak memory: from {ends[0]} to {ends[1]}")
    return lines


def front_of(study: Study) -> list[TrialRecord]:
    """The best trial; with memory as an objective, all that no other trial beats in both."""
    sign = -1.0 if study.settings.goal.direction == "maximize" else 1.0
    done = [trial for trial in study.trials if trial.kind == "done" and trial.metric is not None]
    if study.settings.memory.use != "objective":
        return sorted(done, key=lambda trial: sign * (trial.metric or 0.0))[:1]
    points = [(sign * (t.metric or 0.0), t.peak.value, t) for t in done if t.peak.value is not None]
    points.sort(key=lambda point: point[:2])
    front: list[TrialRecord] = []
    least = float("inf")
    for _, peak_bytes, trial in points:
        if peak_bytes < least:
            least = peak_bytes
            front.append(trial)
    return front


def _table(study: Study, width: int | None) -> list[str]:
    rows = [_row(trial, digits=None if width is None else 6) for trial in study.trials]
    return columns(HEADS, rows, None if width is None else max(width, 80)) if rows else []


def _row(trial: TrialRecord, digits: int | None) -> tuple[str, ...]:
    return (
        str(trial.number),
        trial.kind,
        _bytes(trial.peak),
        _bytes(trial.average),
        _bytes(trial.background),
        _seconds(trial.duration),
        _seconds(trial.epoch_time),
        "-" if trial.metric is None else _value(trial.metric, digits),
        " ".join(f"{name}={_value(value, digits)}" for name, value in trial.flat_parameters.items()),
    )


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Rows under their heads; the last column goes on in further lines where the width ends, and never without one."""
    widths = [max(len(row[index]) for row in (heads, *rows)) for index in range(len(heads) - 1)]
    before = sum(widths) + 2 * len(widths)
    room = None if width is None else max(30, width - before)
    lines = []
    for row in (heads, *rows):
        cells = [
            cell.ljust(size) if head in _LEFT else cell.rjust(size)
            for head, cell, size in zip(heads[:-1], row, widths, strict=False)
        ]
        first, *more = _wrapped(row[-1], room)
        lines.append("  ".join([*cells, first]).rstrip())
        lines += [" " * before + line for line in more]
    return lines


def _wrapped(text: str, room: int | None) -> list[str]:
    """Lines of at most so many letters, broken between words only."""
    if room is None or len(text) <= room:
        return [text]
    return textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]


def _notes(study: Study, width: int | None) -> list[str]:
    """What went wrong, counted; and why trials have no metric."""
    counted = Counter(note for trial in study.trials for note in (*trial.notes, *_range_of_peak(trial)))
    reasons = Counter(t.metric_reason for t in study.trials if t.kind == "done" and t.metric is None)
    failures = Counter(t.outcome.message for t in study.trials if t.kind == "failed")
    lines = [*_counted(reasons + failures, width), *_counted(counted, width)]
    return ["", *lines, *study.settings.notes] if lines or study.settings.notes else []


def _range_of_peak(trial: TrialRecord) -> list[str]:
    """A peak that is the lower end of a range, by more than a fiftieth."""
    peak = trial.peak
    if peak.value is None or peak.low != peak.value or (peak.high is not None and peak.high <= 1.02 * peak.value):
        return []
    return ["the peak is the lower end of a range (memfit export --to json has both ends)"]


def _counted(texts: Counter[str], width: int | None) -> list[str]:
    """Each text with how often it came, the most frequent first; what a terminal does not get is counted."""
    most = None if width is None else MOST_NOTES
    lines = [f"{count} x {text}" for text, count in texts.most_common(most)]
    hidden = len(texts) - len(lines)
    return (
        [*lines, f"and {hidden} more of this kind; send the output to a file or a pipe to see all"] if hidden else lines
    )


def _bytes(figure: Figure) -> str:
    return "-" if figure.value is None else format_bytes(figure.value)


def _seconds(figure: Figure) -> str:
    return "-" if figure.value is None else format_seconds(figure.value)


def _value(value: object, digits: int | None) -> str:
    """A value in so many digits, or in all it has; a text that could be taken for another value in quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if " " in value else quoted_if_unclear(value)
    if not isinstance(value, float):
        return str(value)
    return repr(value) if digits is None else f"{value:.{digits}g}"


def best_first(trials: Sequence[TrialRecord], settings: StudySettings) -> list[TrialRecord]:
    """The trials with a metric, best first."""
    study = Study(study_id="", settings=settings, trials=tuple(trials))
    return list(rank_trials(study, "metric").ranked)


_HEADS = ("study", "state", "trials", "failed", "created", "id", "folder")


def study_list_text(entries: Sequence[StudyEntry]) -> str:
    """One line per study; nothing is cut."""
    if not entries:
        return "no studies here: memfit study list FOLDER looks elsewhere\n"
    rows = [_HEADS, *(_cells(entry) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _cells(entry: StudyEntry) -> tuple[str, ...]:
    if entry.state == "not readable":
        return (entry.name or "?", entry.state, "?", "?", "", "", f"{entry.folder}: {entry.reason}")
    trials = str(entry.num_trials) if entry.num_wanted is None else f"{entry.num_trials} of {entry.num_wanted}"
    created = entry.created_at[:16].replace("T", " ")
    return (entry.name, entry.state, trials, str(entry.num_failed), created, entry.study_id, entry.folder)
