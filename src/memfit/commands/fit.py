"""`memfit fit`: a budget in bytes, any PyTorch model, a plan that is applied and proven."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from memfit.commands.shared.options import (
    BYTES,
    MOST_THREADS,
    complete_files,
    force_option,
    json_option,
    output_option,
    set_option,
)
from memfit.commands.shared.output import write_record
from memfit.errors import DoesNotFit, UsageError
from memfit.records.plan import LEVERS

EXAMPLES = """\b
Examples:
  memfit fit train.py --budget 8GiB -- --epochs 3
  memfit fit train.py:make --budget 2GiB
  memfit fit resnet50 --set batch_size=8 --set size=500 --budget 2GiB --disk /var/tmp
  memfit fit gpt --set layers=24 --set width=1024 --device cuda:24GiB"""

NOT_FOR_SCRIPTS = {"output": "-o", "accumulates": "--accumulate", "settings": "--set"}
FOR_SCRIPTS = {"plan_file": "--plan", "only_plan": "--dry-run", "arguments": "arguments"}


class _Fit(click.Command):
    """Answers the former spelling of `memfit reproduce` with the new one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = [] if ctx.resilient_parsing else args[: args.index("--")] if "--" in args else args
        for index, word in enumerate(own):
            if word == "--experiment" or word.startswith("--experiment="):
                value = word.partition("=")[2] or next(iter(own[index + 1 :]), "")
                name = "edge" if value == "edge" else "offloading"
                raise UsageError(f"`memfit fit --experiment` is now `memfit reproduce {name}`")
        return super().parse_args(ctx, args)


@click.command("fit", cls=_Fit, epilog=EXAMPLES)
@click.argument("target", shell_complete=complete_files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
@output_option("Where the plan goes [default: plan.json].")
@force_option
@click.option("--budget", "budget_bytes", type=BYTES, metavar="SIZE", help="What the step may take, for example 8GiB.")
@set_option
@click.option("--disk", metavar="FOLDER", help="Allow moving what the backward needs to files in this folder.")
@click.option("--device", metavar="DEVICE", help="Plan for another device from prediction alone, such as cuda:24GiB.")
@click.option("--planner", default="best", show_default=True, help="The planner to take; see docs/fit.md.")
@click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), metavar="N", help="Threads of torch [default: as torch decides]."
)
@click.option("--accumulate", "accumulates", is_flag=True, default=None, help="Gradients add up over several batches.")
@click.option("--allow", multiple=True, type=click.Choice(LEVERS), help="A lever for where no plan fits; docs/fit.md.")
@click.option("--plan", "plan_file", metavar="FILE", help="Scripts: use this plan if it is there, else write it.")
@click.option("--dry-run", "only_plan", is_flag=True, default=None, help="Scripts: stop when the plan is proven.")
@json_option
def command(target: str, as_json: bool, **options: Any) -> None:
    """Fit the training that TARGET runs or builds into a budget.

    A script (TARGET ends in .py; its own arguments follow `--`) is run to its end: its first pass is watched, a plan is
    made, proven and applied, and the training goes on within the budget. FILE:function or a built-in workload builds a
    training, of which the plan is made and proven.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if target.endswith(".py"):
        _refuse(given, NOT_FOR_SCRIPTS, "not for scripts: their plan goes to --plan FILE, their arguments follow `--`")
        _fit_script(target, as_json=as_json, **given)
    else:
        _refuse(given, FOR_SCRIPTS, "for scripts")
        _fit(target, as_json=as_json, **given)


def _refuse(given: dict[str, object], flags: dict[str, str], why: str) -> None:
    found = [flag for name, flag in flags.items() if name in given]
    if found:
        raise UsageError(f"{', '.join(found)}: {why}", hint="memfit fit --help")


def _fit_script(
    target: str, *, as_json: bool, device: str | None = None, budget_bytes: int | None = None, **options: Any
) -> None:
    from memfit import api
    from memfit.show.terminal.fit import loop_fit_text

    if device is not None and (":" in device or not device.startswith(("cpu", "cuda"))):
        raise UsageError(
            "a script is fitted on the device that it trains on",
            found=f"--device {device}",
            hint="--budget with what that device has, or memfit predict for a device that is not here",
        )
    if budget_bytes is None and device != "cuda":
        raise UsageError("there is no budget", hint="--budget 8GiB; on a GPU, --device cuda takes all it has")
    _say(api.use_working_instructions())
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of blocks from before a measurement, which is expected
    try:
        with _record_alone(as_json):
            found = api.fit_script(target, budget_bytes, say=_say, **options)
    except DoesNotFit as error:
        if not as_json:
            _print_levers(error)
        raise
    write_record(found, partial(loop_fit_text, found), as_json=as_json, stream=sys.stderr)
    if found.exit_code:
        raise SystemExit(found.exit_code)
    if found.within_budget is False:
        raise SystemExit(3)


@contextlib.contextmanager
def _record_alone(as_json: bool) -> Iterator[None]:
    """With --json the record is all there is on standard output: what the script prints goes to standard error."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)  # of libraries and child processes too
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _print_levers(error: DoesNotFit) -> None:
    """What remains when no plan fits."""
    from memfit.show.terminal.fit import levers_text
    from memfit.show.text_output import write_text

    if error.levers:
        write_text(lambda width, color: levers_text(error.levers, width=width, color=color))


def _say(sentence: str) -> None:
    if sentence:
        click.echo(f"memfit: {sentence}", err=True)


def _fit(
    target: str, *, as_json: bool, budget_bytes: int | None = None, device: str | None = None, **options: Any
) -> None:
    from memfit import api
    from memfit.show.terminal.fit import fit_text

    if budget_bytes is None and device is None:
        raise UsageError("there is no budget", hint="--budget 8GiB, or --device cuda:24GiB")
    if device is None or device.startswith("cpu"):
        _say(api.use_working_instructions())
    try:
        fit = api.fit_target(target, budget_bytes, device=device, **options)
    except DoesNotFit as error:
        if not as_json:
            _print_levers(error)
        raise
    write_record(fit, lambda width, color: fit_text(fit, width=width, color=color), as_json=as_json)
