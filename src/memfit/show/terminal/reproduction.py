"""Published results in the terminal: the list of them, statements with their verdicts, and the tables of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.records.figure import Figure
from memfit.records.plan import Candidate
from memfit.records.reproduction import (
    Cell,
    EdgeTables,
    HyperparameterTrials,
    MemoryCell,
    Network,
    OffloadingExperiment,
    OptimizerResult,
    Panel,
    PipeliningResult,
    Price,
    PublishedResult,
    Rerun,
    Statement,
    StatementVerdict,
    Worth,
)
from memfit.show.terminal.grid import draw_grid
from memfit.show.terminal.study import columns
from memfit.show.text_output import render, table
from memfit.show.wording import short_text
from memfit.units import GIB, format_bytes, format_ratio, format_seconds

SHARES = (0.25, 0.5, 0.75)
"""Budgets that are shown, as shares of the way from the smallest to the plain peak."""
DOES_NOT_FIT = "-"
_STYLES: dict[StatementVerdict, str] = {"holds": "bold green", "does not hold": "bold red", "cannot tell": "yellow"}


def results_text(results: Sequence[PublishedResult], *, width: int = 80, color: bool = False) -> str:
    """The published results that can be run again: name, question, sources, and how long each takes."""
    parts: list[RenderableType] = [Text("Published results that memfit runs again")]
    for result in results:
        lines = [Text(result.question)]
        lines += [Text(f"Source: {source}", style="dim") for source in result.sources]
        lines.append(Text(f"{result.does}; {result.takes}; {len(result.statements)} statements judged", style="dim"))
        parts += [Text(""), Text(result.name, style="bold"), Padding(Group(*lines), (0, 0, 0, 4))]
    parts += [Text(""), Text(f"Run one:  memfit reproduce {results[-1].name}")]
    return render(Group(*parts), width, color)


def statements_part(statements: Sequence[Statement]) -> RenderableType:
    """Each statement below its verdict, with its source and the evidence."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, min_width=13)
    grid.add_column()
    for statement in statements:
        lines = [Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in evidence_lines(statement)]
        says = Text(f"{statement.says} ({statement.source})")
        grid.add_row(Text(statement.verdict, style=_STYLES[statement.verdict]), Group(says, *lines))
    return Group(Text("What the sources say, and whether it holds"), grid)


def evidence_lines(statement: Statement) -> list[str]:
    """The source's own figures, what was found here, and why there is no verdict."""
    published = [f"published: {statement.published}"] if statement.published else []
    return [*published, *statement.evidence, *([f"because {statement.reason}"] if statement.reason else [])]


# ---- offloading ------------------------------------------------------------------------------------------------------


def offloading_text(experiment: OffloadingExperiment, *, width: int, color: bool) -> str:
    """The whole comparison: the ranking, the statements, then every network at three budgets; 100 wide at least."""
    width = max(width, 100)
    parts: list[RenderableType] = [Text(_headline(experiment)), Text(""), _standings(experiment)]
    if experiment.statements:
        parts += [Text(""), statements_part(experiment.statements)]
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


# ---- edge: as Markdown, which a terminal and a page of docs both show ------------------------------------------------


def edge_text(tables: EdgeTables) -> str:
    """Everything, in the order of the questions."""
    sizes = format_bytes(tables.budget_bytes)
    parts = [
        "Memory of one step in GiB, everything kept (in brackets: the least that any nested plan takes); parameters,\n"
        "gradients and activations, computed from shapes, no optimizer state",
        _memory("by batch at 224x224", tables.by_batch, by_batch=True),
        _memory("by image size at batch 1", tables.by_size_alone, by_batch=False),
        _memory("by image size at batch 8", tables.by_size, by_batch=False),
        f"Time of a step within {sizes} over the plain step, batch 8. Equal layers: the published formulas, with as\n"
        "many layers as the name says; otherwise the network as it is",
        _prices(tables.prices),
        "What the sources say, and whether it holds",
        _statements(tables.statements),
        _worth(tables.worth) if tables.worth is not None else f"Is it worth it? {tables.not_worth_because}",
    ]
    return "\n\n".join(parts) + "\n"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _memory(title: str, cells: Sequence[MemoryCell], *, by_batch: bool) -> str:
    columns = list(dict.fromkeys(cell.batch_size if by_batch else cell.image_size for cell in cells))
    rows = []
    for network in dict.fromkeys(cell.network for cell in cells):
        own = [cell for cell in cells if cell.network == network]
        rows.append([network, *(f"{_gib(cell.plain_bytes)} ({_gib(cell.smallest_bytes)})" for cell in own)])
    return markdown([title, *map(str, columns)], rows)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}"


def _prices(prices: Sequence[Price]) -> str:
    heads = [
        "network", "image", "plain", "equal layers: slots", "sequential", "Revolve", "as it is: sequential", "Revolve",
        "optimal nested",
    ]  # fmt: skip
    return markdown(heads, (_price_row(price) for price in prices))


def _price_row(price: Price) -> list[str]:
    return [
        price.network, str(price.image_size), f"{_gib(price.plain_bytes)} GiB", str(price.linear_slots),
        *map(_times, (price.linear_sequential, price.linear_revolve, price.sequential, price.revolve, price.nested)),
    ]  # fmt: skip


def _times(ratio: float | None) -> str:
    return "does not fit" if ratio is None else f"x{ratio:.2f}"


def _statements(statements: Sequence[Statement]) -> str:
    lines = []
    for statement in statements:
        lines.append(f"- **{statement.verdict}**: {statement.says} ({statement.source})")
        lines += [f"  - {line}" for line in evidence_lines(statement)]
    return "\n".join(lines)


def _worth(worth: Worth) -> str:
    asked = worth.links[0]
    lines = [
        "Is it worth it?",
        "",
        f"{worth.images_per_day} images a day of {worth.image_bytes / 1e3:.0f} kB, seen {worth.num_epochs} time(s) by "
        f"{worth.network} at {worth.image_size}x{worth.image_size}, {worth.gflop_per_image:.1f} GFLOP for one forward "
        "of one image:",
        "",
        f"- training at {worth.device_gflops:g} GFLOP/s with the plan (x{worth.slowdown:.2f}): "
        f"{_hours(worth.train_hours)}, {worth.train_watt_hours:.1f} Wh at {worth.device_watts:g} W; "
        f"at most {worth.most_images_per_day} images in a day",
        f"- sending over {asked.mbit_per_second:g} Mbit/s: {_hours(asked.send_hours)}, "
        f"{asked.send_watt_hours:.1f} Wh at {worth.link_watts:g} W; {asked.verdict}",
        f"- sending takes as long as training at {worth.equal_mbit_per_second:.2g} Mbit/s",
        "",
        markdown(
            ["link", "sending a day's images", "energy", "so"],
            (
                [f"{s.mbit_per_second:g} Mbit/s", _hours(s.send_hours), f"{s.send_watt_hours:.1f} Wh", s.verdict]
                for s in sorted(worth.links, key=lambda speed: speed.mbit_per_second)
            ),
        ),
    ]
    return "\n".join(lines)


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 0.1 else f"{hours * 60:.1f} min"


# ---- hyperparameters: the published trials beside their re-run -------------------------------------------------------

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\n")}
RERUN_HEADS = (
    "row", "published", "here: system", "peak of the job", "spread", "average", "background", "lr", "epochs", "batch",
    "hidden layers",
)  # fmt: skip
"""One column for each hyperparameter: none is cut."""


def hyperparameters_text(found: HyperparameterTrials, *, width: int = 120, color: bool = False) -> str:
    """Every table beside its re-run, then the statements; 120 wide at least."""
    width = max(width, 120)
    parts = [rerun_text(rerun, width=width) for rerun in found.reruns]
    unsaid = [note for note in found.notes if all(note not in rerun.notes for rerun in found.reruns)]
    parts += ["\n".join(unsaid).translate(_CONTROLS) + "\n"] if unsaid else []
    if found.changes:
        parts.append(render(_changes_part(found), width, color))
    parts.append(render(statements_part(found.statements), width, color))
    if found.answers:
        parts.append(render(_answers_part(found), width, color))
    return "\n".join(parts)


def _changes_part(found: HyperparameterTrials) -> RenderableType:
    """One hyperparameter alone: the peak at each of its values."""
    made = table("network", "data", "changed alone", "from low to high: peak of the job", ">largest spread")
    for change in found.changes:
        peaks = [f"{level}: {short_text(peak)}" for level, peak in zip(change.levels, change.peaks, strict=True)]
        made.add_row(change.workload, change.data, change.name, ", ".join(peaks), _largest_spread(change.peaks))
    return Group(Text("One hyperparameter changed alone", style="bold"), made, Text(""))


def _largest_spread(figures: Sequence[Figure]) -> str:
    """Of several figures; unknown where one of them is."""
    if any(figure.low is None or figure.high is None for figure in figures):
        return "unknown"
    return _spread(max(figures, key=lambda figure: (figure.high or 0.0) - (figure.low or 0.0)))


def _answers_part(found: HyperparameterTrials) -> RenderableType:
    """What the source leaves to future work."""
    lines: list[RenderableType] = [Text(""), Text("What the source leaves to future work", style="bold")]
    for answer in found.answers:
        lines.append(Text(f"• {answer.question}"))
        said = answer.evidence or (f"unknown: {answer.reason}",)
        lines += [Padding(Text(line, style="dim"), (0, 0, 0, 4)) for line in said]
    return Group(*lines)


def optimizers_text(found: OptimizerResult, *, width: int = 80, color: bool = False) -> str:
    """The grid, the configurations nearest to the published peaks, then the statements; 100 wide at least."""
    width = max(width, 100)
    near = table("batch", "length", "attention", ">SGD", ">Adam", ">off", ">off ")
    for each in found.configurations:
        near.add_row(
            str(each.batch_size), str(each.length), each.attention, format_bytes(each.sgd_bytes),
            format_bytes(each.adam_bytes), f"{each.sgd_error:+.1%}", f"{each.adam_error:+.1%}",
        )  # fmt: skip
    title = "Under mixed precision, beside the published peaks of 4492.2 and 5000.7 MiB (allocated, predicted)"
    parts = [draw_grid(found.grid, width), Text(""), Text(title, style="bold"), near]
    if found.measured is not None:
        parts += [Text(""), *_trained_here(found), draw_grid(found.measured, width)]
    return render(Group(*parts, Text(""), statements_part(found.statements)), width, color)


def _trained_here(found: OptimizerResult) -> list[RenderableType]:
    """What was trained on this machine, for how long, and on which questions."""
    epochs = found.epochs
    if epochs is None:
        return []
    what = f"DistilBERT with {epochs.layers} layers, batch {epochs.batch_size}, length {epochs.length}"
    how_long = f"{epochs.num_epochs} epochs of {epochs.epoch_steps * epochs.batch_size} questions"
    return [Text(f"Trained here: {what}, {how_long}; {epochs.data}", style="bold")]


def pipelining_text(found: PipeliningResult, *, width: int = 80, color: bool = False) -> str:
    """Periods of the cuts beside each other, those with a shared rank, then the statements."""
    cuts = table("network", ">ranks", ">memory", ">exact", ">ignores memory", ">fixed rule")
    for row in found.comparisons:
        cuts.add_row(
            row.chain, str(row.num_ranks), format_bytes(row.memory_bytes), _period(row.exact_seconds),
            _multiple(row.blind_seconds, row.exact_seconds), _multiple(row.rule_seconds, row.exact_seconds),
        )  # fmt: skip
    title = "Time from one micro-batch to the next, and that of other cuts as a multiple; - does not fit"
    parts: list[RenderableType] = [Text(title, style="bold"), cuts]
    if found.shared:
        shared = table("network", ">ranks", ">memory", ">exact contiguous", ">with a shared rank")
        for row in found.shared:
            shared.add_row(
                row.chain, str(row.num_ranks), format_bytes(row.memory_bytes), _period(row.exact_seconds),
                _period(row.shared_seconds),
            )  # fmt: skip
        parts += [Text(""), Text("One rank with several stages", style="bold"), shared]
    return render(Group(*parts, Text(""), statements_part(found.statements)), width, color)


def _period(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _multiple(seconds: float | None, best: float | None) -> str:
    return "-" if seconds is None or not best else f"x {seconds / best:.2f}"


def rerun_text(rerun: Rerun, *, width: int = 80) -> str:
    """The published table beside the measured one, and the evidence for the cap."""
    rows = [
        (
            str(row.row),
            short_text(row.published),
            short_text(row.system),
            short_text(row.peak),
            _spread(row.peak),
            short_text(row.average),
            short_text(row.background),
            *(str(row.parameters.get(name, "-")) for name in ("lr", "epochs", "batch_size", "hidden")),
        )
        for row in rerun.rows
    ]
    lines = [f"{rerun.title}: the published trials and this machine", *columns(RERUN_HEADS, rows, max(width, 100))]
    lines += [
        "",
        f"Published: {rerun.source}; average of the system's used memory, other programs included.",
        *rerun.notes,
    ]
    return "\n".join([*lines, evidence_text(rerun)]).translate(_CONTROLS) + "\n"


def _spread(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return "unknown" if figure.value is not None else "-"
    return f"± {format_bytes((figure.high - figure.low) / 2)}"


def evidence_text(rerun: Rerun) -> str:
    """One sentence: does memory change after the second step?"""
    evidence = rerun.evidence
    if evidence.growth.value is None or evidence.share.value is None:
        return f"Whether memory changes after step 2 is not known: {evidence.growth.reason}."
    grown, share = format_bytes(evidence.growth.value), format_ratio(evidence.share.value)
    what = f"{evidence.num_trials} trials of at least {evidence.num_steps} steps"
    return f"Evidence: after step 2 no step's exact peak is more than {grown} ({share}) above it, in {what}."
