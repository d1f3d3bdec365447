"""How is a claim about planners written down: what was tried, what came out, and whether it holds?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the table."""

    what: str
    tried: str
    result: str
    holds: bool | None
    """None for a figure without a goal."""


def print_claims(title: str, claims: list[Claim]) -> None:
    """A table for the terminal."""
    marks = {True: "yes", False: "NO", None: "-"}
    rows = [("claim", "tried on", "result", "holds"), *((c.what, c.tried, c.result, marks[c.holds]) for c in claims)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
