"""memfit diff: whether two runs differ by more than repeats of the same run would."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memfit import api
from memfit.commands.shared.options import (
    force_option,
    html_option,
    json_option,
    ledger_option,
    output_option,
    quiet_option,
    stable_option,
)
from memfit.commands.shared.output import write_record
from memfit.errors import UsageError

if TYPE_CHECKING:
    from memfit.api import RepeatsFollower
    from memfit.records.difference import Comparison

EPILOG = """\b
Examples:
  memfit diff runs/before runs/after
  memfit diff runs/a1 runs/a2 runs/a3 runs/a4 -- runs/b1 runs/b2 runs/b3 runs/b4
  memfit diff --repeat 4 -- python train.py -- python train.py --batch-size 64
  memfit diff --repeat 4 --stable runs/before runs/after
  memfit diff --resume memfit-runs/diff-20261116-101500

The exit code is 0 whether the sides differ or not; 1 when a run fails, or when
--fail-above is passed.
"""


class _Sides(click.Command):
    """Keeps the '--' between groups, which click would otherwise swallow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["groups"] = split_groups(args[at + 1 :]) if at < len(args) else []
        return rest


def split_groups(words: list[str]) -> list[tuple[str, ...]]:
    """What stands between the '--' after the first one."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            groups.append([])
        else:
            groups[-1].append(word)
    return [tuple(group) for group in groups]


class _Percent(click.ParamType):
    """'5%' or '5'."""

    name = "percent"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            percent = float(str(value).strip().removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not 0 <= percent < 1e6:
            raise UsageError("--fail-above takes a share in percent", found=repr(value), hint="--fail-above 5%")
        return percent


@click.command(
    cls=_Sides,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[OPTIONS] A... [--] B...",
)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="")
@output_option("With --repeat: folder of the repeats [default: memfit-runs/diff-NAME-DATE].")
@force_option
@click.option("--repeat", type=int, metavar="N", help="Run both commands N times (at least 4), in turn, and compare.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Go on with interrupted repeats.")
@stable_option
@ledger_option
@click.option(
    "--fail-above", type=_Percent(), metavar="P", help="Exit code 1 if B's peak is surely more than P % above."
)
@html_option
@quiet_option
@json_option
def command(
    runs: tuple[Path, ...], repeat: int | None, resume: Path | None, output: str | None, stable: bool, ledger: bool,
    fail_above: float | None, html: Path | None, force: bool, quiet: bool, as_json: bool,
    groups: list[tuple[str, ...]],
) -> None:  # fmt: skip
    """Compare two runs, two groups of repeats, or, with --repeat, two commands that are run again and again.

    One run per side tells little: of many quantities only repeats show how far they vary. --repeat takes two commands
    behind '--', or two run folders, whose recorded commands are then run again in their own folders; --stable and
    --ledger are for those. A page (--html) has B over A and the comparison below.
    """
    if resume is not None:
        _refuse({"--repeat": repeat, "-o": output, "--stable": stable, "--ledger": ledger, "runs": runs or groups})
        comparison = api.resume_repeats(resume, progress=_progress(quiet))
    elif repeat is not None:
        comparison = _repeat(runs, groups, repeat, output, stable, ledger, force, quiet)
    else:
        _refuse({"-o": output, "--stable": stable, "--ledger": ledger}, "are for --repeat, which measures again")
        first, second = sides(runs, groups)
        comparison = api.diff_runs([api.read_run(path) for path in first], [api.read_run(path) for path in second])
    if html is not None:
        a, b = (api.read_run(side.folders[0]) for side in (comparison.first, comparison.second))
        api.write_report(a, html=html, over=b, overwrite=force, comparison=comparison)
    _print_comparison(comparison, as_json)
    if html is not None:
        click.echo(f"wrote {html}", err=as_json)
    if fail_above is not None and _is_above(comparison, fail_above):
        sys.exit(1)


def _progress(quiet: bool) -> RepeatsFollower:
    """Tells the standard error what is run, each run that ended, and the time left."""
    from memfit.show.progress.repeats import RepeatsProgress

    return RepeatsProgress(quiet=quiet)


def _print_comparison(comparison: Comparison, as_json: bool) -> None:
    from memfit.show.terminal.difference import comparison_text

    write_record(
        comparison, lambda width, color: comparison_text(comparison, width=width, color=color), as_json=as_json
    )


def _refuse(options: Mapping[str, object], why: str = "cannot be combined with --resume") -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError(f"{', '.join(given)} {why}", hint="memfit diff --help")


def _repeat(
    runs: tuple[Path, ...], groups: list[tuple[str, ...]], repeat: int, output: str | None, stable: bool,
    ledger: bool, force: bool, quiet: bool,
) -> Comparison:  # fmt: skip
    """Run again what two folders recorded, or two commands."""
    from memfit.records.run import settings_for

    options: dict[str, Any] = {
        "output": output, "overwrite": force, "progress": _progress(quiet),
    }  # fmt: skip
    if len(runs) == 2 and not groups:
        _refuse({"--ledger": ledger}, "is for commands; run folders are measured as they were")
        return api.repeat_runs(*runs, repeat, stable=True if stable else None, **options)
    if runs or len(groups) != 2 or not all(groups):
        found = f"{len(runs)} run folders and {len([g for g in groups if g])} commands"
        hint = "memfit diff --repeat 4 -- python train.py -- python train.py --batch-size 64"
        raise UsageError("--repeat needs two commands, each behind '--', or two run folders", found=found, hint=hint)
    settings = settings_for(None, stable=stable, ledger_every=50 if ledger else None)
    return api.repeat_commands(list(groups[0]), list(groups[1]), repeat, settings=settings, **options)


def sides(runs: tuple[Path, ...], groups: list[tuple[str, ...]]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The two groups; without '--' exactly two runs are needed."""
    if len(groups) > 1:
        raise click.UsageError("more than one '--': to run commands, write `memfit diff --repeat 4 -- A -- B`")
    second = tuple(Path(text) for group in groups for text in group)
    if second:
        if not runs:
            raise click.UsageError("no run before '--': write `memfit diff A A -- B B`")
        return runs, second
    if len(runs) != 2:
        raise click.UsageError(f"found {len(runs)} runs: give two, or two groups with '--' between them")
    return runs[:1], runs[1:]


def _is_above(comparison: Comparison, percent: float) -> bool:
    """Whether even the low end of the peak's change lies above the share; says why it is unknown."""
    peak = next((row for row in comparison.differences if row.name == "peak"), None)
    base = peak.first.value if peak is not None else None
    if peak is None or not base or peak.change.low is None or peak.verdict == "cannot tell":
        reason = peak.reason if peak is not None else "there is no peak"
        click.echo(f"memfit: whether B is more than {percent:g} % above A is unknown: {reason}", err=True)
        return False
    low, resolves = 100 * peak.change.low / base, peak.resolves
    if low > percent:
        click.echo(f"memfit: B's peak is at least {low:.2f} % above A's; --fail-above {percent:g}%", err=True)
        return True
    if resolves is None or 100 * resolves / base > percent:
        hint = "more repeats, or --stable, would" if resolves is not None else "--repeat 4 would"
        click.echo(f"memfit: a difference of {percent:g} % need not be seen in these runs; {hint} show it", err=True)
    return False
