"""Do plans keep their promises when they are carried out, and are they faster than the baselines at the same peak?

    python -m benchmarks.plans.execution [NAME ...] [--rounds 9] [--compile] [--threads 1] [--publish docs/fit.md]

For each job: budgets from the plain peak down to the smallest feasible; measured peak against budget, calls as
planned, bit equality, measured slowdown against the promised one. Then every baseline as it is, beside our plan for
the baseline's own measured peak. Results are kept by model in benchmark-results/execution; `--publish` puts all that
are there into a page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.plans.execution_results import (
    PeerRow,
    PlanRow,
    Results,
    dropout_table,
    publish,
    read_dropout,
    read_results,
    summary,
    tables,
    write_dropout,
    write_results,
)
from memfit.errors import DoesNotFit
from memfit.plan.case import Case
from memfit.plan.planners import planner_called, smallest_budget
from memfit.plan.recompute.rules import equal_segments, every_block, sqrt_segments
from memfit.records.plan import Plan

SHARES = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)
SEGMENTS = (2, 4)
KEPT = Path("benchmark-results/execution")


def main() -> None:
    """Run, print, keep, publish."""
    options = _options()
    import torch

    torch.set_num_threads(options.threads)
    from benchmarks.plans import execution_torch as lab

    for name in options.names if options.names is not None else lab.NAMES:
        results = _run(lab, name, options)
        write_results(KEPT, results)
        print("\n" + tables(results), flush=True)
    if options.compile:
        from benchmarks.plans.execution_compile_torch import dropout_rows

        write_dropout(KEPT, dropout_rows())
    page = _page(lab.NAMES)
    if options.names == []:
        print(page)
    if options.publish is not None:
        publish(options.publish, page)


def _page(names: tuple[str, ...]) -> str:
    """Everything that is kept, as it stands in the docs."""
    found = [results for name in names if (results := read_results(KEPT, name)) is not None]
    parts = [summary(found), *(tables(results) for results in found)]
    dropout = read_dropout(KEPT)
    return "\n".join([*parts, *([dropout_table(dropout)] if dropout else [])])


def _run(lab: Any, name: str, options: argparse.Namespace) -> Results:
    subject = lab.prepare(name)
    before = read_results(KEPT, name)
    if options.compile and before is not None:
        from benchmarks.plans.execution_compile_torch import knob_rows

        return msgspec.structs.replace(before, knob=knob_rows(subject, options.rounds))
    return _examine(lab, subject, options.rounds)


def _examine(lab: Any, subject: Any, num_rounds: int) -> Results:
    asked = {f"plan for {budget}": budget for budget in budgets(subject)}
    plans = {name: lab.plan_within(subject, budget) for name, budget in asked.items()}
    peers = dict(_peer_ways(lab, subject))
    peaks = {name: lab.measured_peak(subject, way) for name, way in peers.items()}
    ours = {f"ours at {name}": plan_or_not(lab, subject, peak) for name, peak in peaks.items()}
    fitting = {name: plan for name, plan in ours.items() if isinstance(plan, Plan)}
    ways = {name: lab.planned_way(subject, plan) for name, plan in {**plans, **fitting}.items()}
    seen, seconds = lab.examine(subject, {**ways, **peers}, num_rounds)
    return Results(
        name=subject.name,
        what=subject.what,
        plain_peak_bytes=subject.plain_peak_bytes,
        plain_seconds=min(seconds[lab.PLAIN]),
        num_stages=len(subject.chain.stages),
        control=_ratio(seconds[lab.AGAIN], seconds[lab.PLAIN]),
        num_rounds=num_rounds,
        plans=tuple(_plan_row(asked[name], plan, seen[name]) for name, plan in plans.items()),
        peers=tuple(peer_row(name, peaks[name], ours[f"ours at {name}"], seen, seconds) for name in peers),
    )


def plan_or_not(lab: Any, subject: Any, budget_bytes: int) -> Plan | DoesNotFit:
    """Our plan for a budget, or the error that says there is none."""
    try:
        return lab.plan_within(subject, budget_bytes)
    except DoesNotFit as error:
        return error


def _plan_row(budget_bytes: int, plan: Plan, seen: Any) -> PlanRow:
    return PlanRow(
        budget_bytes=budget_bytes, promised_bytes=plan.peak_bytes, promised_slowdown=plan.slowdown, seen=seen
    )


def peer_row(
    name: str, peak_bytes: int, plan: Plan | DoesNotFit, seen: Any, seconds: dict[str, list[float]]
) -> PeerRow:
    """A baseline beside our plan for its peak."""
    if isinstance(plan, DoesNotFit):
        return PeerRow(name=name, seen=seen[name], needed_bytes=plan.needed_bytes)
    mine = f"ours at {name}"
    return PeerRow(
        name=name,
        seen=seen[name],
        ours=_plan_row(peak_bytes, plan, seen[mine]),
        ratio=_ratio(seconds[mine], seconds[name]),
    )


def _ratio(these: list[float], those: list[float]) -> float:
    return min(these) / min(those)


def budgets(subject: Any) -> list[int]:
    """From what everything kept takes down to the smallest feasible."""
    case = Case(subject.chain, subject.plain_peak_bytes)
    smallest = smallest_budget(case, planner_called("nested", None))
    most = max(case.nested.plain.peak_bytes, smallest)
    return sorted({round(smallest + share * (most - smallest)) for share in SHARES}, reverse=True)


def _peer_ways(lab: Any, subject: Any) -> Iterator[tuple[str, Any]]:
    case = Case(subject.chain, subject.plain_peak_bytes)
    yield "every block", lab.nodes_way(subject, every_block(case).nodes)
    yield "sqrt(n)", lab.nodes_way(subject, sqrt_segments(case).nodes)
    for segments in SEGMENTS:
        real = lab.sequential_way(subject, segments)
        if real is not None:
            yield f"checkpoint_sequential, {segments} segments", real
        else:
            yield f"{segments} equal segments", lab.nodes_way(subject, equal_segments(subject.chain, segments))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs; all by default, none with '-'")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="torch.compile with activation_memory_budget, added")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--publish", type=Path, metavar="PAGE", help="put all results that are kept into this page")
    options = parser.parse_args()
    options.names = [] if options.names == ["-"] else options.names or None
    return options


if __name__ == "__main__":
    main()
