"""Comparisons: optimizers and techniques side by side on a job, or recorded runs side by side.

Bytes per parameter of optimizers: predicted on fake tensors, and measured on this CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.records.grid import Grid
    from memfit.records.optimizer_bytes import OptimizerTable

GridProgress = Callable[[str, int, int], None]
"""Called with what was just done, and how much of the work is over: so many of so many parts."""


@checked_options
def compare_recipes(
    target: str,
    *,
    settings: Mapping[str, Any] | Sequence[str] = (),
    arguments: Sequence[str] = (),
    optimizers: Sequence[str] = (),
    techniques: Sequence[str] = (),
    base: str | None = None,
    device: str = "cpu",
    memory: str | None = None,
    engine: Literal["auto", "fake", "phantom"] = "auto",
    measure: bool = False,
    num_steps: int = 5,
    budget_bytes: int | None = None,
    epoch_steps: int | None = None,
    num_workers: int = 2,
    output: str | Path | None = None,
    progress: GridProgress | None = None,
) -> Grid:
    """Predict a training under every optimizer and technique, and on request measure it; returns a grid of cells.

    `optimizers` are names of torch's ('adamw', 'sgd-momentum', 'adam-fused'), import paths, or 'own'; `techniques` are
    'plain', 'bf16', 'bf16+checkpoint', 'batch=8' and the like. Finished cells are kept in the folder `output`, and the
    same call goes on with them. `budget_bytes` asks for the fastest cell that fits.

    >>> grid = compare_recipes("jobs.py:make", optimizers=["adamw"], techniques=["checkpoint"])  # doctest: +SKIP
    >>> grid.cell("adamw", "checkpoint").why  # doctest: +SKIP
    """
    from memfit.compare.grid import compare
    from memfit.compare.options import CompareOptions
    from memfit.compare.rows_and_columns import OPTIMIZERS, OWN, TECHNIQUES, split_names
    from memfit.errors import UsageError
    from memfit.measure.instruction_sets import ask_processor
    from memfit.predict.options import PredictOptions
    from memfit.predict.predict import ask

    given = settings if isinstance(settings, Mapping) else tuple(settings)
    threads = 0 if measure else None  # as the measured cells have them
    asked = PredictOptions(device=device, memory=memory, engine=engine, threads=threads)
    question = ask(target, asked, settings=given, arguments=tuple(arguments), ask_processor=ask_processor)
    usual = (OWN,) if question.job.kind == "script" else OPTIMIZERS
    columns = TECHNIQUES[question.device.kind]
    options = CompareOptions(
        optimizers=split_names(optimizers) or usual, techniques=split_names(techniques) or columns, base=base,
        measure=measure, num_steps=num_steps, budget_bytes=budget_bytes, epoch_steps=epoch_steps,
        num_workers=num_workers,
    )  # fmt: skip
    if base is not None and base not in options.optimizers:
        raise UsageError("the base is no row of the grid", found=base, hint=f"one of {', '.join(options.optimizers)}")
    if measure and device != "cpu":
        raise UsageError("cells are measured on this CPU", found=device, hint="leave --device out, or --measure")
    if measure and output is None:
        raise UsageError("measured runs need a folder", hint="-o FOLDER")
    folder = None if output is None else Path(output)
    return compare(question, options, folder=folder, progress=progress or _unwatched)


def _unwatched(what: str, num_done: int, num_all: int) -> None:
    """Progress that is not shown."""


@checked_options
def compare_records(
    folders: Sequence[str | Path], *, budget_bytes: int | None = None, epoch_steps: int | None = None
) -> Grid:
    """Put recorded runs side by side, the first one as the base.

    >>> compare_records(["runs/adam", "runs/sgd"]).cells[1].why  # doctest: +SKIP
    """
    from memfit.compare.recorded_runs import grid_of_runs
    from memfit.runfolder.reader import read_run

    return grid_of_runs([read_run(folder) for folder in folders], budget_bytes=budget_bytes, epoch_steps=epoch_steps)


@checked_options
def read_grid(path: str | Path) -> Grid:
    """Read the grid.json that `memfit compare -o FOLDER` wrote.

    >>> read_grid("compare/grid.json").budget  # doctest: +SKIP
    """
    from memfit.records.grid import read_grid as read

    return read(path)


@checked_options
def write_grid(grid: Grid, folder: str | Path) -> tuple[Path, ...]:
    """Write a grid into a folder: the record, its table as text, CSV and Markdown, its figures and a page.

    Without matplotlib there are no figures, neither in the page nor beside it.

    >>> write_grid(grid, "compare")  # doctest: +SKIP
    """
    from importlib.util import find_spec

    from memfit.show.export.compare_files import write_tables
    from memfit.show.new_file import write_bytes
    from memfit.show.page.grid_page import grid_page

    written, figures = write_tables(grid, Path(folder)), ()
    if find_spec("matplotlib") is not None:
        from memfit.show.figures.grid import draw_grid_figures

        figures = draw_grid_figures(grid, folder)
    page = grid_page(grid, [path for path in figures if path.suffix == ".svg"])
    return (*written, *figures, write_bytes(Path(folder) / "grid.html", page.encode()))


@checked_options
def optimizer_bytes(
    names: Sequence[str] = (),
    *,
    device: str | Sequence[str] = ("cpu", "cuda"),
    measure: bool = True,
    only: str = "",
    num_processes: int = 2,
    kept_in: str | Path | None = None,
    only_kept: bool = False,
    tell: Callable[[str], None] | None = None,
) -> OptimizerTable:
    """What optimizers keep and what their step takes; without names, those of torch and of all packages that are here.

    `only` is a package ('torch', 'pytorch_optimizer', 'torchao', 'bitsandbytes'). A file `kept_in` makes it resumable;
    with `only_kept` its runs are shown and none is made.
    A training without an optimizer ('none') is always among the runs: the others are compared with it.

    >>> table = optimizer_bytes(["adamw", "muon+adamw", "pytorch_optimizer.Lion"], device="cpu")  # doctest: +SKIP
    >>> table.run_of("adamw", "square", "cpu", "measured").state_bytes  # doctest: +SKIP
    """
    from memfit.compare.optimizer_table.optimizer_bytes import fill_table
    from memfit.compare.optimizer_table.torch_optimizer_names import optimizer_names
    from memfit.job.recipes.optimizer_names import NO_OPTIMIZER

    left_out: dict[str, str] = {}
    asked = [NO_OPTIMIZER, *names]
    if not names:
        asked, left_out = optimizer_names(only)
    devices = (device,) if isinstance(device, str) else tuple(device)
    path = None if kept_in is None else Path(kept_in)
    return fill_table(
        asked,
        devices=devices,
        measure=measure,
        num_processes=num_processes,
        kept_in=path,
        only_kept=only_kept,
        left_out=left_out,
        tell=tell,
    )
