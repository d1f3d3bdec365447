"""docs/optimizers.md, written from the table of bytes: how to read it, what surprises, every row, what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from memfit.records.optimizer_bytes import OptimizerTable
from memfit.show.export.compare_files import optimizers_markdown, per_parameter
from memfit.show.views.optimizer_rows import OptimizerFigures, OptimizerLine, optimizer_lines

HOW = Path(__file__).with_name("optimizers_head.md")


def optimizer_page(table: OptimizerTable) -> str:
    """The whole page."""
    lines = optimizer_lines(table)
    packages = f", {', '.join(table.packages)}" if table.packages else ""
    shown = list(dict.fromkeys(line.package for line in lines))
    ordered = sorted(shown, key=lambda package: (not package.startswith("torch "), package))
    parts = [
        "# Optimizers: bytes per parameter",
        HOW.read_text(encoding="utf-8").format(torch=table.torch_version, packages=packages),
        f"## In short\n\n{_counts(table, lines)}\n\n{_surprises(lines)}",
        optimizers_markdown(table, ordered),
        f"## Where predicted and measured differ\n\n{_differences(lines)}",
        f"## What is missing\n\n{_missing(table, lines)}",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _counts(table: OptimizerTable, lines: list[OptimizerLine]) -> str:
    compared = [line for line in lines if line.difference_bytes is not None]
    equal = sum(line.difference_bytes == 0 for line in compared)
    on_gpu = sum(line.gpu is not None for line in lines)
    return (
        f"{len(lines)} optimizers and variants; {len(compared)} of them both predicted and measured on the CPU, "
        f"{equal} with peaks equal to the byte; {on_gpu} predicted for a GPU."
    ) + _not_run(table)


def _not_run(table: OptimizerTable) -> str:
    if not table.num_not_run:
        return ""
    return (
        f" **Not complete: {table.num_not_run} of {table.num_not_run + len(table.runs)} runs have not been made yet**; "
        "their figures are `-`, and the command above goes on with them."
    )


def _surprises(lines: list[OptimizerLine]) -> str:
    adamw = next((line.cpu for line in lines if line.optimizer == "adamw" and line.cpu), None)
    limit = adamw.added if adamw else 10.0
    groups: list[tuple[str, Callable[[OptimizerFigures], bool], Callable[[OptimizerFigures], float]]] = [
        ("Take *less* than no optimizer, since gradients never live together", lambda f: f.added < -0.5, _added),
        ("Keep less than half a byte although they adapt to every parameter or row", _is_small, _state),
        ("Keep more than 16 bytes, twice what Adam does", lambda f: f.state > 16.05, _state),
        ("Small state, large step: add four bytes and more beyond what they keep", _has_large_step, _added),
        ("State that hangs on the shape: tall matrices cost another amount", _is_shaped, _tall),
        ("Need more in the first step than ever again", lambda f: f.first_added > f.added + 0.05, _first),
    ]
    parts = [
        f"AdamW keeps 8 bytes and adds {per_parameter(limit)} in this training. Beside that (bytes in parentheses):\n"
    ]
    for title, belongs, figure in groups:
        found = [(line, line.cpu) for line in lines if line.cpu is not None and belongs(line.cpu)]
        if found:
            parts.append(f"- **{title}**: {_listed((line.optimizer, figure(figures)) for line, figures in found)}.")
    return "\n".join(parts)


def _listed(found: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"`{name.removeprefix('pytorch_optimizer.')}` ({per_parameter(value)})" for name, value in found)


def _added(figures: OptimizerFigures) -> float:
    return figures.added


def _state(figures: OptimizerFigures) -> float:
    return figures.state


def _tall(figures: OptimizerFigures) -> float:
    return figures.tall_state or 0.0


def _first(figures: OptimizerFigures) -> float:
    return figures.first_added


def _is_small(figures: OptimizerFigures) -> bool:
    return 0.002 < figures.state < 0.5


def _has_large_step(figures: OptimizerFigures) -> bool:
    return figures.state < 4.1 and figures.added - figures.state > 4.0


def _is_shaped(figures: OptimizerFigures) -> bool:
    return figures.tall_state is not None and abs(figures.tall_state - figures.state) > 0.05 * max(figures.state, 1.0)


def _differences(lines: list[OptimizerLine]) -> str:
    rows = ["| optimizer | predicted - measured, bytes | why |", "|---|--:|---|"]
    for line in lines:
        if line.difference_bytes:
            rows.append(f"| `{line.optimizer}` | {line.difference_bytes:+,} | {why_different(line)} |")
    return "\n".join(rows) if len(rows) > 2 else "Nowhere."


def why_different(line: OptimizerLine) -> str:
    """The reason, as far as it is known."""
    if line.package.startswith("bitsandbytes"):
        return "its CPU operator makes float32 copies inside, which a prediction does not look into"
    guesses = [note for note in line.notes if "asked for" in note]
    if guesses:
        return "decides by values, which a prediction does not have: " + "; ".join(guesses)
    return "not known"


def _missing(table: OptimizerTable, lines: list[OptimizerLine]) -> str:
    rows = ["| optimizer | what, and why |", "|---|---|"]
    rows += [f"| `{name}` | all: {reason} |" for name, reason in table.left_out.items()]
    for line in lines:
        notes = [note for note in line.notes if "asked for" not in note]
        if notes:
            rows.append(f"| `{line.optimizer}` | {'; '.join(notes).replace('|', '/')} |")
    return "\n".join(rows) if len(rows) > 2 else "Nothing."
