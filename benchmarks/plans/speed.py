"""How long does planning take, and how much memory does the planner itself need?

Processor time is counted, so that other programs on the machine do not blur the figure; each case runs in a process of
its own, so that its peak is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.plans.report import Claim
from memfit.units import GIB, format_bytes

CASES = (
    ("nested, table alone", "table", 100, 0.5, 1.0),
    ("nested, answer and bound", "nested", 100, 0.5, 1.0),
    ("nested, answer and bound", "nested", 340, 0.5, 15.0),
    ("nested, answer and bound", "nested", 340, 0.2, 15.0),
    ("moves", "offload", 100, 0.5, None),
    ("combined", "combined", 30, 0.4, None),
    ("combined", "combined", 100, 0.3, None),
)
CODE = """
import json, resource, sys, time
from random import Random
from memfit.plan.case import Case
from memfit.plan.recompute.nested import NestedPlanner
from memfit.plan.recompute.nested_table import NestedTable
from memfit.plan.planners import PLANNERS
from memfit.plan.problem.sizes import Sizes
from memfit.records.plan import Link
from memfit.testing.made_records.chains import rough_chain
kind, num_stages, share = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
chain = rough_chain(Random(0), num_stages)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
whole = sum(stage.saved_bytes for stage in chain.stages)
started, clock = time.process_time(), time.perf_counter()
if kind == "table":
    NestedTable(Sizes(chain), round(whole * share) // 500, 500)
elif kind == "nested":
    case = Case(chain, 1)
    case.nested = NestedPlanner.of(chain, 500)
    case = case.with_budget(round(case.nested.plain.peak_bytes * share))
    answer = PLANNERS["nested"].propose(case)
    assert case.nested.bound_seconds(case.budget_bytes) <= case.nested.found(answer.nodes).seconds
else:
    link = Link(name="host", out_bytes_per_second=2e6, in_bytes_per_second=2e6)
    case = Case(chain, round(whole * share), link)
    assert PLANNERS[kind].propose(case) is not None
seconds, wall = time.process_time() - started, time.perf_counter() - clock
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "wall": wall, "peak_bytes": peak * 1024, "own_bytes": (peak - before) * 1024}))
"""


def speed_claims(*, quick: bool = False) -> list[Claim]:
    """Every case, each in its own process."""
    claims = []
    for what, kind, num_stages, share, goal in CASES:
        if quick and num_stages > 100:
            continue
        command = [sys.executable, "-c", CODE, kind, str(num_stages), str(share)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        slots = " x 500 slots" if kind in ("table", "nested") else ""
        tried = f"{num_stages} stages{slots}, {share:.0%} of everything kept"
        result = f"{found['seconds']:.2f} s of processor time ({found['wall']:.2f} s by the clock)"
        goal_text = f", goal {goal:.0f} s" if goal else ""
        claims.append(Claim(f"time: {what}", tried, result + goal_text, found["seconds"] < goal if goal else None))
        memory = f"{format_bytes(found['own_bytes'])} on top of imports, {format_bytes(found['peak_bytes'])} in all"
        claims.append(Claim("memory of the planner < 1 GiB", tried, memory, found["peak_bytes"] < GIB))
    return claims
