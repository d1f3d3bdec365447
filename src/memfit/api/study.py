"""Studies: run many measured trials, read a study, explain what drives its memory, and draw it.

Studies on disk: list them, stop one that runs, end one of its trials.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.study import Direction, Standing, Study, StudyEntry, StudySettings, TrialRecord
    from memfit.records.study_findings import StudiesFindings, StudyFindings
    from memfit.study.options import StudyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One session of a study: what is known now, and why it ended."""

    study: Study
    why_stopped: str
    was_interrupted: bool = False
    has_failed: bool = False
    """Whether its tuner failed, or its first trials all did alike, so that it was ended before its time."""
    notes: tuple[str, ...] = ()
    """Notes for a person that were not shown while it ran."""


class StudyFollower(Protocol):
    """Receives the progress of a study."""

    has_line: bool
    """Whether `tick` shows anything; then the memory of running trials is sampled for it."""

    def ended(self, trial: TrialRecord, standing: Standing) -> None:
        """A trial has ended."""
        ...

    def note(self, sentence: str) -> None:
        """Something a person should know."""
        ...

    def tick(self, standing: Standing) -> None:
        """A few times a second."""
        ...


@checked_options
def run_study(
    target: str | Path | StudySettings | Sequence[str] | None = None,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    study_id: str = "",
    space: str | Path | None = None,
    tuner: str | None = None,
    trials: int | None = None,
    concurrency: int | None = None,
    limit_bytes: int | None = None,
    memory_objective: bool = False,
    metric: str | None = None,
    direction: Direction | None = None,
    seed: int | None = None,
    max_seconds: float | None = None,
    max_trial_seconds: float | None = None,
    fixed: Sequence[str] = (),
    steps: int | None = None,
    name: str | None = None,
    storage: str = "",
    on: str = "",
    partition: str = "",
    account: str = "",
    gpus: int | None = None,
    cpus: int | None = None,
    job_memory_bytes: int | None = None,
    job_seconds: float | None = None,
    interface: str = "",
    job_options: Sequence[str] = (),
    env: Sequence[str] = (),
    profile: bool = False,
    predict: bool = True,
    progress: StudyFollower | None = None,
) -> StudyRun:
    """Run a study, or go on with the one in `output`; every trial is a process of its own whose memory is measured.

    `target` is a file (memfit's own, or a config of NNI), settings, or with `space` (a search-space file) a workload or
    the words of a command. None goes on with the study in `output`; then only `trials` and `concurrency` may change.

    output, overwrite    the folder of the study, and whether one that is there is removed first
    study_id             the id of a new study [a random one]
    tuner                'Random', 'GridSearch', 'TPE', 'Evolution', 'Hyperband', ...
    trials, concurrency  how many trials, and how many at a time
    limit_bytes          memory a trial may take; memory_objective makes memory an objective beside the metric
    metric, direction    the key to optimise when trials report dicts, and 'minimize' or 'maximize'
    max_seconds          start no trial after this long; max_trial_seconds ends a trial that takes longer
    fixed, steps         settings 'NAME=VALUE' of a workload, and the most optimizer steps of its trials
    storage              'postgresql://...' in place of a file
    on                   'slurm', 'pbs' or 'lsf' runs trials in jobs of that batch system; or a Dask scheduler's address
    partition, account, gpus, cpus, job_memory_bytes, job_seconds, interface, job_options   what each job asks for
    env                  variables that every trial gets: 'NAME' as it is here, or 'NAME=VALUE'
    profile, predict     keep a torch.profiler trace of each trial; reject points that are predicted not to fit
    progress             receives how it goes; nothing is printed without it

    >>> found = run_study("mlp", space="space.json", trials=20, limit_bytes=2 * 2**30)  # doctest: +SKIP
    >>> [trial.peak.value for trial in found.study.trials]  # doctest: +SKIP
    """
    from memfit.study.options import StudyOptions

    options = StudyOptions(
        space=None if space is None else str(space), tuner=tuner, trials=trials, concurrency=concurrency,
        limit_bytes=limit_bytes, memory_objective=memory_objective, metric=metric, direction=direction, seed=seed,
        max_seconds=max_seconds, max_trial_seconds=max_trial_seconds, fixed=tuple(fixed), steps=steps, name=name,
        output=None if output is None else str(output), overwrite=overwrite, study_id=study_id, storage=storage,
        on=on, partition=partition, account=account, gpus=gpus, cpus=cpus, job_memory_bytes=job_memory_bytes,
        job_seconds=job_seconds, interface=interface, job_options=tuple(job_options), env=tuple(env),
        profile=profile, predict=predict,
    )  # fmt: skip
    return _run_session(_settings_of(target, options), options, progress)


def _run_session(settings: StudySettings | None, options: StudyOptions, progress: StudyFollower | None) -> StudyRun:
    from memfit.study.session import SilentStudy, open_session

    unheard = SilentStudy()
    watcher = progress or unheard
    session = open_session(settings, options, watcher)
    try:
        study = session.run(watcher, options)
    finally:
        session.close()
    return StudyRun(
        study=study,
        why_stopped=session.why_stopped,
        was_interrupted=session.was_interrupted,
        has_failed=session.has_failed,
        notes=tuple(unheard.notes),
    )


def _settings_of(
    target: str | Path | StudySettings | Sequence[str] | None, options: StudyOptions
) -> StudySettings | None:
    """The settings that are meant; None goes on with a study as it is stored. An option without effect is refused."""
    from memfit.errors import UsageError
    from memfit.records.study import StudySettings
    from memfit.reproduce.hyperparameters.published_tables import find_published
    from memfit.study.options import refuse_changes, refuse_settings
    from memfit.study.request import require_an_end, settings_of

    if target is None:
        refuse_changes(options)
        return None
    if isinstance(target, StudySettings):
        refuse_settings(options)
        return target
    words = (str(target),) if isinstance(target, (str, Path)) else tuple(target)
    if len(words) == 1 and options.space is None and find_published(words[0]) is not None:
        data = words[0].removeprefix("paper-")
        raise UsageError(f"the published trials {words[0]} are run by `memfit reproduce hyperparameters --data {data}`")
    return require_an_end(settings_of(words, options))


@checked_options
def read_study(folder: str | Path, *, storage: str = "") -> Study:
    """Read the study in a folder that `memfit study` wrote, whether it runs or not.

    >>> study = read_study("memfit-studies/mlp")  # doctest: +SKIP
    >>> max(trial.peak.value for trial in study.trials if trial.peak.value)  # doctest: +SKIP
    """
    from memfit.study.folder import read_folder

    return read_folder(folder, storage)


def find_study(target: str) -> Study:
    """A study's folder, its record in a JSON file, or a published table by its name ('paper-mnist')."""
    from memfit.reproduce.hyperparameters.published_tables import find_published
    from memfit.study.json_file import read_study_json

    if Path(target).is_dir():
        return read_study(target)
    return find_published(target) or read_study_json(target)


@checked_options
def explain_study(study: Study, *, quantity: Literal["peak", "average"] | None = None) -> StudyFindings:
    """What drives memory in a study, and what its trials cannot tell; by default of the quantity most trials have.

    >>> findings = explain_study(read_study("memfit-studies/mlp"))  # doctest: +SKIP
    >>> [finding.sentence for finding in findings.findings if finding.verdict == "found"]  # doctest: +SKIP
    """
    from memfit.explain.study.explain import explain_study as explain

    return explain(study, quantity)


@checked_options
def explain_studies(studies: Sequence[Study], *, quantity: Literal["peak", "average"] | None = None) -> StudiesFindings:
    """Explain studies side by side, and what differs between them when hyperparameters are held fixed.

    >>> found = explain_studies([find_study("paper-mnist"), find_study("paper-cifar-10")])
    >>> [findings.num_trials for findings in found.studies]
    [11, 5]
    """
    from memfit.explain.study.several_studies import explain_studies as explain

    return explain(studies, quantity)


@checked_options
def draw_study(study: Study, folder: str | Path | None = None, *, trials: Sequence[int] = ()) -> tuple[Path, ...]:
    """Draw a study into a folder (its own); returns the pictures that there was something to draw for.

    memory.png           peak memory against each hyperparameter
    parallel.png         parallel coordinates of the best 100, 20, 5 and 1 %, ranked and coloured by metric
    parallel_memory.png  the same by peak memory, the least first
    intermediate.png     intermediate results of all trials, and of those whose numbers are in `trials` (the best)
    size.png             memory against the number of parameters, with the law that `explain` finds

    >>> draw_study(read_study("memfit-studies/mlp"))[0]  # doctest: +SKIP
    PosixPath('memfit-studies/mlp/memory.png')
    """
    from memfit.explain.study.law import memory_law
    from memfit.show.figures.study import draw_study as draw

    return draw(study, folder if folder is not None else study.folder, law=memory_law(study), trials=trials)


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
