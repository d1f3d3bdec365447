"""memfit explain: what drives memory in a study."""

from __future__ import annotations

from typing import Literal

import click

from memfit.commands.shared.options import json_option
from memfit.commands.shared.output import write_record

EPILOG = """\b
Examples:
  memfit explain paper-mnist
  memfit explain study.json --quantity average
  memfit explain paper-mnist paper-cifar-10    several side by side

STUDY is a study's folder, its record as JSON, or one of the published tables: paper-mnist,
paper-fashion-mnist, paper-cifar-10.
"""


@click.command(epilog=EPILOG)
@click.argument("studies", metavar="STUDY...", nargs=-1, required=True)
@click.option(
    "--quantity", type=click.Choice(["peak", "average"]), help="What to explain [default: what most trials have]."
)
@json_option
def command(studies: tuple[str, ...], quantity: Literal["peak", "average"] | None, as_json: bool) -> None:
    """Say what drives the memory of the trials of STUDY: effects, trends, order, other programs, laws.

    Several studies are shown side by side, with what differs between them at equal hyperparameters.
    """
    from memfit import api
    from memfit.show.terminal.findings import findings_text, studies_text

    found = [api.find_study(study) for study in studies]
    if len(found) == 1:
        findings = api.explain_study(found[0], quantity=quantity)
        write_record(findings, lambda width, color: findings_text(findings, width=width, color=color), as_json=as_json)
        return
    several = api.explain_studies(found, quantity=quantity)
    write_record(several, lambda width, color: studies_text(several, width=width, color=color), as_json=as_json)
