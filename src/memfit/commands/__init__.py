"""The command line: one file per verb, loaded only when that verb is asked for."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from memfit.errors import MemfitError, UsageError
from memfit.version import VERSION

QUESTIONS: dict[str, dict[str, str]] = {
    "Before you run": {
        "predict": "Predict the memory of a training, without running it.",
        "compare": "Compare optimizers and techniques, predicted and measured.",
        "pipeline": "Cut a network over ranks: the fastest pipeline that fits.",
    },
    "While it runs, and after": {
        "measure": "Run a command and measure its memory exactly.",
        "attach": "Measure a program that is already running.",
        "show": "Show a run: summary, picture, page; or a study.",
        "serve": "Show records in the browser: runs, studies, plans, snapshots.",
        "report": "Write that page as one file that works offline.",
        "diff": "Compare two runs: do they differ by more than the noise?",
        "export": "Write a run or study for TensorBoard, Perfetto, Prometheus, CSV.",
        "replay": "Replay a CUDA memory snapshot, under other settings too.",
    },
    "Make it fit": {
        "fit": "Make a training fit into a budget, with the same results.",
    },
    "Many runs": {
        "study": "Run many trials of a search space, each measured.",
        "nni": "Run programs written for NNI: its Experiment, its nnictl.",
        "explain": "Say what drives memory in a study of many trials.",
        "reproduce": "Run published results again, and judge what their sources say.",
    },
    "This machine": {
        "doctor": "Say what this machine can and cannot measure, and why.",
        "data": "Fetch the data sets that built-in trainings read, and list them.",
        "completion": "Print the script that completes memfit in bash, zsh or fish.",
    },
}
"""Every verb with its line in the overview, by the question it answers."""
VERBS = {verb: line for verbs in QUESTIONS.values() for verb, line in verbs.items()}
"""`memfit VERB` loads `commands/VERB.py` and calls its `command`."""
QUICK_START = """\
memfit measure -- python train.py           exact peak and timeline of a run
memfit predict train.py --device a100-40gb  will it fit? without running it
memfit fit train.py --budget 8GiB           make it fit, with the same losses
memfit study --space space.json mlp         many runs, each of them measured
memfit doctor                               what this machine can measure
memfit --help                               all verbs, and VERB --help
"""

MOST_LETTERS = 4000
"""Of each part of an error."""


class VerbGroup(click.Group):
    """A group that knows its verbs by name and loads them late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return import_module(f"memfit.commands.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(verb) for verb in VERBS)
        for question, verbs in QUESTIONS.items():
            with formatter.section(question):
                formatter.write_dl([(verb.ljust(width), line) for verb, line in verbs.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]):  # type: ignore[override]
        name = args[0] if args else ""
        if name and name not in VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(unknown_verb(name), ctx)
        return super().resolve_command(ctx, args)


def unknown_verb(name: str) -> str:
    """What to say about a verb that does not exist."""
    import difflib

    near = difflib.get_close_matches(name, VERBS, n=1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"to measure a command, put it behind `memfit measure --`: memfit measure -- {name} ..."
    )
    return f"there is no verb {name!r}; {hint}"


@click.group(cls=VerbGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="memfit")
@click.pass_context
def cli(context: click.Context) -> None:
    """How much memory training takes, what drives it, and how to make it fit.

    \b
    Example:
      memfit measure -- python train.py --batch-size 64
    """
    if context.invoked_subcommand is None:
        click.echo(QUICK_START, nl=False)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake is one clear line, never a traceback."""
    open_standard_files()
    try:
        code = cli.main(args=arguments, prog_name="memfit", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except MemfitError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        print_error(UsageError(_sentence(error), hint=_hint(error)))
        sys.exit(error.exit_code)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("memfit: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


SAME_WORDS = ({"--budget", "--memory"}, {"--device", "--gpu"}, {"--output", "--out", "--folder"})
"""Options that mean nearly the same in different verbs and tools."""


def _sentence(error: click.ClickException) -> str:
    """The mistake; options that only look alike are not offered for one that means another."""
    if isinstance(error, click.NoSuchOption) and (meant := _meant(error)):
        return f"there is no option {error.option_name!r}; here it is {meant}"
    return error.format_message()


def _hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "memfit"
    takes_arguments = context is not None and any(each.name == "arguments" for each in context.command.params)
    if isinstance(error, click.NoSuchOption) and takes_arguments and not _meant(error):
        return f"{path} --help; options of a script follow --: {path} train.py -- {error.option_name} ..."
    return f"{path} --help"


def _meant(error: click.NoSuchOption) -> str | None:
    """The option of this verb that means what the unknown one means elsewhere."""
    known = {name for each in (error.ctx.command.params if error.ctx else ()) for name in each.opts}
    words = next((words for words in SAME_WORDS if error.option_name in words), set())
    return min(words & known, default=None)


def open_standard_files() -> None:
    """Where standard input, output or error are closed, /dev/null stands in: a pipe of ours must not get their number,
    which a job takes for its output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def print_error(error: MemfitError) -> None:
    """The three parts of an error on standard error."""
    click.echo(f"memfit: {_tame(error.what)}", err=True)
    if error.found:
        click.echo(f"  found: {_tame(error.found)}", err=True)
    if error.hint:
        click.echo(f"  try:   {_tame(error.hint)}", err=True)


def _tame(text: str) -> str:
    """What stands in somebody's file neither steers the reader's terminal nor fills it."""
    kept = "".join(letter if letter in "\n\t" or letter.isprintable() else "?" for letter in text[:MOST_LETTERS])
    return kept + ("…" if len(text) > MOST_LETTERS else "")
