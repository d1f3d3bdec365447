"""Report of `memfit doctor` in the terminal: what can be measured, what was found, what to try."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.records.machine.doctor import GROUPS, MachineCheck, MachineReport
from memfit.records.run import Environment
from memfit.show.text_output import render
from memfit.units import format_bytes

STYLE_OF_ANSWER = {"yes": "green", "partly": "yellow", "no": "red"}


def machine_text(report: MachineReport, *, width: int = 80, color: bool = False) -> str:
    """The report as text."""
    return render(draw_machine(report), width, color)


def draw_machine(report: MachineReport) -> RenderableType:
    """The machine in one line, the table, and the sums."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(min_width=27, max_width=27)
    table.add_column(min_width=6)
    table.add_column(ratio=1, overflow="fold")
    for group in _groups(report):
        table.add_row(Text(group, style="bold"), "", "")
        for check in (one for one in report.checks if one.group == group):
            table.add_row(f"  {check.name}"[:29], Text(check.answer, STYLE_OF_ANSWER[check.answer]), _found(check))
    return Group(Text(_machine_line(report.environment)), "", table, "", Text(_sums(report)))


def _groups(report: MachineReport) -> list[str]:
    """The known groups in their order, then any other."""
    return [name for name in dict.fromkeys([*GROUPS, *(c.group for c in report.checks)]) if _has(report, name)]


def _has(report: MachineReport, group: str) -> bool:
    return any(check.group == group for check in report.checks)


def _found(check: MachineCheck) -> Text:
    text = Text(check.found)
    if check.hint:
        text.append(f"\ntry: {check.hint}", style="dim")
    return text


def _machine_line(machine: Environment) -> str:
    cores = f"{machine.num_cores} core{'s' if machine.num_cores != 1 else ''}"
    total_bytes = machine.memory_total_bytes
    memory = "unknown" if total_bytes is None else format_bytes(total_bytes)
    limit = f", limited to {format_bytes(machine.memory_limit_bytes)}" if machine.memory_limit_bytes else ""
    return f"memfit {machine.memfit} on {machine.system}: {machine.cpu}, {cores}, {memory}{limit}"


def _sums(report: MachineReport) -> str:
    counts = {answer: sum(check.answer == answer for check in report.checks) for answer in STYLE_OF_ANSWER}
    return (
        f"{len(report.checks)} things were tried: {counts['yes']} work, {counts['partly']} partly, {counts['no']} not."
    )
