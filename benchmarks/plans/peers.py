"""At equal measured peak, is a fitted model ever slower than under the tools that others recommend?

    python -m benchmarks.plans.peers [NAME ...] [--rounds 15] [--compile] [--publish docs/fit.md]

For each model and tool: the tool's peak is measured, `fit_to_budget` is given that peak as its budget, then plain step,
tool and fitted model are run in turns, each on a copy of the model. Peaks are measured twice: by memfit's meter, and
in another process by a counter under torch's allocator (`peers_count.py`). Printed are median ratios of paired
seconds with their bootstrap intervals of 90 %. Results are kept by model in benchmark-results/peers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.overhead.paired import Estimate, ratio
from benchmarks.plans.execution_results import EQUAL, publish
from memfit.units import format_bytes

KEPT = Path("benchmark-results/peers")
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
SEED = 11


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, or our plan for the tool's peak."""

    metered_bytes: int
    counted_bytes: int | None
    """By the counter under the allocator; None where it could not be run."""
    gradients: str
    slowdown: Estimate
    """Against the plain step."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model under one tool."""

    tool: str
    theirs: Side | None = None
    ours: Side | None = None
    quotient: Estimate | None = None
    """Our seconds over its seconds."""
    failure: str = ""

    @property
    def verdict(self) -> str:
        """Whether ours is as fast, judged by the whole interval."""
        if self.quotient is None:
            return ""
        if self.quotient.high <= 1.0 + EQUAL:
            return "yes"
        return "**no**" if self.quotient.low > 1.0 else "cannot tell"


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One model."""

    name: str
    what: str
    plain_bytes: int
    control: Estimate
    """The plain step against a copy of itself."""
    rows: tuple[Row, ...]


def main() -> None:
    """Run, keep, print, publish."""
    options = _options()
    from benchmarks.plans import peers_torch as lab

    if options.names != ["-"]:
        import torch

        torch.set_num_threads(1)
        for name in lab.names(options.names):
            with lab.quiet_warnings():
                _keep(_examine(lab, name, options))
            print(f"{name} done", flush=True)
    page = table([found for name in lab.MODELS if (found := _kept(name)) is not None])
    print(page)
    if options.publish is not None:
        publish(options.publish, page, BEGIN, END)


# ---- running -----------------------------------------------------------------------------------------------------


def _examine(lab: Any, name: str, options: argparse.Namespace) -> Results:
    step = lab.build(name)
    again = lab.rounds({"plain": step, "again": step.copied()}, options.rounds)
    peers = lab.peers_of(step, compiled=options.compile)
    rows = [_row(lab, name, step, tool, attach, options) for tool, attach in peers.items()]
    return Results(
        name=name,
        what=step.what,
        plain_bytes=lab.peak_bytes(step),
        control=ratio(again["again"], again["plain"], SEED),
        rows=tuple(rows),
    )


def _row(lab: Any, name: str, step: Any, tool: str, attach: Any, options: argparse.Namespace) -> Row:
    import memfit
    from memfit.errors import MemfitError

    theirs, ours = step.copied(), step.copied()
    try:
        attach(theirs.model)
        theirs_bytes = lab.peak_bytes(theirs)
    except Exception as error:  # whatever the tool says is the answer
        return Row(tool=tool, failure=f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
    try:
        fitted = memfit.fit_to_budget(ours.model, ours.batch, ours.loss, budget=theirs_bytes)
    except MemfitError as error:
        return Row(tool=tool, failure=f"at {format_bytes(theirs_bytes)}: {error}")
    seconds = lab.rounds({"plain": step, "theirs": theirs, "ours": ours}, options.rounds)
    counted = _counted(name, tool, fitted)

    def side(key: str, each: Any, metered_bytes: int) -> Side:
        return Side(
            metered_bytes=metered_bytes,
            counted_bytes=counted.get(key),
            gradients=lab.equality(each, step),
            slowdown=ratio(seconds[key], seconds["plain"], SEED),
        )

    return Row(
        tool=tool,
        theirs=side("theirs", theirs, theirs_bytes),
        ours=side("ours", ours, lab.peak_bytes(ours)),
        quotient=ratio(seconds["ours"], seconds["theirs"], SEED),
    )


def _counted(name: str, tool: str, fitted: Any) -> dict[str, int]:
    """Peaks of the tool and of our plan, in a process with the counter."""
    from benchmarks.plans.peers_count import count

    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.json")
        fitted.write_plan(plan)
        return count(name, tool, plan)


# ---- keeping and printing ----------------------------------------------------------------------------------------


def _keep(found: Results) -> None:
    """Keep the results of one model; rows of tools that were not run this time stay."""
    before = _kept(found.name)
    run = {row.tool for row in found.rows}
    stay = [row for row in (before.rows if before is not None else ()) if row.tool not in run]
    KEPT.mkdir(parents=True, exist_ok=True)
    rows = tuple(sorted([*found.rows, *stay], key=lambda row: row.tool.startswith("activation")))
    whole = msgspec.structs.replace(found, rows=rows)
    (KEPT / f"{found.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1))


def _kept(name: str) -> Results | None:
    path = KEPT / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else None


def table(found: list[Results]) -> str:
    """Everything that is kept."""
    columns = "model", "tool", "its peak", "counted", "slower", "gradients", "our peak", "counted", "slower"
    lines = ["| " + " | ".join([*columns, "our time over its", "as fast"]) + " |", "|" + "---|" * 11]
    lines += ["| " + " | ".join(_cells(each.name, row)) + " |" for each in found for row in each.rows]
    rows = [row for each in found for row in each.rows if row.quotient is not None]
    as_fast = sum(row.verdict == "yes" for row in rows)
    slower = sum(row.verdict == "**no**" for row in rows)
    summary = f"As fast or faster, within {EQUAL:.0%}: {as_fast} of {len(rows)}; slower: {slower}; cannot tell: "
    models = [
        f"- {each.name}: {each.what}; plain peak {format_bytes(each.plain_bytes)}; plain against itself "
        f"{_interval(each.control)}"
        for each in found
    ]
    return "\n".join([f"{summary}{len(rows) - as_fast - slower}.", "", *lines, "", *models]) + "\n"


def _cells(name: str, row: Row) -> tuple[str, ...]:
    if row.theirs is None or row.ours is None or row.quotient is None:
        return (name, row.tool, row.failure, *[""] * 8)
    theirs, ours = row.theirs, row.ours
    return (
        name, row.tool,
        format_bytes(theirs.metered_bytes), _bytes(theirs.counted_bytes), f"{theirs.slowdown.value:.2f}",
        theirs.gradients, format_bytes(ours.metered_bytes), _bytes(ours.counted_bytes), f"{ours.slowdown.value:.2f}",
        _interval(row.quotient), row.verdict,
    )  # fmt: skip


def _bytes(value: int | None) -> str:
    return "" if value is None else format_bytes(value)


def _interval(found: Estimate) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all by default, none with '-'")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="activation_memory_budget of torch.compile as well")
    parser.add_argument("--publish", type=Path, metavar="PAGE", help="put all results that are kept into this page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
