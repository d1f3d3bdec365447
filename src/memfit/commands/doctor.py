"""memfit doctor: say what this machine can and cannot measure, and why."""

from __future__ import annotations

import click

from memfit.commands.shared.options import json_option
from memfit.commands.shared.output import write_record

EPILOG = """\b
Examples:
  memfit doctor
  memfit doctor --json | python -m json.tool

Takes about three seconds, most of it for loading torch, and changes nothing. The exit code is 0 whatever is found.
"""


@click.command(epilog=EPILOG)
@json_option
def command(as_json: bool) -> None:
    """Say what this machine can and cannot measure, why, and how to enable it."""
    from memfit import api
    from memfit.show.terminal.doctor import machine_text

    report = api.examine_machine()
    write_record(report, lambda width, color: machine_text(report, width=width, color=color), as_json=as_json)
