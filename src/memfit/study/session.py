"""Session of a study: opened, run, and closed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path

import msgspec

from memfit.errors import MissingExtra, StorageError, UsageError
from memfit.records.study import GpuWish, Standing, Study, StudySettings
from memfit.study import folder as study_folder
from memfit.study.control import announce, take_requests, withdraw
from memfit.study.coordinator import Coordinator, StudyWatcher, extent_of
from memfit.study.json_file import write_study_json
from memfit.study.options import StudyOptions, environment_of, refuse_job_options
from memfit.study.storage.interface import DATABASE_FILE, study_of
from memfit.study.storage.write_ahead import StudyLog
from memfit.study.trials.cluster.cluster_jobs import (
    BATCH_SYSTEMS,
    JobWish,
    hold_jobs,
    last_line,
    release_jobs,
    require_submit_command,
)
from memfit.study.trials.gpus import GpuPool, make_pool, notes_on_sharing
from memfit.study.trials.runner import LocalRunner, Runner

STUDY_JSON = "study.json"


class Session:
    """A study that is open for running: no other session runs it meanwhile."""

    def __init__(self, folder: Path, log: StudyLog, settings: StudySettings, *, is_new: bool) -> None:
        self.folder = folder
        self.log = log
        self.settings = settings
        self.is_new = is_new
        self.why_stopped = ""
        self.was_interrupted = False
        self.has_failed = False

    def run(self, watcher: StudyWatcher, options: StudyOptions) -> Study:
        """Run until nothing is left to do, and leave the whole study in study.json as well."""
        where = study_folder.find(self.folder)
        environment = environment_of(options, os.environ, where.variables if where is not None else ())
        study_folder.remember_variables(self.folder, environment)
        runner = self._runner(options)
        # On a cluster a worker has its own GPU, and the scheduler counts them.
        gpus = GpuPool(GpuWish(), ()) if options.on else make_pool(self.settings.gpus)
        for sentence in notes_on_sharing(gpus, str(self.folder.absolute())):
            watcher.note(sentence)
        coordinator = Coordinator(self.settings, self.folder, self.log, runner, gpus, watcher, options, environment)
        take_requests(self.folder)  # of an earlier session, whom they were meant for
        announce(self.folder, options.on)
        try:
            coordinator.run()
        finally:
            withdraw(self.folder)
            self.why_stopped, self.was_interrupted = coordinator.why_stopped, coordinator.was_interrupted
            self.has_failed = coordinator.has_failed
            runner.close()
            if options.on in BATCH_SYSTEMS:
                release_jobs(self.folder)
        study = self.read()
        write_study_json(study, self.folder / STUDY_JSON)
        return study

    def _runner(self, options: StudyOptions) -> Runner:
        if not options.on:
            return LocalRunner(self.settings.concurrency)
        from memfit.study.trials.cluster.distributed_runner import DaskRunner, connect

        if options.on not in BATCH_SYSTEMS:
            return DaskRunner(connect(options.on), self.settings, self.log.tell)
        holder = hold_jobs(self.folder, job_wish(options, self.settings), self.log.tell)
        try:
            client = connect(holder.address)
            return DaskRunner(client, self.settings, self.log.tell, lambda: last_line(self.folder))
        except BaseException:
            release_jobs(self.folder)
            raise

    def read(self) -> Study:
        """The study as it stands."""
        return study_of(self.log.study_id, self.log.facts, str(self.folder))

    def close(self) -> None:
        self.log.storage.close()


def open_session(settings: StudySettings | None, options: StudyOptions, watcher: StudyWatcher) -> Session:
    """Begin a study, or go on with the one in the folder; `settings` None means: as it is stored."""
    path = _folder_of(settings, options)
    _refuse_what_cannot_run(options, is_new=options.overwrite or study_folder.find(path) is None)
    if options.overwrite:
        study_folder.remove(path)
    where = study_folder.find(path)
    is_new = where is None
    if where is None:
        if settings is None:
            raise UsageError(f"{path} is not a study", hint="give the folder that `memfit study` wrote")
        where = study_folder.create(path, options.storage, options.study_id)
    log = StudyLog(study_folder.storage_of(path, where, options.storage), where.study_id, path, watcher.note)
    try:
        _hold(log, path)
        if settings is None:
            settings = _extended(log, _go_on(log, None, path), options)
        else:
            settings = _begin(log, settings) if is_new else _go_on(log, settings, path)
    except BaseException:
        log.storage.close()
        raise
    return Session(path, log, settings, is_new=is_new)


def _refuse_what_cannot_run(options: StudyOptions, *, is_new: bool) -> None:
    """Before a folder is made, or the study in it removed."""
    environment_of(options, os.environ)
    if options.on not in BATCH_SYSTEMS:
        refuse_job_options(options)
    elif is_new:  # otherwise jobs of an earlier session may still be there
        require_submit_command(options.on)
    if options.on:
        _require_distributed()


def _folder_of(settings: StudySettings | None, options: StudyOptions) -> Path:
    if options.output is not None:
        return Path(options.output)
    if settings is None:
        raise UsageError("there is nothing to run", hint="memfit study FILE, or memfit study resume FOLDER")
    return study_folder.default_folder(settings)


def job_wish(options: StudyOptions, settings: StudySettings) -> JobWish:
    """The jobs that a study asks a batch system for: one for each trial that may run at a time."""
    return JobWish(
        system=options.on,  # pyright: ignore[reportArgumentType]
        num_jobs=settings.concurrency,
        partition=options.partition,
        account=options.account,
        num_gpus=(settings.gpus.num_gpus or 0) if options.gpus is None else options.gpus,
        num_cpus=options.cpus or 1,
        memory_bytes=options.job_memory_bytes,
        seconds=options.job_seconds,
        interface=options.interface,
        options=options.job_options,
    )


def _require_distributed() -> None:
    if importlib.util.find_spec("distributed") is None:
        raise MissingExtra("a cluster needs dask.distributed", hint="pip install 'memfit[cluster]'")


def _hold(log: StudyLog, path: Path) -> None:
    if not log.storage.hold(log.study_id):
        raise UsageError(f"the study in {path} is running already", hint=f"memfit study show {path}")


def _begin(log: StudyLog, settings: StudySettings) -> StudySettings:
    log.begin(settings)
    return settings


def _go_on(log: StudyLog, asked: StudySettings | None, path: Path) -> StudySettings:
    """The stored settings, with what a new session may change of them."""
    if asked is not None and not (path / "trials").exists() and not (path / DATABASE_FILE).exists():
        facts = []  # the first session may have ended before it could store anything
        with contextlib.suppress(StorageError):
            facts = log.open()
        if not facts:
            return _begin(log, asked)
    facts = log.open()
    stored = study_of(log.study_id, facts).settings
    if asked is None:
        return stored
    study_folder.check_same(stored, asked, path)
    return _stored_extent(log, stored, extent_of(asked).applied(stored))


def _extended(log: StudyLog, settings: StudySettings, options: StudyOptions) -> StudySettings:
    """The stored settings, with as many trials and as wide as this session asks for."""
    wanted = msgspec.structs.replace(
        settings,
        max_trials=settings.max_trials if options.trials is None else options.trials,
        concurrency=settings.concurrency if options.concurrency is None else options.concurrency,
    )
    return _stored_extent(log, settings, wanted)


def _stored_extent(log: StudyLog, stored: StudySettings, wanted: StudySettings) -> StudySettings:
    if extent_of(stored) != extent_of(wanted):
        log.add(f"x{len(log.facts)}", "settings", extent_of(wanted))
    return wanted


class SilentStudy:
    """A watcher that keeps the notes and says nothing."""

    has_line = False

    def __init__(self) -> None:
        self.notes: list[str] = []

    def ended(self, trial: object, standing: Standing) -> None: ...
    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def tick(self, standing: Standing) -> None: ...
