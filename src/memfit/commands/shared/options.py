"""Options that several verbs share: sizes, durations, where to write, how much to say, completion of file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from memfit.errors import BadQuantity
from memfit.units import parse_bytes, parse_seconds, parse_speed

FC = TypeVar("FC", bound=Callable[..., object] | click.Command)
"""A function that becomes a command, or a command that is one: what click's decorators take and return."""


class Quantity(click.ParamType):
    """A size or a duration with a unit, read by memfit.units."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except BadQuantity as error:
            name = param.opts[0] if param is not None else self.name
            raise BadQuantity(f"{name}: {error.what}", found=error.found, hint=error.hint) from None


BYTES = Quantity("size", parse_bytes)
MOST_THREADS = 1024
"""More than machines have; torch's pools break off where the system gives no more."""

SECONDS = Quantity("duration", parse_seconds)
SPEED = Quantity("speed", parse_speed)

# Options that several verbs share, each defined once. In `--help`, -o and -f come first, -q and --json last.


def force_option_as(name: str) -> Callable[[FC], FC]:
    """-f, handed on under the name that the verb's options have for it."""
    return click.option("-f", "--force", name, is_flag=True, help="Replace what is already there.")


def set_option_as(name: str) -> Callable[[FC], FC]:
    """--set, handed on under the name that the verb's options have for it."""
    what = "A setting of the function or workload; repeatable."
    return click.option("--set", name, multiple=True, metavar="NAME=VALUE", help=what)


force_option = force_option_as("force")
set_option = set_option_as("settings")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress, and no summary of what was run.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead of the summary.")
stable_option = click.option(
    "--stable", is_flag=True, help="Pin glibc's mmap threshold so that repeated runs agree (costs some speed)."
)
ledger_option = click.option(
    "--ledger", is_flag=True, help="Explain the peak down to layers: trace step 2 and every 50th."
)
no_report_option = click.option("--no-report", is_flag=True, help="Write no picture and no page after the run.")
html_option = click.option("--html", type=click.Path(path_type=Path), help="Write a page to explore, in one file.")


FORMATS = ("csv", "json", "chrome-trace", "perfetto", "memory-viewer", "tensorboard", "openmetrics", "figures")


def to_option(*, required: bool = False) -> Callable[[FC], FC]:
    """The format that a run or a study is written in: --to FORMAT."""
    return click.option("--to", required=required, type=click.Choice(FORMATS), help="The format.")


def output_option(what: str, default: str = "") -> Callable[[FC], FC]:
    """Where the verb writes: -o PATH."""
    return click.option("-o", "--output", type=click.Path(), default=default or None, help=what)


def complete_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """File names of the shell, for arguments that may be a file."""
    return [CompletionItem(incomplete, type="file")]
