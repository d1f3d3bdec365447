"""`memfit pipeline`: where to cut a network over ranks, what each rank holds and why, and the schedule as a picture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from memfit.commands.shared.options import (
    BYTES,
    SECONDS,
    SPEED,
    complete_files,
    force_option,
    json_option,
    output_option,
    quiet_option,
    set_option,
)
from memfit.commands.shared.output import write_record
from memfit.errors import DoesNotFit, MemfitError
from memfit.units import format_bytes

if TYPE_CHECKING:
    from memfit.records.pipeline import PipelinePlan

EXAMPLES = """\b
Examples:
  memfit pipeline graph.txt --ranks 4 --memory 16GiB --link 12GB/s
  memfit pipeline jobs.py:make --ranks 4 --memory 2GiB --link 1GB/s --micro-batches 8
  memfit pipeline gpt --ranks 2 --memory 1GiB --link 1GB/s --schedule 1f1b -o plan
  memfit pipeline gpt --ranks 2 --memory 1GiB --link 1GB/s --schedule 1f1b --run
  memfit pipeline graph.txt --ranks 4 --memory 16GiB --link 12GB/s --explain 0,10,20,30,40

\b
Layouts for --explain:
  0,10,20,40       where each stage begins, and the number of layers (DeepSpeed)
  10x10x20         layers of each stage
  Ett|(tt|)*6mL    one letter for each layer (Megatron)
"""


SCHEDULES = [
    "best", "gpipe", "1f1b", "interleaved-1f1b", "interleaved-zero-bubble", "zbv-zero-bubble", "dualpipev",
]  # fmt: skip


@click.command("pipeline", epilog=EXAMPLES)
@click.argument("target", metavar="FILE", shell_complete=complete_files)
@output_option("Folder for the plan, a picture of the schedule, and the layouts that others read.")
@force_option
@set_option
@click.option("--ranks", "num_ranks", type=click.IntRange(1, 4096), required=True, metavar="N", help="Processes.")
@click.option(
    "--memory", "memory_bytes", type=BYTES, multiple=True, required=True, metavar="SIZE",
    help="Memory of every rank, for example 16GiB; repeated, one for each.",
)  # fmt: skip
@click.option(
    "--link", "link_bytes_per_second", type=SPEED, required=True, metavar="SPEED",
    help="Between neighbouring ranks, for example 12GB/s or 100Gbit/s.",
)  # fmt: skip
@click.option("--latency", "latency_seconds", type=SECONDS, default=0.0, metavar="TIME", help="Of each transfer.")
@click.option("--full-duplex", is_flag=True, help="Activations and gradients travel at the same time.")
@click.option(
    "--micro-batches", "num_micro_batches", type=click.IntRange(1), metavar="N",
    help="Of one step [default: 8, or two for each rank].",
)  # fmt: skip
@click.option(
    "--schedule", type=click.Choice(SCHEDULES), default="best", show_default=True,
    help="Plan for a schedule of torch.distributed.pipelining; best finds an order of its own.",
)  # fmt: skip
@click.option(
    "--planner", default="best", show_default=True,
    help="Who cuts: exact, special (one rank may hold several stages), joint, or a rule; see docs/pipeline.md.",
)  # fmt: skip
@click.option("--explain", metavar="LAYOUT", help="Explain a cut that you have, instead of planning one.")
@click.option("--recompute", is_flag=True, help="Stages may drop activations and compute them again.")
@click.option(
    "--host-link", "host_bytes_per_second", type=SPEED, metavar="SPEED",
    help="Stages may also move activations to the host at this speed.",
)  # fmt: skip
@click.option(
    "--weights", "weight_rule", type=click.Choice(["flush", "2bw", "stash"]), default="flush", show_default=True,
    help="Versions of the weights: one, two, or one for each micro-batch in flight.",
)  # fmt: skip
@click.option(
    "--optimizer-copies", type=click.IntRange(0, 8), default=0, show_default=True, metavar="N",
    help="Of a profile: values that the optimizer keeps for each parameter, 2 for Adam.",
)  # fmt: skip
@click.option(
    "--cuts", type=click.Choice(["auto", "single", "all"]), default="auto", show_default=True,
    help="Of a profile: cut where one tensor crosses, or anywhere.",
)  # fmt: skip
@click.option("--count-in-place", is_flag=True, help="Of a profile: count outputs of in-place operations again.")
@click.option(
    "--runtime", type=click.Choice(["auto", "torch", "ideal"]), default="auto", show_default=True,
    help="Buffers of transfers: those of the installed torch, or two for each neighbour.",
)  # fmt: skip
@click.option(
    "--device", metavar="DEVICE",
    help="Predict the layers for this device, such as cuda:a100-40gb, instead of measuring them here.",
)  # fmt: skip
@click.option("--run", "is_run", is_flag=True, help="Run the plan here, one process for each rank, and measure it.")
@quiet_option
@json_option
@click.pass_context
def command(
    context: click.Context, output: str | None, force: bool, quiet: bool, as_json: bool, is_run: bool, **_: object
) -> None:
    """Cut a network over ranks: the fastest pipeline that fits their memory, and why the fullest rank is the fullest.

    FILE is a profile (PipeDream's graph.txt), a workload, or FILE:function. Exit code 3 when nothing fits, with the
    least memory or number of ranks that would do.
    """
    from memfit import api
    from memfit.show.new_file import check_new
    from memfit.show.terminal.pipeline import pipeline_text

    if is_run:
        from memfit.api.pipeline_run import refuse_torchrun

        refuse_torchrun()
    if output is not None:
        check_new(output, overwrite=force)
    mine = {"output", "force", "quiet", "as_json", "is_run"}
    plan = api.plan_pipeline(**{name: value for name, value in context.params.items() if name not in mine})
    if not is_run and (as_json or not quiet):
        write_record(plan, partial(pipeline_text, plan), as_json=as_json)
    if output is not None:
        written = api.write_pipeline(plan, output)
        if not (as_json or quiet):
            click.echo("\nWritten: " + ", ".join(str(path) for path in written))
    if is_run:
        _run(plan, quiet=quiet, as_json=as_json)
    _end(plan)


def _run(plan: PipelinePlan, *, quiet: bool, as_json: bool) -> None:
    """Run the plan and show each rank, predicted beside measured; a rank that died is an error."""
    from memfit import api
    from memfit.show.terminal.pipeline import pipeline_run_text, pipeline_text

    if not (as_json or quiet):
        write_record(plan, partial(pipeline_text, plan))
    run = api.run_plan(plan)
    if as_json or not quiet:
        write_record(run, partial(pipeline_run_text, run), as_json=as_json)
    dead = run.dead
    if dead is not None:
        where = f"in step {dead.died_in_step}" if dead.died_in_step else "before its first step"
        raise MemfitError(
            f"rank {dead.rank} died {where}, after {dead.died_after_seconds or 0:.1f} s; the others were ended",
            found=dead.ended, hint="what it printed last stands above",
        )  # fmt: skip


def _end(plan: PipelinePlan) -> None:
    """A layout of the user's that does not fit ends with exit code 3."""
    if plan.fits:
        return
    worst = max(plan.ranks, key=lambda rank: rank.total_bytes - (rank.limit_bytes or 0))
    raise DoesNotFit(
        f"rank {worst.rank} does not fit", limit_bytes=worst.limit_bytes or 0, needed_bytes=worst.total_bytes,
        found=f"{format_bytes(worst.total_bytes)} of {format_bytes(worst.limit_bytes or 0)}",
        hint="the same command without --explain plans a cut that fits",
    )  # fmt: skip
