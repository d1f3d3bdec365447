"""Findings on a study in the terminal: what was found, then what cannot be concluded."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.records.study_findings import FindingVerdict, StudiesFindings, StudyFinding, StudyFindings, Topic
from memfit.show.text_output import render, table
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
        if verdict == "found" and not chosen and findings.findings:
            parts.append(Text("Nothing stands out from chance.", style="bold"))
        elif chosen:
            parts.append(_group(verdict, chosen))
    parts += [_importances(findings), _foot(findings)]
    return render(Group(*(Padding(part, (0, 0, 1, 0)) for part in parts)), width, color)


def _title(findings: StudyFindings) -> RenderableType:
    text = Text(findings.title, style="bold")
    trials = "1 trial" if findings.num_trials == 1 else f"{findings.num_trials} trials"
    text.append(f"\nWhat drives the {findings.quantity}? {trials}", style="not bold")
    if findings.low_bytes is not None and findings.high_bytes is not None:
        span = _range_text(findings)
        text.append(f" from {span}" if " to " in span else f", {span}", style="not bold")
    if findings.differ_bytes and findings.matters_bytes:
        differ, matters = format_bytes(findings.differ_bytes), format_bytes(findings.matters_bytes)
        line = f"\nNine tenths of them lie within {differ}; an effect below a tenth of that, {matters}, does not matter"
        text.append(line, style="not bold")
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


# ---- several studies side by side ------------------------------------------------------------------------------------

_CIRCUMSTANCES: tuple[Topic, ...] = ("order of recording", "other programs", "time of day")


def studies_text(found: StudiesFindings, *, width: int = 80, color: bool = False) -> str:
    """One column for each study, one row for each question; then what differs between them."""
    made = table("", *(findings.title for findings in found.studies))
    for head, cells in study_rows(found):
        made.add_row(head, *cells)
    parts: list[RenderableType] = [Text("What drives memory, study by study", style="bold"), made, Text("")]
    for verdict in ("found", "ruled out", "cannot tell"):
        chosen = [finding for finding in found.between if finding.verdict == verdict]
        if chosen:
            parts += [Text(f"Between the studies: {_HEADS[verdict][0].lower()}", style=_HEADS[verdict][1])]
            parts += [_finding(finding) for finding in chosen]
    parts += [Text(note, style="dim") for note in found.notes]
    parts.append(Text("The whole report of one: memfit explain STUDY", style="dim"))
    return render(Group(*parts), max(width, 30 + 30 * len(found.studies)), color)


def study_rows(found: StudiesFindings) -> list[tuple[str, list[str]]]:
    """The rows of the table: what was looked at, and each study's answer in a few words."""
    rows = [
        ("trials", [str(findings.num_trials) for findings in found.studies]),
        ("memory", [_range_text(findings) for findings in found.studies]),
    ]
    names = dict.fromkeys(
        name for findings in found.studies for each in findings.about("hyperparameter") for name in each.subjects
    )
    for name in names:
        rows.append((name, [_cell(_about(findings, name), _absent(findings, name)) for findings in found.studies]))
    for topic in _CIRCUMSTANCES:
        rows.append((topic, [_cell(next(iter(findings.about(topic)), None), "unknown") for findings in found.studies]))
    rows.append(("law", [_law_cell(next(iter(findings.about("law")), None)) for findings in found.studies]))
    return rows


def _range_text(findings: StudyFindings) -> str:
    if findings.low_bytes is None or findings.high_bytes is None:
        return "unknown"
    low, high = format_bytes(findings.low_bytes), format_bytes(findings.high_bytes)
    if low != high:
        return f"{low} to {high}"
    apart_bytes = findings.high_bytes - findings.low_bytes
    return f"{low}, {format_bytes(apart_bytes)} apart" if apart_bytes else low


def _about(findings: StudyFindings, name: str) -> StudyFinding | None:
    return next((each for each in findings.about("hyperparameter") if name in each.subjects), None)


def _absent(findings: StudyFindings, name: str) -> str:
    """Why a study has no finding on a hyperparameter that another one has."""
    if not findings.findings:
        return "unknown"
    return "did not vary" if name in findings.constant else "not in this study"


def _cell(finding: StudyFinding | None, absent: str) -> str:
    """The verdict, and the interval where there is one."""
    if finding is None:
        return absent
    word = {"ruled out": "does not matter", "note": "acts with others"}.get(finding.verdict, finding.verdict)
    effect = finding.effect
    if effect is None or effect.low is None or effect.high is None:
        return word
    if effect.unit == "ratio":
        digits = 2 if max(-effect.low, effect.high) >= 0.1 else 4
        low, high = (round(end, digits) + 0.0 for end in (effect.low, effect.high))  # no -0.00
        return f"{word}: {low:.{digits}f} to {high:.{digits}f} bytes per byte"
    return f"{word}: {_signed(effect.low)} to {_signed(effect.high)}"


def _signed(num_bytes: float) -> str:
    return ("-" if num_bytes < 0 else "+") + format_bytes(abs(num_bytes))


def _law_cell(finding: StudyFinding | None) -> str:
    if finding is None or finding.verdict != "found":
        return "none shows"
    return finding.sentence.partition(": ")[2]
