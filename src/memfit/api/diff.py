"""Differences: two runs or two groups of repeats compared, and two commands run again and again to compare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from memfit.api.measure import ExplainedRun, explain_run
from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.difference import Comparison, RepeatedCommand, RepeatPlan, RepeatProgress
    from memfit.records.run import RunRecord, Settings


class RepeatsFollower(Protocol):
    """Receives the progress of a series of repeats."""

    def begin(self, plan: RepeatPlan, folder: Path) -> None:
        """Before the first run."""
        ...

    def show(self, progress: RepeatProgress) -> None:
        """While a run goes on, and when it has ended."""
        ...


@checked_options
def diff_runs(
    first: RunRecord | ExplainedRun | Sequence[RunRecord | ExplainedRun],
    second: RunRecord | ExplainedRun | Sequence[RunRecord | ExplainedRun],
) -> Comparison:
    """Compare two runs, or two groups of repeats, and say which differences are larger than the noise.

    >>> comparison = diff_runs(memfit.read_run("runs/before"), memfit.read_run("runs/after"))  # doctest: +SKIP
    >>> [(row.name, row.verdict) for row in comparison.differences]  # doctest: +SKIP
    """
    from memfit.explain.run.difference import Subject, compare_groups

    def subjects(side: RunRecord | ExplainedRun | Sequence[RunRecord | ExplainedRun]) -> list[Subject]:
        runs = [explain_run(run) for run in (side if isinstance(side, Sequence) else [side])]
        return [Subject(run=run.record, ledgers=run.ledgers) for run in runs]

    return compare_groups(subjects(first), subjects(second))


@checked_options
def repeat_commands(
    first: Sequence[str],
    second: Sequence[str],
    num_repeats: int = 4,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    settings: Settings | None = None,
    progress: RepeatsFollower | None = None,
) -> Comparison:
    """Run two commands in turn, `num_repeats` times each (A B B A ...), measure every run, and compare the sides.

    >>> repeat_commands(["python", "train.py"], ["python", "train.py", "--batch", "64"])  # doctest: +SKIP
    """
    import os

    from memfit.records.difference import RepeatedCommand
    from memfit.records.run import settings_for

    settings = settings or settings_for(None)
    sides = [
        RepeatedCommand(command=tuple(command), working_folder=os.getcwd(), settings=settings)
        for command in (first, second)
    ]
    return _repeat(sides[0], sides[1], num_repeats, output, overwrite, progress)


@checked_options
def repeat_runs(
    first: str | Path,
    second: str | Path,
    num_repeats: int = 4,
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    stable: bool | None = None,
    progress: RepeatsFollower | None = None,
) -> Comparison:
    """The same for the commands that two run folders recorded, each in its own working folder and settings."""
    sides = [recorded_command(folder, stable=stable) for folder in (first, second)]
    return _repeat(sides[0], sides[1], num_repeats, output, overwrite, progress)


def recorded_command(folder: str | Path, *, stable: bool | None = None) -> RepeatedCommand:
    """What a run folder says was run; refuses what cannot be run again."""
    import msgspec

    from memfit.errors import UsageError
    from memfit.records.difference import RepeatedCommand
    from memfit.records.files.only_text import NO_TEXT
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


@checked_options
def resume_repeats(folder: str | Path, *, progress: RepeatsFollower | None = None) -> Comparison:
    """Go on with repeats that were interrupted; complete ones are compared as they are."""
    from memfit.measure.repeats import read_plan

    return _finish(Path(folder), read_plan(Path(folder)), progress)


def _repeat(
    first: RepeatedCommand,
    second: RepeatedCommand,
    num_repeats: int,
    output: str | Path | None,
    overwrite: bool,
    progress: RepeatsFollower | None,
) -> Comparison:
    from memfit.errors import UsageError
    from memfit.explain.run.repeats import MIN_REPEATS, interleaved
    from memfit.measure.new_run import default_folder
    from memfit.measure.repeats import create_series
    from memfit.records.difference import RepeatPlan

    if num_repeats < MIN_REPEATS:
        what = f"at least {MIN_REPEATS} runs of each command are needed"
        hint = f"--repeat {MIN_REPEATS}; with fewer, two modes of the allocator look like a difference too often"
        raise UsageError(what, found=str(num_repeats), hint=hint)
    plan = RepeatPlan(first=first, second=second, order=interleaved(num_repeats))
    folder = Path(output) if output is not None else default_folder(["diff", *first.command])
    create_series(folder, plan, overwrite=overwrite)
    return _finish(folder, plan, progress)


def _finish(folder: Path, plan: RepeatPlan, progress: RepeatsFollower | None) -> Comparison:
    import msgspec

    from memfit.measure.repeats import read_series, run_series

    if progress is not None:
        progress.begin(plan, folder)
    run_series(folder, plan, progress.show if progress is not None else None)
    first, second = read_series(folder, plan)
    return msgspec.structs.replace(diff_runs(first, second), order=plan.order)
