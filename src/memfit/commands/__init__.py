"""The command line: one file per verb, loaded only when that verb is asked for."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from memfit.errors import MemfitError, UsageError
from memfit.version import VERSION

VERBS: dict[str, str] = {
    "measure": "Run a command and measure its memory exactly.",
    "attach": "Measure a program that is already running.",
    "show": "Show a run: summary, picture, page.",
    "diff": "Compare two runs, and say whether they differ by more than the noise.",
    "export": "Write a run as CSV, JSON, chrome trace or memory-viewer snapshot.",
    "predict": "Foresee the memory of a training, without running it.",
    "explain": "Say what drives memory in a study of many trials.",
    "data": "Fetch the data sets that built-in trainings read, and list them.",
    "study": "Run many trials of a search space, each measured.",
    "fit": "Make a training fit into a budget, and prove that it computes the same.",
    "replay": "Replay a CUDA memory snapshot, and try other allocator settings on it.",
    "doctor": "Say what this machine can and cannot measure, and why.",
}
"""Every verb with its line in the overview; `memfit VERB` loads `commands/VERB.py` and calls its `command`."""


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
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]):  # type: ignore[override]
        name = args[0] if args else ""
        if name and name not in VERBS and not name.startswith("-"):
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


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="memfit")
def cli() -> None:
    """How much memory training takes, what drives it, and how to make it fit.

    \b
    Example:
      memfit measure -- python train.py --batch-size 64
    """


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
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "memfit"
        print_error(UsageError(error.format_message(), hint=f"{path} --help"))
        sys.exit(error.exit_code)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("memfit: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


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
