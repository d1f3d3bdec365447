"""Report of a folder: the page of `memfit serve` as one file that works offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memfit.api.report import view_run
from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.study import Study
    from memfit.show.page.documents.document import Document

MOST_TRIAL_RUNS = 12
"""Runs of the best trials of a study that its report holds."""
MOST_DOCUMENTS = 40


@checked_options
def report_folder(folder: str | Path, output: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page of `memfit serve` over a folder (or one record) as one file that works offline.

    Of more than 40 records the newest are in it and the others are counted, of a study the runs of its best trials.

    >>> report_folder("memfit-studies/mlp", "page.html")  # doctest: +SKIP
    PosixPath('page.html')
    """
    from memfit.api.shared.open_records import report_openers
    from memfit.errors import MemfitError, NotARun
    from memfit.serve.catalogue import find_records
    from memfit.show.new_file import check_new, write_bytes
    from memfit.show.page.app import app_html
    from memfit.show.page.documents.document import Document, Listed

    root, target = Path(folder), check_new(output, overwrite=overwrite)
    openers, documents, listed = report_openers(), dict[str, Document](), list[Listed]()
    extras: dict[str, object] = {}
    entries = find_records(root).entries
    if not entries:
        found = "no run, study, prediction, plan, pipeline, grid or snapshot"
        hint = f"memfit measure -o {root}/run -- python train.py writes a run"
        raise NotARun(f"{root} holds no record", found=found, hint=hint)
    for entry in entries[:MOST_DOCUMENTS]:
        try:
            opened = openers[entry.kind](entry.path, root)
        except MemfitError as error:
            if len(entries) == 1:
                raise
            listed.append(Listed(id=entry.id, kind="unreadable", title=entry.id, facts=(str(error),)))
            continue
        documents[entry.id] = opened.document
        listed.append(
            Listed(id=entry.id, kind=entry.kind, title=opened.document.title, changed_at=entry.changed_at)
        )  # fmt: skip
        if opened.study is not None:
            extras |= _trial_answers(opened.study, entry.path, entry.id, documents)
    title = next(iter(documents.values())).title if len(documents) == 1 else root.resolve().name
    num_left_out = max(0, len(entries) - MOST_DOCUMENTS)
    page = app_html(listed, documents, title=title, extras=extras, num_left_out=num_left_out)
    return write_bytes(target, page.encode("utf-8", "replace"))


def _trial_answers(study: Study, path: Path, name: str, documents: dict[str, Document]) -> dict[str, object]:
    """Facts and runs of the trials that a reader is most likely to follow: the best and the smallest."""
    from memfit.errors import MemfitError
    from memfit.runfolder.reader import read_run
    from memfit.serve.catalogue import resolve
    from memfit.show.page.documents.run import run_document
    from memfit.show.page.documents.study import trial_facts
    from memfit.show.terminal.study import best_first, front_of

    answers: dict[str, object] = {}
    sized = sorted((t for t in study.trials if t.peak.value is not None), key=lambda trial: trial.peak.value or 0.0)
    likely = [*front_of(study), *best_first(study.trials, study.settings)[:MOST_TRIAL_RUNS], *sized[:4], *sized[-4:]]
    for trial in {trial.number: trial for trial in likely[:MOST_TRIAL_RUNS]}.values():
        run = f"{name}/{trial.run_folder}" if name != "." else trial.run_folder
        facts = trial_facts(trial) | {"run": None}
        if path.is_dir() and trial.run_folder and (path / trial.run_folder).is_dir():
            try:
                record = read_run(resolve(path, trial.run_folder))  # one that leads out of the study is not read
                documents[run] = run_document(record, view_run(record))
                facts["run"] = run
            except MemfitError as error:
                facts["notes"] = [*trial.notes, str(error)]
        answers[f"trial?id={name}&number={trial.number}"] = facts
    return answers
