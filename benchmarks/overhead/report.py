"""How are the results written down: a table per part, one summary of what was promised, markdown and JSON?"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.overhead.paired import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One promise of memfit, beside what the other tools did in the same minutes."""

    what: str
    peers: str
    memfit: str
    target: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The result of one part of the benchmark."""

    name: str
    title: str
    method: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    findings: list[Finding]
    raw: dict[str, Any] = field(default_factory=dict)


def ratio_text(found: Estimate) -> str:
    """1.003 (0.998-1.009)."""
    return f"{found.value:.3f} ({found.low:.3f}-{found.high:.3f})"


def percent_text(found: Estimate) -> str:
    """0.7 % (0.6-0.8)."""
    return f"{100 * found.value:.2g} % ({100 * found.low:.2g}-{100 * found.high:.2g})"


def mebibytes(num_bytes: float) -> float:
    """Bytes as MiB."""
    return num_bytes / 1024**2


def markdown(environment: dict[str, str], parts: list[Part]) -> str:
    """The whole result as a page."""
    lines = ["## Summary", "", *_markdown_table(SUMMARY_COLUMNS, summary_rows(parts)), ""]
    for part in parts:
        lines += [f"## {part.title}", "", part.method, "", *_markdown_table(part.columns, part.rows), ""]
    lines += ["## Machine and versions", "", *[f"- {name}: {text}" for name, text in environment.items()], ""]
    return "\n".join(lines)


BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
SUMMARY_COLUMNS = ("", "other tools, here", "memfit, here", "target", "verdict")


def summary_rows(parts: list[Part]) -> list[tuple[str, ...]]:
    """One row per promise."""
    findings = [finding for part in parts for finding in part.findings]
    return [(f.what, f.peers, f.memfit, f.target, f.verdict) for f in findings]


def _markdown_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """The same table for the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 180
    console.print(table, "")


def publish(page: Path, text: str) -> None:
    """Put the results between the two marks of a page, in place of the old ones."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the results: it must hold the lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def write_files(folder: Path, environment: dict[str, str], parts: list[Part]) -> tuple[Path, Path]:
    """overhead.md and overhead.json."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / "overhead.md", folder / "overhead.json"
    page.write_text(markdown(environment, parts), encoding="utf-8")
    facts = {"environment": environment, "parts": [dataclasses.asdict(part) for part in parts]}
    data.write_text(json.dumps(facts, indent=1, default=dataclasses.asdict), encoding="utf-8")
    return page, data
