"""How is a comparison of planners written to a terminal: the ranking, then every network at three budgets?"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.records.experiment import Cell, Network, OffloadingExperiment, Panel
from memfit.records.plan import Candidate
from memfit.show.paper import render, table
from memfit.units import format_bytes, format_seconds

SHARES = (0.25, 0.5, 0.75)
"""Budgets that are shown, as shares of the way from the smallest to the plain peak."""
DOES_NOT_FIT = "-"


def experiment_text(experiment: OffloadingExperiment, *, width: int, color: bool) -> str:
    """The whole comparison."""
    parts: list[RenderableType] = [Text(_headline(experiment)), Text(""), _standings(experiment)]
    if experiment.remarks:
        parts.append(Text("\n" + "\n".join(f"- {remark}" for remark in experiment.remarks)))
    for network in experiment.networks:
        panels = [panel for panel in experiment.panels if panel.network == network.name]
        parts += [Text(""), Text(_network_line(network)), Text(""), _slowdowns(network, panels, experiment)]
    return render(Group(*parts), width, color)


def _headline(experiment: OffloadingExperiment) -> str:
    num_cells = sum(len(panel.cells) for panel in experiment.panels)
    return (
        f"{len(experiment.standings)} planners on {len(experiment.networks)} networks of {experiment.device}: "
        f"{num_cells} cases, every answer replayed in the simulator, in {format_seconds(experiment.took_seconds)}.\n"
        "Sizes and times are predicted; nothing was run."
    )


def _standings(experiment: OffloadingExperiment) -> Table:
    made = table("planner", "may", ">fits", ">fastest", ">time over the fastest", ">at worst")
    for standing in experiment.standings:
        made.add_row(
            standing.planner,
            {"checkpoint": "recompute", "offload": "move", "combined": "both"}[standing.family],
            f"{standing.num_fits} of {standing.num_cells}",
            str(standing.num_best),
            _ratio(standing.mean_over_best),
            _ratio(standing.worst_over_best),
        )
    return made


def _ratio(value: float | None) -> str:
    return DOES_NOT_FIT if value is None else f"x{value:.3f}"


def _network_line(network: Network) -> str:
    return (
        f"{network.name} ({', '.join(network.settings)}): {network.num_stages} stages, "
        f"{format_bytes(network.plain_peak_bytes)} and {format_seconds(network.plain_seconds)} with everything kept, "
        f"{format_bytes(network.smallest_budget_bytes)} at least."
        + "".join(f" Note: {note}." for note in network.notes)
        + " Time over that of keeping everything:"
    )


def _slowdowns(network: Network, panels: Sequence[Panel], experiment: OffloadingExperiment) -> Table:
    columns = [(panel, cell) for panel in panels for cell in shown_cells(panel)]
    made = table("", *(f">{panel.link.out_bytes_per_second / 1e9:g} GB/s" for panel, _ in columns))
    made.columns[0].no_wrap = True
    made.add_row("", *(format_bytes(cell.budget_bytes) for _, cell in columns))
    for standing in experiment.standings:
        made.add_row(standing.planner, *(_slowdown(standing.planner, cell, network) for _, cell in columns))
    return made


def shown_cells(panel: Panel) -> list[Cell]:
    """The cells nearest to the shares that are shown, each once."""
    last = len(panel.cells) - 1
    return [panel.cells[index] for index in sorted({round(share * last) for share in SHARES})]


def _slowdown(planner: str, cell: Cell, network: Network) -> str:
    found = find_candidate(cell, planner)
    if found is None or found.seconds is None or not network.plain_seconds:
        return DOES_NOT_FIT
    return f"{found.seconds / network.plain_seconds:.2f}"


def find_candidate(cell: Cell, planner: str) -> Candidate | None:
    """The answer of one planner, where it was asked."""
    return next((candidate for candidate in cell.candidates if candidate.solver == planner), None)
