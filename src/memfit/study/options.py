"""Options of a study: one record from the command line to the session that obeys it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from memfit.errors import UsageError
from memfit.records.study import Direction


class StudyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a study differs from its file, and how this session runs it. Names are those of `memfit.run_study`."""

    space: str | None = None
    """A search-space file of NNI; then the words are a command or a workload."""
    tuner: str | None = None
    trials: int | None = None
    """Trials to start; None here and below is: as the file, or the default, says."""
    concurrency: int | None = None
    limit_bytes: int | None = None
    """Memory that a trial may take."""
    memory_objective: bool = False
    """Memory is an objective beside the metric."""
    metric: str | None = None
    """The key to optimise, where trials report dicts."""
    direction: Direction | None = None
    seed: int | None = None
    max_seconds: float | None = None
    """Start no trial after this long."""
    max_trial_seconds: float | None = None
    """End a trial that takes longer."""
    fixed: tuple[str, ...] = ()
    """Settings of a workload, 'NAME=VALUE'."""
    steps: int | None = None
    """The most optimizer steps of a workload's trials."""
    name: str | None = None
    output: str | None = None
    """The folder of the study; None for memfit-studies/NAME."""
    study_id: str = ""
    """The id of a new study; empty for a random one."""
    overwrite: bool = False
    """Remove a study that is there."""
    storage: str = ""
    """'postgresql://...' in place of a file."""
    on: str = ""
    """'slurm', 'pbs' or 'lsf': trials run in jobs of that batch system; or the address of a Dask scheduler."""
    partition: str = ""
    account: str = ""
    gpus: int | None = None
    """GPUs of each job."""
    cpus: int | None = None
    job_memory_bytes: int | None = None
    job_seconds: float | None = None
    """How long a job may run."""
    interface: str = ""
    """The network interface that jobs reach the coordinator's machine by."""
    job_options: tuple[str, ...] = ()
    """Lines for the batch system, as they are."""
    env: tuple[str, ...] = ()
    """Variables that every trial gets: 'NAME' with the value it has here, or 'NAME=VALUE'."""
    profile: bool = False
    """Keep a torch.profiler trace of each trial."""
    predict: bool = True
    """Reject points that are predicted not to fit."""


OF_A_JOB = {
    "partition": "--partition", "account": "--account", "gpus": "--gpus", "cpus": "--cpus",
    "job_memory_bytes": "--job-memory", "job_seconds": "--job-time", "interface": "--interface",
    "job_options": "--job-option",
}  # fmt: skip
"""What describes a job of a batch system, and its name on the command line."""
OF_THE_SESSION = ("output", "study_id", "overwrite", "storage", "on", *OF_A_JOB, "env", "profile", "predict")
"""Options that are no part of the study: the next session may choose others."""
EXTENT = ("trials", "concurrency")
"""What may change when a study goes on."""


def refuse_changes(options: StudyOptions) -> None:
    """A study that goes on has its settings, and is not removed; only how long and how wide it runs may change."""
    kept = [name for name in (*OF_THE_SESSION, *EXTENT) if name != "overwrite"]
    given = _changes(options, kept)
    if given:
        hint = "only trials and concurrency (--trials, --concurrency) may change; start another study in another folder"
        raise UsageError("a study goes on with the settings it has", found=", ".join(given), hint=hint)


def refuse_settings(options: StudyOptions) -> None:
    """Whole settings were given: an option that would change them is refused."""
    given = _changes(options, kept=OF_THE_SESSION)
    if given:
        found = ", ".join(given)
        raise UsageError("these options are part of the settings", found=found, hint="change the StudySettings")


def _changes(options: StudyOptions, kept: Sequence[str]) -> list[str]:
    return [name for name in options.__struct_fields__ if name not in kept and getattr(options, name)]


def refuse_job_options(options: StudyOptions) -> None:
    """What describes a job has no effect where no batch system starts any."""
    given = [flag for name, flag in OF_A_JOB.items() if getattr(options, name)]
    if given:
        found = ", ".join(given) + (f" with --on {options.on}" if options.on else " without --on")
        hint = "--on slurm; --limit ends a trial that takes too much memory, --trial-time one that takes too long"
        raise UsageError("these options describe the jobs of a batch system", found=found, hint=hint)


def environment_of(options: StudyOptions, base: Mapping[str, str], earlier: Sequence[str] = ()) -> dict[str, str]:
    """The variables that every trial gets, with their values; `earlier` names those of earlier sessions, which are
    taken as if they were named again."""
    found: dict[str, str] = {}
    given = {entry.partition("=")[0] for entry in options.env}
    for name in (name for name in earlier if name not in given):
        if name not in base:
            hint = f"set it here, or give it with --env {name}=VALUE (--env {name}= leaves it empty)"
            raise UsageError(
                "an earlier session gave the trials a variable that is not set here", found=name, hint=hint
            )
        found[name] = base[name]
    for entry in options.env:
        name, is_given, value = entry.partition("=")
        if not name or (not is_given and name not in base):
            hint = f"{name or 'NAME'}=VALUE gives it a value"
            raise UsageError("--env names a variable that is not set here", found=entry, hint=hint)
        found[name] = value if is_given else base[name]
    return found
