"""`memfit reproduce`: published results run again, each statement of their sources with evidence and a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memfit.commands.shared.options import BYTES, FC, SPEED, force_option, json_option, output_option, quiet_option
from memfit.commands.shared.output import write_record
from memfit.errors import MissingExtra

if TYPE_CHECKING:
    from memfit.records.reproduction import (
        EdgeTables,
        HyperparameterTrials,
        OffloadingExperiment,
        OptimizerResult,
        PipeliningResult,
    )
    from memfit.show.text_output import Compose

    Reproduced = OffloadingExperiment | EdgeTables | HyperparameterTrials | OptimizerResult | PipeliningResult

Found = TypeVar("Found")

EPILOG = """\b
Examples:
  memfit reproduce                          list the results with their sources
  memfit reproduce edge --link-mbit 5 --device-watts 8
  memfit reproduce offloading --network vgg16 --points 4
  memfit reproduce hyperparameters --data mnist --steps 20

Each result has options of its own: memfit reproduce NAME --help.
"""
POSITIVE = click.FloatRange(min=0, min_open=True)


@click.group(epilog=EPILOG, invoke_without_command=True, subcommand_metavar="[NAME] [OPTIONS]")
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Run a published result again, and judge each statement of its source; without NAME, list the results."""
    if context.invoked_subcommand is not None:
        if as_json:
            name = context.invoked_subcommand
            raise click.UsageError(f"write --json behind the name: memfit reproduce {name} --json")
        return
    from memfit import api
    from memfit.show.terminal.reproduction import results_text

    results = api.list_reproductions()
    write_record(results, lambda width, color: results_text(results, width=width, color=color), as_json=as_json)


def _folder_option(name: str) -> Callable[[FC], FC]:
    return output_option(f"Folder to write [default: reproduce-{name}].", f"reproduce-{name}")


def _network_option(example: str) -> Callable[[FC], FC]:
    text = f"Only this network, such as {example}; repeatable."
    return click.option("--network", "networks", multiple=True, metavar="NAME", callback=_names, help=text)


def _names(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _points_option(default: int) -> Callable[[FC], FC]:
    kind = click.IntRange(2)
    text = "Budgets of each curve."
    return click.option("--points", "num_points", type=kind, metavar="N", default=default, show_default=True, help=text)


@command.command("offloading")
@_folder_option("offloading")
@force_option
@_network_option("vgg16")
@_points_option(7)
@click.option("--device", metavar="DEVICE", default="cuda:v100-16gb", show_default=True, help="A GPU of the table.")
@click.option(
    "--bandwidth", "bandwidths", type=BYTES, multiple=True, metavar="SIZE",
    help="Bytes per second of the link; repeatable [default: 12GB 25GB 50GB].",
)  # fmt: skip
@quiet_option
@json_option
def offloading(output: str, force: bool, bandwidths: tuple[int, ...], quiet: bool, as_json: bool, **asked: Any) -> None:
    """All planners on standard networks, over budgets and links to the host; predicted and simulated."""
    from memfit import api
    from memfit.show.terminal.reproduction import offloading_text

    speeds: dict[str, Any] = {"bandwidths": bandwidths} if bandwidths else {}
    found = _followed(lambda show: api.reproduce_offloading(**asked, **speeds, progress=show), output, force, quiet)
    _show_and_write(found, partial(offloading_text, found), output, as_json, quiet)


@command.command("edge")
@_folder_option("edge")
@force_option
@_network_option("resnet18")
@_points_option(9)
@click.option(
    "--budget", "budget_bytes", type=BYTES, metavar="SIZE", default="2GiB", show_default=True,
    help="What the step may take, for example 8GiB.",
)  # fmt: skip
@click.option("--link-mbit", type=POSITIVE, metavar="X", default=10.0, show_default=True, help="Speed of the link.")
@click.option("--link-watts", type=POSITIVE, metavar="X", default=2.0, show_default=True, help="Power while it sends.")
@click.option("--device-gflops", type=POSITIVE, metavar="X", default=20.0, show_default=True, help="10^9 op/s reached.")
@click.option("--device-watts", type=POSITIVE, metavar="X", default=10.0, show_default=True, help="Power in training.")
@click.option(
    "--images-per-day", type=click.IntRange(1), metavar="N", default=5000, show_default=True, help="To train on."
)
@click.option(
    "--image-size", "image_bytes", type=BYTES, metavar="SIZE", default="250kB", show_default=True,
    help="One image as it is sent.",
)  # fmt: skip
@click.option(
    "--passes", "num_epochs", type=click.IntRange(1), metavar="N", default=1, show_default=True,
    help="Over a day's images.",
)  # fmt: skip
@quiet_option
@json_option
def edge(output: str, force: bool, quiet: bool, as_json: bool, **asked: Any) -> None:
    """Training a ResNet on a small device: memory, the price of fitting, and whether it is worth it."""
    from memfit import api
    from memfit.show.terminal.reproduction import edge_text

    found = _followed(lambda show: api.reproduce_edge(**asked, progress=show), output, force, quiet)
    _show_and_write(found, lambda width, color: edge_text(found), output, as_json, quiet)


@command.command("hyperparameters")
@_folder_option("hyperparameters")
@force_option
@click.option(
    "--data", multiple=True, type=click.Choice(["mnist", "fashion-mnist", "cifar-10"]),
    help="Only this table; repeatable [default: all three].",
)  # fmt: skip
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", default=20, show_default=True,
    help="Cap the optimizer steps of every trial.",
)  # fmt: skip
@click.option(
    "--part", "parts", multiple=True, type=click.Choice(["tables", "single-changes", "future-work"]),
    help="Only this part; repeatable [default: all three].",
)  # fmt: skip
@click.option("--whole", is_flag=True, help="Train all published epochs instead (hours).")
@click.option("--random", "num_random", type=click.IntRange(1), metavar="N", help="N new points of the same ranges.")
@click.option(
    "--repeat", "replicates", type=click.IntRange(1), metavar="N", default=3, show_default=True,
    help="Run every point N times.",
)  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), metavar="N", default=1, help="Trials at a time [default: 1].")
@click.option("--seed", type=int, metavar="N", default=0, help="Of the order and of new points [default: 0].")
@quiet_option
@json_option
def hyperparameters(
    output: str, force: bool, steps: int, whole: bool, quiet: bool, as_json: bool, parts: tuple[str, ...], **asked: Any
) -> None:
    """Published trials on MNIST, Fashion-MNIST and CIFAR-10, each measured here, beside the published numbers.

    Then trials that change one hyperparameter alone, also of convolutional networks, and what the source leaves to
    future work: the cause by layer, GANs, other learners, energy.

    The same command in the same place goes on where it stopped.
    """
    from memfit import api
    from memfit.show.progress.study import StudyProgress
    from memfit.show.terminal.reproduction import hyperparameters_text

    progress = StudyProgress(quiet=quiet)
    if parts:
        asked["parts"] = parts
    try:
        found = api.reproduce_hyperparameters(
            **asked, output=output, overwrite=force, steps=None if whole else steps, progress=progress
        )
    finally:
        progress.close()
    _show_and_write(found, partial(hyperparameters_text, found), output, as_json, quiet)
    _say_interrupted(found.was_interrupted)


def _say_interrupted(was_interrupted: bool) -> None:
    if was_interrupted:
        click.echo("memfit: interrupted; nothing is lost, the same command goes on", err=True)
        sys.exit(130)


@command.command("optimizers")
@_folder_option("optimizers")
@click.option("--device", metavar="DEVICE", default="cuda:a100-40gb", show_default=True, help="A GPU of the table.")
@click.option(
    "--engine", type=click.Choice(["auto", "fake", "phantom"]), default="fake", show_default=True,
    help="Fake tensors, or torch's CUDA build on a phantom GPU; auto takes the phantom where torch has CUDA.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(4), metavar="N", default=16, show_default=True, help="Questions.")
@click.option("--length", type=click.IntRange(8, 512), metavar="N", default=384, show_default=True, help="Tokens.")
@click.option("--measure", is_flag=True, help="Also train a smaller one here, for two short epochs.")
@click.option(
    "--layers", type=click.IntRange(1, 12), metavar="N", default=2, show_default=True,
    help="Layers of the one that is trained here; DistilBERT has 6.",
)  # fmt: skip
@click.option(
    "--train-length", type=click.IntRange(8, 512), metavar="N", default=64, show_default=True,
    help="Tokens of a question of the one that is trained here.",
)  # fmt: skip
@click.option(
    "--epoch-steps", type=click.IntRange(1), metavar="N", default=6, show_default=True,
    help="Steps of an epoch that is trained here, 8 questions each.",
)  # fmt: skip
@click.option(
    "--squad", type=click.Path(), metavar="PATH",
    help="A SQuAD file, or a folder with one and vocab.txt [default: squad in MEMFIT_DATA, else synthetic].",
)  # fmt: skip
@quiet_option
@json_option
def optimizers(output: str, quiet: bool, as_json: bool, **asked: Any) -> None:
    """DistilBERT under SGD, Adam and relatives, with mixed precision, checkpoints, batch size and accumulation.

    The same command in the same place goes on where it stopped.
    """
    from memfit import api
    from memfit.show.terminal.reproduction import optimizers_text

    found = _followed(lambda show: api.reproduce_optimizers(**asked, output=output, progress=show), output, True, quiet)
    _show_and_write(found, partial(optimizers_text, found), output, as_json, quiet)
    _say_interrupted(found.was_interrupted)


@command.command("pipelining")
@_folder_option("pipelining")
@force_option
@_network_option("vgg16")
@click.option(
    "--graph", "graphs", type=click.Path(), multiple=True, metavar="FILE",
    help="A profile of PipeDream (graph.txt) in the place of predicted networks; repeatable.",
)  # fmt: skip
@click.option("--device", metavar="DEVICE", default="cuda:v100-16gb", show_default=True, help="A GPU of the table.")
@click.option(
    "--link", "link_bytes_per_second", type=SPEED, default="12GB/s", show_default=True, metavar="SPEED",
    help="Between neighbouring ranks, for example 12GB/s or 100Gbit/s.",
)  # fmt: skip
@quiet_option
@json_option
@click.pass_context
def pipelining(context: click.Context, output: str, force: bool, quiet: bool, as_json: bool, **_: object) -> None:
    """Pipelines within the memory of their ranks, beside cuts that ignore it; planned and simulated."""
    from memfit import api
    from memfit.show.terminal.reproduction import pipelining_text

    mine = {"output", "force", "quiet", "as_json"}
    asked = {name: value for name, value in context.params.items() if name not in mine}
    found = _followed(lambda show: api.reproduce_pipelining(**asked, progress=show), output, force, quiet)
    _show_and_write(found, partial(pipelining_text, found), output, as_json, quiet)


def _followed(
    run: Callable[[Callable[[str, float], None] | None], Found], output: str, force: bool, quiet: bool
) -> Found:
    """Refuse to replace what is there, then run with a line of progress on a terminal."""
    from memfit.show.new_file import check_new
    from memfit.show.progress.line import ShareLine

    check_new(output, overwrite=force)
    line = ShareLine()
    try:
        return run(None if quiet else line.show)
    finally:
        line.close()


def _show_and_write(found: Reproduced, compose: Compose, folder: str, as_json: bool, quiet: bool) -> None:
    """Print it, and leave its files in the folder; without matplotlib there are no curves."""
    from memfit import api

    if as_json or not quiet:
        write_record(found, compose, as_json=as_json)
    try:
        written = api.write_reproduction(found, folder)
    except MissingExtra as error:
        click.echo(f"memfit: no curves: {error}", err=True)
        return
    if not (as_json or quiet):
        click.echo("\nWritten: " + ", ".join(str(path) for path in written))
