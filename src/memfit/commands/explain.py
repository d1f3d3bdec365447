"""memfit explain: what drives memory in a study."""

from __future__ import annotations

from typing import Literal

import click

from memfit.commands.options import json_option
from memfit.commands.output import write_record

EPILOG = """\b
Examples:
  memfit explain paper-mnist
  memfit explain study.json --quantity average

STUDY is a study's record as JSON, or one of the published tables: paper-mnist,
paper-fashion-mnist, paper-cifar-10.
"""


@click.command(epilog=EPILOG)
@click.argument("study")
@click.option(
    "--quantity", type=click.Choice(["peak", "average"]), help="What to explain [default: what most trials have]."
)
@json_option
def command(study: str, quantity: Literal["peak", "average"] | None, as_json: bool) -> None:
    """Say what drives the memory of the trials of STUDY: effects, trends, order, other programs, laws."""
    from memfit import api
    from memfit.show.terminal.findings import findings_text

    findings = api.explain_study(api.find_study(study), quantity=quantity)
    write_record(findings, lambda width, color: findings_text(findings, width=width, color=color), as_json=as_json)
