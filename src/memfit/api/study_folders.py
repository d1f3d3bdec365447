"""Studies on disk: list them, stop one that runs, end one of its trials."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.api.options import checked_options

if TYPE_CHECKING:
    from memfit.records.study import Study, StudyEntry


@checked_options
def list_studies(folders: Sequence[str | Path] = ()) -> tuple[StudyEntry, ...]:
    """The studies in these folders; by default those in memfit-studies here, and NNI's in ~/nni-experiments.

    >>> [(entry.name, entry.state) for entry in list_studies(["memfit-studies"])]  # doctest: +SKIP
    """
    from memfit.study.listing import list_folders, usual_parents

    return list_folders(folders or usual_parents())


@checked_options
def stop_study(folder: str | Path, *, now: bool = False) -> int:
    """Stop a running study after the trials that run, or, with `now`, at once; returns its process.

    >>> stop_study("memfit-studies/mlp")  # doctest: +SKIP
    """
    from memfit.study.control import stop_coordinator

    _require_study(folder)
    return stop_coordinator(Path(folder), now=now).pid


@checked_options
def end_trial(folder: str | Path, trial: str) -> None:
    """End one trial of a running study, by its number or its id; it counts as cancelled and is not run again.

    >>> end_trial("memfit-studies/mlp", "12")  # doctest: +SKIP
    """
    from memfit.errors import UsageError
    from memfit.study.control import Request, send_request

    study = _require_study(folder)
    running = [each for each in study.trials if not each.is_finished]
    if not any(trial in (each.trial_id, str(each.number)) for each in running):
        found = ", ".join(f"{each.number} ({each.trial_id})" for each in running) or "no trial runs"
        raise UsageError(f"trial {trial} of {folder} does not run", found=found)
    send_request(Path(folder), Request(end_trial=trial))


def _require_study(folder: str | Path) -> Study:
    from memfit.study.folder import read_folder

    return read_folder(folder)


def is_study(folder: str | Path) -> bool:
    """Whether a folder is one that `memfit study` wrote.

    >>> is_study("runs/train-1")
    False
    """
    from memfit.study.folder import WHERE_FILE

    return (Path(folder) / WHERE_FILE).is_file()


def nni_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment in which `import nni` and `nnictl` are memfit's.

    >>> sorted(nni_environment({"PATH": "/usr/bin"}))
    ['MEMFIT_PYTHON', 'PATH', 'PYTHONPATH']
    """
    from memfit.study.trials.files import shim_folder

    shim = shim_folder()
    path = [str(shim / "bin"), base.get("PATH", os.defpath)]
    python_path = [str(shim), *filter(None, [base.get("PYTHONPATH", "")])]
    return {
        "PYTHONPATH": os.pathsep.join(python_path),
        "PATH": os.pathsep.join(path),
        "MEMFIT_PYTHON": sys.executable,
    }
