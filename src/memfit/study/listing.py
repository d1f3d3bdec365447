"""List of the studies below some folders: how far each is, and whether it runs now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from memfit.errors import MemfitError
from memfit.records.study import Study, StudyEntry
from memfit.study.control import coordinator_of
from memfit.study.folder import DEFAULT_PARENT, find, read_folder
from memfit.study.space.space import space_size

NEVER_TWICE = frozenset({"random", "gridsearch", "tpe", "evolution"})
"""Tuners that end when a finite space is used up."""
NNI_HOME = "~/nni-experiments"
"""Where experiments are that were started by `nnictl` or nni.experiment."""


def usual_parents() -> tuple[str, ...]:
    """Where studies are, unless somewhere else was asked for: below this folder, and NNI's place."""
    return (DEFAULT_PARENT, os.environ.get("MEMFIT_NNI_HOME") or os.path.expanduser(NNI_HOME))


def list_folders(parents: Iterable[str | Path]) -> tuple[StudyEntry, ...]:
    """An entry for each study that is one of these folders or right below one, the oldest first."""
    folders = [folder for parent in parents for folder in _studies_of(Path(parent))]
    return tuple(sorted((_entry(folder) for folder in folders), key=lambda entry: entry.created_at))


def _studies_of(parent: Path) -> Iterator[Path]:
    if _is_study(parent):
        yield parent
    elif parent.is_dir():
        yield from (each for each in sorted(parent.iterdir()) if _is_study(each))


def _is_study(folder: Path) -> bool:
    try:
        return find(folder) is not None
    except MemfitError:
        return True  # it is one, and the entry says why it cannot be read


def _entry(folder: Path) -> StudyEntry:
    try:
        study = read_folder(folder)
    except MemfitError as error:
        return StudyEntry(folder=str(folder), study_id="", state="not readable", reason=str(error))
    ended = [trial for trial in study.trials if trial.is_finished and trial.was_run]
    return StudyEntry(
        folder=str(folder),
        study_id=study.study_id,
        name=study.settings.name,
        state=_state(folder, study, len(ended)),
        num_trials=len(ended),
        num_wanted=study.settings.max_trials,
        num_failed=sum(trial.kind in ("failed", "out of memory", "over the limit") for trial in ended),
        created_at=study.created_at,
    )


def _state(folder: Path, study: Study, num_ended: int) -> Literal["running", "done", "stopped"]:
    if coordinator_of(folder) is not None:
        return "running"
    most = study.settings.max_trials
    has_left = any(not trial.is_finished for trial in study.trials)
    is_done = (most is not None and num_ended >= most) or _is_used_up(study)
    return "done" if is_done and not has_left else "stopped"


def _is_used_up(study: Study) -> bool:
    """Whether every point of a finite space was tried, under a tuner that tries none twice."""
    size = space_size(study.settings.space) if study.settings.tuner.name.lower() in NEVER_TWICE else None
    points = {msgspec.json.encode(trial.parameters, order="deterministic") for trial in study.trials}
    return size is not None and study.settings.space.parameters != () and len(points) >= size
