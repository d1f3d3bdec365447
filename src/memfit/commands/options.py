"""Options that several verbs share: sizes, durations, --json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from memfit.errors import BadQuantity
from memfit.units import parse_bytes, parse_seconds


class Quantity(click.ParamType):
    """A size or a duration with a unit, read by memfit.units."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except BadQuantity as error:
            name = param.opts[0] if param is not None else self.name
            raise BadQuantity(f"{name}: {error.what}", found=error.found, hint=error.hint) from None


BYTES = Quantity("size", parse_bytes)
SECONDS = Quantity("duration", parse_seconds)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead of the summary.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Say nothing while it runs.")
force_option = click.option("-f", "--force", is_flag=True, help="Replace what is already there.")
