"""Do plans keep their promises when they are carried out, and are they faster than the baselines at the same peak?

    python -m benchmarks.plans.execution [NAME ...] [--compile] [--threads 1]

For each job: budgets from the plain peak down to the smallest feasible; measured peak against budget, calls as
planned, bit equality, measured slowdown against the promised one. Then every baseline as it is, beside our plan for
the baseline's own measured peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from memfit.errors import DoesNotFit
from memfit.plan.case import Case
from memfit.plan.checkpoint_rules import equal_segments, every_block, sqrt_segments
from memfit.plan.planners import make_plan, planner_called, smallest_budget
from memfit.records.plan import Node
from memfit.units import format_bytes

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
WITHIN = 0.10


def main() -> None:
    """Print the tables."""
    options = _options()
    import torch

    torch.set_num_threads(options.threads)
    from benchmarks.plans import execution_torch as lab

    for name in options.names or lab.NAMES:
        subject = lab.prepare(name)
        print(
            f"\n## {name}: plain peak {format_bytes(subject.plain_peak_bytes)}, {len(subject.chain.stages)} stages\n",
            flush=True,
        )
        _promises(lab, subject)
        _baselines(lab, subject)
        if options.compile:
            _knob(lab, subject)
    if options.compile:
        for budget in (1.0, 0.5, 0.0):
            print(f"dropout under activation_memory_budget={budget}: {lab.dropout_gradients_agree(budget)}", flush=True)


def _promises(lab: Any, subject: Any) -> None:
    print("| budget | of plain | promised | measured | within | calls as planned | bit-equal | slower | measured |")
    print("|---|---|---|---|---|---|---|---|---|")
    for budget_bytes in _budgets(subject):
        plan = make_plan(subject.chain, budget_bytes)
        seen = lab.run_plan(subject, plan)
        cells = [
            format_bytes(budget_bytes), f"{budget_bytes / subject.plain_peak_bytes:.2f}", format_bytes(plan.peak_bytes),
            format_bytes(seen.peak_bytes), _yes(seen.peak_bytes <= budget_bytes), _yes(seen.calls_as_planned),
            _yes(seen.bit_equal), f"{plan.slowdown:.2f}", f"{seen.slowdown:.2f}",
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


def _budgets(subject: Any) -> Iterator[int]:
    """From what everything kept takes down to the smallest feasible."""
    case = Case(subject.chain, subject.plain_peak_bytes)
    smallest = smallest_budget(case, planner_called("nested", None))
    most = max(case.nested.plain.peak_bytes, smallest)
    yield from sorted({round(smallest + share * (most - smallest)) for share in SHARES}, reverse=True)


def _baselines(lab: Any, subject: Any) -> None:
    print("\n| baseline | its measured peak | slower | ours at that peak | slower | faster or equal |")
    print("|---|---|---|---|---|---|")
    for name, nodes in _baseline_nodes(subject):
        theirs = lab.run_nodes(subject, nodes)
        try:
            ours = lab.run_plan(subject, make_plan(subject.chain, theirs.peak_bytes))
        except DoesNotFit as error:
            needed = format_bytes(error.needed_bytes or 0)
            print(
                f"| {name} | {format_bytes(theirs.peak_bytes)} | {theirs.slowdown:.2f} | needs {needed} | | |",
                flush=True,
            )
            continue
        verdict = _yes(ours.slowdown <= theirs.slowdown * (1 + WITHIN / 2))
        cells = [
            name,
            format_bytes(theirs.peak_bytes),
            f"{theirs.slowdown:.2f}",
            format_bytes(ours.peak_bytes),
            f"{ours.slowdown:.2f}",
            verdict,
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


def _baseline_nodes(subject: Any) -> Iterator[tuple[str, tuple[Node, ...]]]:
    case = Case(subject.chain, subject.plain_peak_bytes)
    yield "every block", every_block(case).nodes
    yield "sqrt(n)", sqrt_segments(case).nodes
    for segments in (2, 4):
        yield f"checkpoint_sequential, {segments} segments", equal_segments(subject.chain, segments)


def _knob(lab: Any, subject: Any) -> None:
    print("\n| activation_memory_budget (aot_eager) | measured peak | slower | bit-equal |")
    print("|---|---|---|---|")
    for budget in (1.0, 0.5, 0.0):
        seen = lab.run_compiled(subject, budget)
        if isinstance(seen, str):
            print(f"| {budget} | {seen} | | |", flush=True)
        else:
            print(
                f"| {budget} | {format_bytes(seen.peak_bytes)} | {seen.slowdown:.2f} | {_yes(seen.bit_equal)} |",
                flush=True,
            )


def _yes(truth: bool) -> str:
    return "yes" if truth else "**no**"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs; all by default")
    parser.add_argument("--compile", action="store_true", help="also torch.compile with activation_memory_budget")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
