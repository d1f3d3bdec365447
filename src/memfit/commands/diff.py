"""memfit diff: do two runs differ by more than repeats of the same run would?"""

from __future__ import annotations

from pathlib import Path

import click

from memfit import api
from memfit.commands.options import json_option


class _Sides(click.Command):
    """Keeps the '--' between the two groups, which click would otherwise swallow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            before = super().parse_args(ctx, args[:at])
            ctx.params["second"] = tuple(Path(text) for text in args[at + 1 :])
            return before
        return super().parse_args(ctx, args)


@click.command(
    cls=_Sides, context_settings={"help_option_names": ["-h", "--help"]}, options_metavar="[OPTIONS] A... [--] B..."
)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="")
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write a page with B laid over A and the comparison below."
)
@click.option("-f", "--force", is_flag=True, help="Replace a page that is already there.")
@json_option
def command(
    runs: tuple[Path, ...], html: Path | None, force: bool, as_json: bool, second: tuple[Path, ...] = ()
) -> None:
    """Compare two runs, or two groups of repeats.

    With one run per side the noise rests on what is known of the allocator and the counters; with four or more per side
    it comes from the repeats themselves.

    \b
    Examples:
      memfit diff runs/before runs/after
      memfit diff runs/a1 runs/a2 runs/a3 runs/a4 -- runs/b1 runs/b2 runs/b3 runs/b4
    """
    first, second = sides(runs, second)
    a, b = [api.read_run(path) for path in first], [api.read_run(path) for path in second]
    comparison = api.compare_runs(a, b)
    if html is not None:
        api.write_report(a[0], html=html, over=b[0], overwrite=force, comparison=comparison)
    api.print_comparison(comparison, as_json=as_json)
    if html is not None:
        click.echo(f"wrote {html}", err=as_json)


def sides(runs: tuple[Path, ...], second: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The two groups; without '--' exactly two runs are needed."""
    if second:
        if not runs:
            raise click.UsageError("no run before '--': write `memfit diff A A -- B B`")
        return runs, second
    if len(runs) != 2:
        raise click.UsageError(f"found {len(runs)} runs: give two, or two groups with '--' between them")
    return runs[:1], runs[1:]
