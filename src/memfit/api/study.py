"""How is a study run, read, drawn and explained?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.records.study import Study, StudySettings
    from memfit.records.study_findings import StudyFindings


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One session of a study: what is known now, and why it ended."""

    study: Study
    why_stopped: str
    was_interrupted: bool = False


def find_study(target: str) -> Study:
    """A published table by its name ('paper-mnist'), a study's folder, or its record in a JSON file."""
    from memfit.study.json_file import read_study_json
    from memfit.study.published import find_published

    if Path(target).is_dir():
        return read_study(target)
    return find_published(target) or read_study_json(target)


def explain_study(study: Study, *, quantity: str | None = None) -> StudyFindings:
    """What drives memory in a study, and what the data cannot tell; `quantity` is 'peak' or 'average'."""
    from memfit.explain.study.explain import explain_study as explain

    return explain(study, quantity)


def print_study_findings(findings: StudyFindings, *, as_json: bool = False) -> None:
    """Write what was found in a study to the standard output."""
    from memfit.show.as_json import to_json
    from memfit.show.paper import write_json, write_text
    from memfit.show.terminal.findings import findings_text

    if as_json:
        write_json(to_json(findings))
    else:
        write_text(lambda width, color: findings_text(findings, width=width, color=color))


def run_study(
    target: str | Path | StudySettings | Sequence[str] | None = None,
    *,
    output: str | Path | None = None,
    storage: str = "",
    on: str = "",
    overwrite: bool = False,
    profile: bool = False,
    predict: bool = True,
    quiet: bool = True,
    **request: Any,
) -> StudyRun:
    """Run a study, or go on with the one in `output`: a file, settings, a published table, or words with `space=FILE`.

    Further options, as on the command line: space, tuner, trials, concurrency, limit_bytes, memory_objective, metric,
    direction, seed, max_seconds, max_trial_seconds, fixed, steps, num_random, replicates, name.
    """
    from memfit.records.study import StudySettings
    from memfit.show.progress.study import StudyProgress
    from memfit.study.coordinator import RunOptions
    from memfit.study.request import Request, require_an_end, settings_of
    from memfit.study.session import open_session

    progress = StudyProgress(quiet=quiet)
    settings = target if isinstance(target, StudySettings) or target is None else None
    if target is not None and settings is None:
        words = (str(target),) if isinstance(target, (str, Path)) else tuple(target)  # pyright: ignore[reportArgumentType]
        settings = require_an_end(settings_of(Request(words=words, **request)))
    more = {name: request.get(name) for name in ("trials", "concurrency")} if target is None else {}
    session = open_session(
        settings,
        output,
        progress,
        storage=storage,
        overwrite=overwrite,
        max_trials=more.get("trials"),
        concurrency=more.get("concurrency"),
    )
    try:
        options = RunOptions(profile=profile, predict=predict, live=progress.has_line)
        study = session.run(progress, options, cluster=on)
    finally:
        progress.close()
        session.close()
    return StudyRun(study=study, why_stopped=session.why_stopped, was_interrupted=session.was_interrupted)


def read_study(folder: str | Path, *, storage: str = "") -> Study:
    """Read the study in a folder that `memfit study` wrote, whether it runs or not."""
    from memfit.study.folder import read_folder

    return read_folder(folder, storage)


def print_study(study: Study, *, as_json: bool = False) -> None:
    """Write a study to the standard output; a re-run of published trials stands beside them."""
    from memfit.show.paper import write_json, write_text
    from memfit.show.terminal.study import rerun_text, study_text
    from memfit.study.published_rerun import published_name

    if as_json:
        from memfit.show.as_json import to_json

        write_json(to_json(study))
        return
    write_text(lambda width, color: study_text(study, width=max(width, 120)))
    if published_name(study):
        from memfit.study.published_comparison import compare_with_published

        rerun = compare_with_published(study)
        write_text(lambda width, color: "\n" + rerun_text(rerun, width=max(width, 120)))


def draw_study(study: Study, folder: str | Path | None = None) -> tuple[Path, ...]:
    """Draw memory against each hyperparameter, and parallel coordinates, into a folder (the study's own)."""
    from memfit.show.figures.study import draw_study as draw

    return draw(study, folder if folder is not None else study.folder)
