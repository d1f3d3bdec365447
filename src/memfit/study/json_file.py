"""A whole study in one JSON file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from memfit.errors import DamagedRecord, NewerFormat, NotARun
from memfit.records.study import STUDY_FORMAT, STUDY_VERSION, Study
from memfit.regular_file import describe_error, read_regular

_NO_TRIALS = b'"trials": []'
STUDY_BYTES = 1024**3
"""A study of many thousand trials, each with its reports."""


def read_study_json(path: str | Path) -> Study:
    """The study in a JSON file."""
    try:
        content = read_regular(path, most_bytes=STUDY_BYTES)
    except OSError as error:
        hint = "give a study's folder or JSON file, or a published table such as paper-mnist"
        raise NotARun(f"{path} is no study", found=describe_error(error), hint=hint) from None
    try:
        study = msgspec.json.decode(content, type=Study)
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(f"{path} is no study's record", found=str(error)) from None
    settings = study.settings
    if settings.format != STUDY_FORMAT or settings.format_version > STUDY_VERSION:
        found = f"{settings.format} version {settings.format_version}"
        raise NewerFormat(f"{path} cannot be read", found=found, hint="a newer memfit")
    return study


def write_study_json(study: Study, path: str | Path) -> None:
    """Write a study to a JSON file, trial by trial: a hundred thousand of them are not in memory as text."""
    empty = msgspec.structs.replace(study, trials=())
    before, mark, after = msgspec.json.format(msgspec.json.encode(empty), indent=1).rpartition(_NO_TRIALS)
    with open(path, "wb") as file:
        if not study.trials:
            file.write(before + mark + after)
            return
        file.write(before + _NO_TRIALS[:-1])
        for index, trial in enumerate(study.trials):
            text = msgspec.json.format(msgspec.json.encode(trial), indent=1)
            file.write((b",\n  " if index else b"\n  ") + text.replace(b"\n", b"\n  "))
        file.write(b"\n ]" + after)
