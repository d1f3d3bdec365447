"""How are two commands run again and again, and compared?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from memfit.records.difference import Comparison
    from memfit.records.repeats import RepeatedCommand, RepeatPlan, RepeatProgress
    from memfit.records.run import Settings


class Follower(Protocol):
    """Who is told how far a series of repeats is."""

    def begin(self, plan: RepeatPlan, folder: Path) -> None:
        """Before the first run."""
        ...

    def show(self, progress: RepeatProgress) -> None:
        """While a run goes on, and when it has ended."""
        ...


def repeat_commands(
    first: list[str],
    second: list[str],
    num_repeats: int = 4,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    settings: Settings | None = None,
    follower: Follower | None = None,
) -> Comparison:
    """Run two commands in turn, `num_repeats` times each (A B B A ...), measure every run, and compare the sides.

    >>> repeat_commands(["python", "train.py"], ["python", "train.py", "--batch", "64"])  # doctest: +SKIP
    """
    import os

    from memfit.records.repeats import RepeatedCommand
    from memfit.records.run import settings_for

    settings = settings or settings_for(None)
    sides = [
        RepeatedCommand(command=tuple(command), working_folder=os.getcwd(), settings=settings)
        for command in (first, second)
    ]
    return _repeat(sides[0], sides[1], num_repeats, output, overwrite, follower)


def repeat_runs(
    first: str | Path,
    second: str | Path,
    num_repeats: int = 4,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    stable: bool | None = None,
    follower: Follower | None = None,
) -> Comparison:
    """The same for the commands that two run folders recorded, each in its own working folder and settings."""
    sides = [recorded_command(folder, stable=stable) for folder in (first, second)]
    return _repeat(sides[0], sides[1], num_repeats, output, overwrite, follower)


def recorded_command(folder: str | Path, *, stable: bool | None = None) -> RepeatedCommand:
    """What a run folder says was run; refuses what cannot be run again."""
    import msgspec

    from memfit.errors import UsageError
    from memfit.records.only_text import NO_TEXT
    from memfit.records.repeats import RepeatedCommand
    from memfit.runfolder.reader import read_run

    header = read_run(folder).header
    if header.settings.attached or header.kind != "measured" or not header.command:
        found = "it was attached to" if header.settings.attached else f"{header.kind}, {len(header.command)} words"
        hint = "memfit diff --repeat 4 -- COMMAND A -- COMMAND B"
        raise UsageError(f"the command of {folder} cannot be run again", found=found, hint=hint)
    if any(NO_TEXT in word for word in (*header.command, header.working_folder)):
        found = "bytes that are no text, which a record does not keep"
        hint = "memfit diff --repeat 4 -- COMMAND A -- COMMAND B"
        raise UsageError(f"the command of {folder} cannot be run again", found=found, hint=hint)
    settings = header.settings
    if stable is not None:
        settings = msgspec.structs.replace(settings, stable=stable)
    return RepeatedCommand(command=header.command, working_folder=header.working_folder, settings=settings)


def resume_repeats(folder: str | Path, *, follower: Follower | None = None) -> Comparison:
    """Go on with repeats that were interrupted; complete ones are compared as they are."""
    from memfit.measure.repeats import read_plan

    return _finish(Path(folder), read_plan(Path(folder)), follower)


def _repeat(
    first: RepeatedCommand,
    second: RepeatedCommand,
    num_repeats: int,
    output: str | Path | None,
    overwrite: bool,
    follower: Follower | None,
) -> Comparison:
    from memfit.errors import UsageError
    from memfit.explain.run.repeats import MIN_REPEATS, interleaved
    from memfit.measure.new_run import default_folder
    from memfit.measure.repeats import create_series
    from memfit.records.repeats import RepeatPlan

    if num_repeats < MIN_REPEATS:
        what = f"at least {MIN_REPEATS} runs of each command are needed"
        hint = f"--repeat {MIN_REPEATS}; with fewer, two modes of the allocator look like a difference too often"
        raise UsageError(what, found=str(num_repeats), hint=hint)
    plan = RepeatPlan(first=first, second=second, order=interleaved(num_repeats))
    folder = Path(output) if output is not None else default_folder(["diff", *first.command])
    create_series(folder, plan, overwrite=overwrite)
    return _finish(folder, plan, follower)


def _finish(folder: Path, plan: RepeatPlan, follower: Follower | None) -> Comparison:
    import msgspec

    from memfit.api.measure import compare_runs
    from memfit.measure.repeats import read_series, run_series

    if follower is not None:
        follower.begin(plan, folder)
    run_series(folder, plan, follower.show if follower is not None else None)
    first, second = read_series(folder, plan)
    return msgspec.structs.replace(compare_runs(first, second), order=plan.order)


def repeats_progress(*, quiet: bool = False) -> Follower:
    """Tells the standard error what is run, each run that ended, and the time left."""
    from memfit.show.progress.repeats import RepeatsProgress

    return RepeatsProgress(quiet=quiet)
