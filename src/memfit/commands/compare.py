"""`memfit compare`: optimizers and techniques side by side, predicted, measured, and the cheapest that fits."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from memfit.commands.shared.options import BYTES, complete_files, json_option, output_option, quiet_option, set_option
from memfit.commands.shared.output import write_record
from memfit.errors import DoesNotFit, UsageError

if TYPE_CHECKING:
    from memfit.records.grid import Grid

EXAMPLES = """\b
Examples:
  memfit compare jobs.py:make --optimizer adamw,sgd --technique plain,checkpoint
  memfit compare distilbert --set batch_size=16 --device cuda:rtx3060-12gb
  memfit compare jobs.py:make --budget 8GiB -o grid
  memfit compare gpt --optimizer adamw --technique plain,bf16 --measure -o grid
  memfit compare runs/adam runs/sgd

\b
Techniques, together with a plus (bf16+checkpoint+batch=8):
  plain, bf16, fp16, pure-bf16, checkpoint, batch=N, accumulate=N, clip=X,
  keep-gradients, step-in-backward, chunked-loss, lora=N; on a GPU
  optimizer-on-host, offload-activations, compile; on a CPU pinned-malloc
"""


@click.command("compare", epilog=EXAMPLES)
@click.argument("targets", nargs=-1, required=True, shell_complete=complete_files)
@output_option("Folder for the grid, its tables and figures; finished cells are kept there.")
@set_option
@click.option(
    "--optimizer", "optimizers", multiple=True, metavar="NAME",
    help="Row: adamw, sgd-momentum, adam-fused, an import path, or own; repeatable, or with commas.",
)  # fmt: skip
@click.option(
    "--technique", "techniques", multiple=True, metavar="NAME",
    help="Column: plain, bf16, checkpoint, batch=8 and others below; repeatable, or with commas.",
)  # fmt: skip
@click.option("--base", metavar="NAME", help="The optimizer you use now [default: the first].")
@click.option(
    "--device", metavar="DEVICE", default="cpu", show_default=True,
    help="The device: cpu, cuda, cuda:NAME or NAME alone, such as a100-40gb.",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice(["auto", "fake", "phantom"]), default="auto", show_default=True,
    help="Fake tensors, or torch's CUDA build on a phantom GPU; auto takes the phantom where torch has CUDA.",
)  # fmt: skip
@click.option("--measure", is_flag=True, help="Also train every cell here and put both figures side by side.")
@click.option(
    "--steps", "num_steps", type=click.IntRange(2, 10000), default=5, show_default=True, metavar="N",
    help="Optimizer steps of a measured cell.",
)  # fmt: skip
@click.option("--epoch-steps", type=click.IntRange(1), metavar="N", help="Steps of an epoch, for its time.")
@click.option(
    "--budget", "budget_bytes", type=BYTES, metavar="SIZE",
    help="What the step may take, for example 8GiB.",
)  # fmt: skip
@quiet_option
@json_option
def command(targets: tuple[str, ...], output: str | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Put optimizers and techniques side by side on TARGET (FILE:function, a workload, a script), or runs side by side.

    Every cell is predicted; with --measure it is trained here as well. The same command with the same -o goes on where
    it stopped.
    """
    from memfit import api
    from memfit.show.terminal.grid import grid_text

    target, arguments = targets[0], targets[1:]
    if _are_runs(targets):
        _refuse_options(targets)
        grid = api.compare_records(
            targets, budget_bytes=options["budget_bytes"], epoch_steps=options["epoch_steps"]
        )  # fmt: skip
    else:
        grid = _filled(target, arguments, output, quiet, options)
    write_record(grid, partial(grid_text, grid), as_json=as_json)
    if output is not None:
        for path in api.write_grid(grid, output):
            click.echo(f"  written: {path}", err=True)
    _end(grid)


def _are_runs(targets: tuple[str, ...]) -> bool:
    return all(os.path.isfile(Path(target) / "run.json") for target in targets)


OF_TRAININGS = ("optimizers", "techniques", "base", "measure", "settings", "device", "engine", "num_steps")


def _refuse_options(targets: tuple[str, ...]) -> None:
    """Runs are compared as they are: an option that only a training can obey is refused."""
    context = click.get_current_context()
    given = [
        option
        for option in context.command.params
        if option.name in OF_TRAININGS and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        names = ", ".join(option.opts[0] for option in given)
        raise UsageError(
            f"runs are compared as they were measured, without {names}",
            found=f"{', '.join(targets)}: a folder with a run",
            hint="leave the options out; where a workload is meant, run memfit in a folder without a run of this name",
        )


def _filled(target: str, arguments: tuple[str, ...], output: str | None, quiet: bool, options: dict[str, Any]) -> Grid:
    from memfit import api
    from memfit.show.progress.line import ShareLine

    line = None if quiet else ShareLine()

    def tell(what: str, num_done: int, num_all: int) -> None:
        if line is not None:
            line.show(what, num_done / num_all)

    try:
        return api.compare_recipes(target, arguments=arguments, output=output, progress=tell, **options)
    finally:
        if line is not None:
            line.close()


def _end(grid: Grid) -> None:
    """Exit codes of a grid that was interrupted, that has no figure, or in which nothing fits."""
    if grid.was_interrupted:
        click.echo("memfit: interrupted; with -o FOLDER the same command goes on", err=True)
        sys.exit(130)
    if not any(cell.figures for cell in grid.cells):
        sys.exit(1)
    if grid.budget is not None and grid.budget.fastest is None:
        smallest = grid.budget.smallest
        found = "nothing is known" if smallest is None else f"{smallest.optimizer}, {smallest.technique} takes least"
        raise DoesNotFit(
            "no cell fits the budget", limit_bytes=grid.budget.budget_bytes, found=found,
            hint="more techniques together (bf16+checkpoint+accumulate=8), a smaller batch=N, or memfit fit",
        )  # fmt: skip
