"""memfit study: run many trials, each measured, and keep what became of every one."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memfit.commands.shared.options import (
    BYTES,
    SECONDS,
    complete_files,
    force_option_as,
    json_option,
    output_option,
    quiet_option,
    set_option_as,
    to_option,
)
from memfit.commands.shared.output import say_written, write_record
from memfit.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from memfit.api import StudyRun
    from memfit.records.study import Study
    from memfit.show.export.formats import Format

EPILOG = """\b
Examples:
  memfit study study.toml
  memfit study config.yml                  (a config of NNI, as it is)
  memfit study --space space.json --trials 40 -- python trial.py
  memfit study --space space.json --limit 2GiB mlp
  memfit study study.toml --on slurm --partition gpu --gpus 1 --concurrency 8
  memfit study resume memfit-studies/trial
  memfit study show memfit-studies/trial   (list, stop and export as well)

The same command in the same place goes on where it stopped. Ctrl-C waits for
running trials; a second one ends them, to be run again.
"""


class _Study(click.Command):
    """Answers the former spelling of `memfit reproduce hyperparameters` with the new one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = [] if ctx.resilient_parsing else args[: args.index("--")] if "--" in args else args
        table = next((word for word in own if re.fullmatch(r"paper-(mnist|fashion-mnist|cifar-10)", word)), "")
        if table and "--space" not in own and not os.path.exists(table):
            data = table.removeprefix("paper-")
            raise UsageError(f"`memfit study {table}` is now `memfit reproduce hyperparameters --data {data}`")
        return super().parse_args(ctx, args)


@click.command(cls=_Study, epilog=EPILOG)
@output_option("Folder of the study [default: memfit-studies/NAME].")
@force_option_as("overwrite")
@click.option("--space", type=click.Path(), help="A search-space file of NNI; then a command or workload follows.")
@click.option("--tuner", metavar="NAME", help="Random, GridSearch, TPE, Evolution, Hyperband and more.")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Trials to start.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Trials at a time [default: 1].")
@click.option("--limit", "limit_bytes", type=BYTES, help="End a trial that takes more than this.")
@click.option("--pareto", "memory_objective", is_flag=True, help="Memory is an objective beside the metric.")
@click.option("--metric", metavar="KEY", help="The key to optimise, when trials report dicts.")
@click.option("--maximize", "direction", flag_value="maximize", help="More is better.")
@click.option("--minimize", "direction", flag_value="minimize", help="Less is better [default].")
@click.option("--seed", type=int, metavar="N", help="Of the tuner [default: 0].")
@click.option("--time", "max_seconds", type=SECONDS, help="Start no trial after this long.")
@click.option("--trial-time", "max_trial_seconds", type=SECONDS, help="End a trial that takes longer.")
@set_option_as("fixed")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Cap the optimizer steps of every trial.")
@click.option("--storage", default="", metavar="URL", help="Keep it at postgresql://... in place of a local file.")
@click.option(
    "--on", default="", metavar="WHERE", help="Run trials in jobs of slurm, pbs or lsf, or on a Dask scheduler."
)
@click.option("--partition", default="", metavar="NAME", help="Partition or queue of the jobs.")
@click.option("--account", default="", metavar="NAME", help="Account or project of the jobs.")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs of each job.")
@click.option("--cpus", type=click.IntRange(min=1), metavar="N", help="Processor cores of each job [default: 1].")
@click.option("--job-memory", "job_memory_bytes", type=BYTES, help="Memory of each job.")
@click.option("--job-time", "job_seconds", type=SECONDS, help="How long a job may run [default: 1h].")
@click.option("--interface", default="", metavar="NAME", help="Network interface that jobs reach this machine by.")
@click.option(
    "--job-option", "job_options", multiple=True, metavar="TEXT", help="A line for the batch system; repeatable."
)
@click.option(
    "--env", multiple=True, metavar="NAME", help="A variable that every trial gets, or NAME=VALUE; repeatable."
)
@click.option("--profile", is_flag=True, help="Keep a torch.profiler trace of every trial, for TensorBoard.")
@click.option("--no-predict", "predict", flag_value=False, default=True, help="Reject nothing by prediction.")
@click.option("--no-figures", "figures", flag_value=False, default=True, help="Draw nothing at the end.")
@click.option("--name", metavar="NAME", help="What to call the study.")
@click.option("--id", "study_id", default="", hidden=True, help="The id of a new study.")
@click.option("--now", is_flag=True, help="Of stop: end the running trials too; resume runs them again.")
@click.option("--trial", metavar="N", help="Of stop: end this one trial, and go on with the study.")
@to_option()
@quiet_option
@json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def command(
    words: tuple[str, ...], figures: bool, quiet: bool, as_json: bool, now: bool, trial: str | None,
    to: Format | None,
    **options: Any,
) -> None:  # fmt: skip
    """Run the trials of a study, each in a process of its own whose memory is measured.

    The study is a FILE or, with --space, a COMMAND or workload. `resume FOLDER` goes on with a study, `show FOLDER`
    prints it, `list [FOLDER]` lists studies, `stop FOLDER` ends one that runs, `export FOLDER --to csv` writes a table.
    """
    action = words[0] if words and options["space"] is None else ""
    _refuse_elsewhere(action, now=now, trial=trial, to=to)
    if action == "list":
        _list(words[1:], as_json)
    elif action == "stop":
        _stop(_folder(words), now, trial)
    elif action == "show":
        _show(_folder(words), options["storage"], as_json)
    elif action == "export":
        _export(_folder(words), to, options["output"], options["storage"], options["overwrite"])
    else:
        _run(words, action == "resume", figures, quiet, as_json, options)


def _run(
    words: tuple[str, ...], goes_on: bool, figures: bool, quiet: bool, as_json: bool, options: dict[str, object]
) -> None:
    from memfit import api
    from memfit.show.progress.study import StudyProgress

    if goes_on:
        options["output"] = _folder(words)
    progress = StudyProgress(quiet=quiet)
    try:
        run = api.run_study(None if goes_on else words, progress=progress, **options)  # pyright: ignore[reportArgumentType]
    finally:
        progress.close()
    written = _draw(run.study) if figures else ()
    events = api.export_record(run.study, "tensorboard") if options["profile"] else []
    if as_json or not quiet:
        print_study(run.study, as_json)
    if not (as_json or quiet):
        _say_the_end(run, written, events)
    if run.was_interrupted:
        sys.exit(130)
    if run.has_failed:
        sys.exit(1)


def _refuse_elsewhere(action: str, *, now: bool, trial: str | None, to: str | None) -> None:
    """An option of stop or export has no effect on anything else."""
    for given, option, home in ((now, "--now", "stop"), (trial, "--trial", "stop"), (to, "--to", "export")):
        if given and action != home:
            raise UsageError(f"{option} is for `memfit study {home} FOLDER`", hint="leave it out")


def _list(folders: tuple[str, ...], as_json: bool) -> None:
    from memfit import api
    from memfit.show.terminal.study import study_list_text

    entries = api.list_studies(folders)
    write_record(list(entries), lambda width, color: study_list_text(entries), as_json=as_json)


def _stop(folder: str, now: bool, trial: str | None) -> None:
    from memfit import api

    if trial is not None:
        api.end_trial(folder, trial)
        click.echo(f"trial {trial} is being ended; the study goes on")
        return
    pid = api.stop_study(folder, now=now)
    what = "its running trials are ended, and run again by" if now else "it waits for its running trials; go on with"
    click.echo(f"the study in {folder} (process {pid}) is being stopped; {what}: memfit study resume {folder}")


def _show(folder: str, storage: str, as_json: bool) -> None:
    from memfit import api

    print_study(api.read_study(folder, storage=storage), as_json)


def _export(folder: str, to: Format | None, output: str | None, storage: str, overwrite: bool) -> None:
    from memfit import api

    if to is None:
        raise UsageError("in which format?", hint=f"memfit study export {folder} --to csv")
    study = api.read_study(folder, storage=storage)
    say_written(api.export_record(study, to, output, overwrite=overwrite), to)


def _folder(words: tuple[str, ...]) -> str:
    if len(words) != 2:
        raise UsageError(f"memfit study {words[0]} takes one folder", found=" ".join(words[1:]) or "none")
    return words[1]


def print_study(study: Study, as_json: bool) -> None:
    """The study; a re-run of published trials stands beside them."""
    from memfit import api
    from memfit.show.terminal.reproduction import rerun_text
    from memfit.show.terminal.study import study_text
    from memfit.show.text_output import on_terminal, write_text

    is_wide = not on_terminal()
    write_record(
        study, lambda width, color: study_text(study, width=None if is_wide else max(width, 120)), as_json=as_json
    )
    rerun = None if as_json else api.beside_published(study)
    if rerun is not None:
        write_text(lambda width, color: "\n" + rerun_text(rerun, width=max(width, 120)))


def _draw(study: Study) -> tuple[Path, ...]:
    from memfit import api

    try:
        return api.draw_study(study)
    except MissingExtra as error:
        click.echo(f"memfit: no figures: {error}", err=True)
        return ()


def _say_the_end(run: StudyRun, written: tuple[Path, ...], events: list[Path]) -> None:
    folder = run.study.folder
    click.echo("")
    if run.was_interrupted:
        click.echo(f"Interrupted; nothing is lost. Go on with: memfit study resume {folder}")
    elif run.why_stopped:
        click.echo(f"Ended: {run.why_stopped}.")
    for path in written:
        click.echo(f"Figure: {path}")
    if events:
        click.echo(f"Traces, hyperparameters and memory: tensorboard --logdir {events[0].parent}")
    click.echo(f"Study:  {folder}   (memfit explain {folder} says what drives memory)")
