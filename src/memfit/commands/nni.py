"""memfit nni: run programs written for NNI with memfit in its place."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import click

from memfit import api
from memfit.errors import UsageError

EPILOG = """\b
Examples:
  memfit nni python main.py                 (a program with nni.experiment)
  memfit nni nnictl create --config config.yml
  eval "$(memfit nni)"                      (for the rest of this shell)
"""


@click.command(
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"], "ignore_unknown_options": True, "allow_interspersed_args": False
    },
)  # fmt: skip
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(words: tuple[str, ...]) -> None:
    """Run a COMMAND in which `import nni` and `nnictl` are memfit's: experiments become studies, every trial measured.

    Without a command, print the lines that set a shell up for it. The program stays as it is; an installed NNI is
    left alone.
    """
    variables = api.nni_environment(os.environ)
    if not words:
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return
    environment = {**os.environ, **variables}
    program = shutil.which(words[0], path=environment["PATH"])
    if program is None:
        raise UsageError(f"there is no program {words[0]}", hint="memfit nni python main.py")
    sys.stdout.flush()
    os.execve(program, list(words), environment)
