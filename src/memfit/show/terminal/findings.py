"""Findings on a study in the terminal: what was found, then what cannot be concluded."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.records.study_findings import FindingVerdict, StudyFinding, StudyFindings
from memfit.show.paper import render
from memfit.units import format_bytes, format_ratio

_HEADS: dict[FindingVerdict, tuple[str, str]] = {
    "found": ("Found", "bold green"),
    "ruled out": ("Does not matter", "bold"),
    "cannot tell": ("Cannot be concluded from these trials", "bold yellow"),
    "note": ("Worth knowing", "bold"),
}


def findings_text(findings: StudyFindings, *, width: int = 80, color: bool = False) -> str:
    """The findings as text."""
    parts: list[RenderableType] = [_title(findings)]
    for verdict in ("found", "note", "ruled out", "cannot tell"):
        chosen = [finding for finding in findings.findings if finding.verdict == verdict]
        if verdict == "found" and not chosen:
            parts.append(Text("Nothing stands out from chance.", style="bold"))
        elif chosen:
            parts.append(_group(verdict, chosen))
    parts += [_importances(findings), _foot(findings)]
    return render(Group(*(Padding(part, (0, 0, 1, 0)) for part in parts)), width, color)


def _title(findings: StudyFindings) -> RenderableType:
    text = Text(findings.title, style="bold")
    text.append(f"\nWhat drives the {findings.quantity}? {findings.num_trials} trials", style="not bold")
    if findings.low_bytes is not None and findings.high_bytes is not None:
        span = f" from {format_bytes(findings.low_bytes)} to {format_bytes(findings.high_bytes)}"
        text.append(span, style="not bold")
    return text


def _group(verdict: FindingVerdict, chosen: list[StudyFinding]) -> RenderableType:
    head, style = _HEADS[verdict]
    grid = Table.grid(padding=(0, 1))
    for finding in chosen:
        grid.add_row("•", _finding(finding))
    return Group(Text(head, style=style), grid)


def _finding(finding: StudyFinding) -> RenderableType:
    evidence = [Padding(Text(line, style="dim"), (0, 0, 0, 4)) for line in finding.evidence]
    return Group(Text(finding.sentence), *evidence)


def _importances(findings: StudyFindings) -> RenderableType:
    if not findings.importances:
        return Text(f"Importance is unknown: {findings.importance_reason}", style="dim")
    shares = ", ".join(f"{each.name} {format_ratio(each.share)}" for each in findings.importances if each.share > 0)
    return Text(f"Importance for being among the largest quarter (PED-ANOVA): {shares}")


def _foot(findings: StudyFindings) -> RenderableType:
    rate = f"At most {findings.error_rate * 100:.0f} in 100 studies without any effect show a finding"
    return Text("\n".join([*findings.notes, f"{rate}; intervals are 95 % each."]), style="dim")
