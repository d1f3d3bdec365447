"""`memfit predict`: the memory of a training that has not been run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import click

from memfit.commands.shared.options import MOST_THREADS, SECONDS, complete_files, json_option, set_option
from memfit.commands.shared.output import write_record
from memfit.errors import DoesNotFit, MemfitError, UsageError
from memfit.records.prediction import RankPredictions

_Option = TypeVar("_Option")


class Rank(click.ParamType):
    """A number, or 'all'."""

    name = "rank"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int):
            return value
        if isinstance(value, str) and (value == "all" or value.isdigit()):
            return value if value == "all" else int(value)
        raise UsageError(f"{value!r} is no rank", hint="--rank 0, --rank 1, ... or --rank all")


RANK = Rank()
EXAMPLES = """\b
Examples:
  memfit predict train.py -- --batch-size 64
  memfit predict jobs.py:make --set batch_size=64 --device cuda:a100-40gb
  memfit predict train.py --lengths auto --device cuda:rtx4090-24gb
  memfit predict train.py --ranks 8 --rank all --device cuda:h100-80gb
  memfit predict gpt --set layers=12 --set width=768 --device cuda --memory 24GiB"""


@click.command("predict", epilog=EXAMPLES)
@click.argument("target", shell_complete=complete_files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
@set_option
@click.option(
    "--device", metavar="DEVICE", default="cpu", show_default=True,
    help="The device: cpu, cuda, cuda:NAME or NAME alone, such as a100-40gb.",
)  # fmt: skip
@click.option(
    "--memory", metavar="SIZE", help="Memory of the device, for example 24GiB; exit code 3 if it does not fit."
)
@click.option(
    "--steps", "num_steps", type=click.IntRange(1, 100), metavar="N",
    help="Optimizer steps to trace [default: 2; scripts 3].",
)  # fmt: skip
@click.option(
    "--malloc", type=click.Choice(["default", "pinned"]), default="default", help="The C heap's setting (cpu)."
)
@click.option("--alloc-conf", default="", metavar="TEXT", help="As PYTORCH_ALLOC_CONF (cuda).")
@click.option(
    "--threads", type=click.IntRange(0, MOST_THREADS), metavar="N",
    help="Threads of the real run's operators; 0 for torch's choice here [default: 1, and a range up to that] (cpu).",
)  # fmt: skip
@click.option("--no-probes", "probes", flag_value=False, default=True, help="Run no operator for real (cpu).")
@click.option(
    "--allow-real", multiple=True, metavar="OPERATOR", help="Run this operator, which has no fake kernel, for real."
)
@click.option("--unknown-is", type=bool, default=True, help="The answer to a boolean that is not known.")
@click.option("--sweep", metavar="NAME=LOW:HIGH", help="The peak over one setting, for example batch_size=1:256.")
@click.option("--fit-batch", is_flag=True, help="The largest batch_size that fits the device.")
@click.option(
    "--lengths",
    metavar="FILE|auto",
    help="Peaks over the data's lengths: those listed in FILE ({length} stands for one), or of a script's own batches.",
)
@click.option("--ranks", type=int, default=1, metavar="N", help="One rank of N; the batch is that rank's own.")
@click.option(
    "--rank", type=RANK, default=0, metavar="R|all", help="Which rank, from 0 on; all for each one that differs."
)
@click.option("--shard", metavar="HOW", help="Put on a function or workload: ddp, zero1, zero2, zero3 or fsdp.")
@click.option(
    "--routing", metavar="HOW", help="Where tokens of a mixture of experts go: even, worst, or a FILE of shares."
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "fake", "phantom"]),
    default="auto",
    show_default=True,
    help="Fake tensors, or torch's CUDA build on a phantom GPU; auto takes the phantom where torch has CUDA.",
)
@click.option(
    "--answer",
    multiple=True,
    metavar="FILE:LINE=VALUE",
    help="What reading an unknown value there gives.",
)
@click.option("--show-output", is_flag=True, help="Let the job's own output through, on standard error.")
@click.option("--timeout", "most_seconds", type=SECONDS, help="Give up after this long [default: 15min].")
@json_option
def command(target: str, as_json: bool, **options: Any) -> None:
    """Predict the memory of TARGET: a script, FILE:function, or a built-in workload, without running it."""
    from memfit import api
    from memfit.show.terminal.prediction import prediction_text, ranks_text

    with _progress() as tell:
        if options["rank"] == "all":
            found = api.predict_ranks(target, tell=tell, **_for_every_rank(options))
        else:
            found = api.predict_peak(target, tell=tell, **options)
    if isinstance(found, RankPredictions):
        write_record(found, partial(ranks_text, found), as_json=as_json)
        prediction = found.fullest.prediction
    else:
        write_record(found, partial(prediction_text, found), as_json=as_json)
        prediction = found
    if prediction.failed is not None:
        failed = prediction.failed
        raise DoesNotFit(
            "it does not fit",
            limit_bytes=failed.limit_bytes,
            found=f"the first allocation that fails is in step {failed.step}, {failed.phase}",
            hint="--fit-batch finds the largest batch; the lines 'Would save' say what else helps",
        )


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """A line that says what is being done, where there is a terminal; cleared at the end and before an error."""
    from memfit.show.progress.line import ProgressLine

    line = ProgressLine()
    try:
        yield line.draw if line.is_drawable else None
    except MemfitError as error:
        line.clear()
        click.echo(getattr(error, "traceback", ""), err=True, nl=False)
        raise
    finally:
        line.clear()


def _for_every_rank(options: dict[str, _Option]) -> dict[str, _Option]:
    """The options of all ranks together; those of one rank alone are refused."""
    for name, flag in (("sweep", "--sweep"), ("fit_batch", "--fit-batch"), ("lengths", "--lengths")):
        if options.pop(name):
            raise UsageError(f"{flag} is for one rank", found="--rank all", hint="--rank 0, or another number")
    if options.pop("malloc") != "default":
        raise UsageError("--malloc is for one rank", found="--rank all", hint="--rank 0, or another number")
    return {name: value for name, value in options.items() if name != "rank"}
