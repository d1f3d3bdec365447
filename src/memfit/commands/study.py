"""memfit study: run many trials, each measured, and keep what became of every one."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memfit.commands.options import (
    BYTES,
    SECONDS,
    complete_files,
    force_option_as,
    json_option,
    output_option,
    quiet_option,
    set_option_as,
)
from memfit.commands.output import write_record
from memfit.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from memfit.api import StudyRun
    from memfit.records.study import Study

EPILOG = """\b
Examples:
  memfit study study.toml
  memfit study config.yml                  (a config of NNI, as it is)
  memfit study --space space.json --trials 40 -- python trial.py
  memfit study --space space.json --limit 2GiB mlp
  memfit study resume memfit-studies/trial
  memfit study show memfit-studies/trial

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
@click.option("--on", default="", metavar="ADDRESS", help="A Dask scheduler: run the trials on its workers.")
@click.option("--profile", is_flag=True, help="Keep a torch.profiler trace of every trial, for TensorBoard.")
@click.option("--no-predict", "predict", flag_value=False, default=True, help="Reject nothing by prediction.")
@click.option("--no-figures", "figures", flag_value=False, default=True, help="Draw nothing at the end.")
@click.option("--name", metavar="NAME", help="What to call the study.")
@quiet_option
@json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def command(words: tuple[str, ...], figures: bool, quiet: bool, as_json: bool, **options: Any) -> None:
    """Run the trials of a study, each in a process of its own whose memory is measured.

    The study is a FILE or, with --space, a COMMAND or workload. `resume FOLDER` goes on with a study, `show FOLDER`
    prints it.
    """
    from memfit import api
    from memfit.show.progress.study import StudyProgress

    if words[:1] == ("show",) and options["space"] is None:
        _print_study(api.read_study(_folder(words), storage=options["storage"]), as_json)
        return
    goes_on = words[:1] == ("resume",) and options["space"] is None
    if goes_on:
        options["output"] = _folder(words)
    progress = StudyProgress(quiet=quiet)
    try:
        run = api.run_study(None if goes_on else words, progress=progress, **options)
    finally:
        progress.close()
    written = _draw(run.study) if figures else ()
    if as_json or not quiet:
        _print_study(run.study, as_json)
    if not (as_json or quiet):
        _say_the_end(run, written)
    if run.was_interrupted:
        sys.exit(130)


def _folder(words: tuple[str, ...]) -> str:
    if len(words) != 2:
        raise UsageError(f"memfit study {words[0]} takes one folder", found=" ".join(words[1:]) or "none")
    return words[1]


def _print_study(study: Study, as_json: bool) -> None:
    """The study; a re-run of published trials stands beside them."""
    from memfit import api
    from memfit.show.paper import on_terminal, write_text
    from memfit.show.terminal.reproduction import rerun_text
    from memfit.show.terminal.study import study_text

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


def _say_the_end(run: StudyRun, written: tuple[Path, ...]) -> None:
    folder = run.study.folder
    click.echo("")
    if run.was_interrupted:
        click.echo(f"Interrupted; nothing is lost. Go on with: memfit study resume {folder}")
    elif run.why_stopped:
        click.echo(f"Ended: {run.why_stopped}.")
    for path in written:
        click.echo(f"Figure: {path}")
    click.echo(f"Study:  {folder}   (memfit explain {folder} says what drives memory)")
