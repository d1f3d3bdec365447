"""A list of studies in the terminal: folder, state, how many trials."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.records.study import StudyEntry

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
