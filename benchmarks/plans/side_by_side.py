"""How do all planners compare on chains that look like networks, over budgets and links?"""

from __future__ import annotations

from random import Random

from memfit.plan.case import Case
from memfit.plan.planners import PLANNERS, compare_planners
from memfit.records.plan import Chain, Link
from memfit.testing.made_records.chains import even_chain, narrowing_chain, rough_chain

SHARES = (0.8, 0.6, 0.4, 0.25)


def print_comparison(*, quick: bool = False) -> None:
    """Slowdown of every planner at budgets between the smallest peak and everything kept."""
    size = 10 if quick else 20
    chains = {
        f"narrowing like a CNN, {size} stages": (narrowing_chain(size), 8e9),
        f"even like a transformer, {size} stages": (even_chain(size), 8e9),
        f"rough, {size} stages": (rough_chain(Random(0), size), 2e6),
    }
    for title, (chain, speed) in chains.items():
        link = Link(name="link", out_bytes_per_second=speed, in_bytes_per_second=speed)
        _print_chain(title, chain, link)


def _print_chain(title: str, chain: Chain, link: Link) -> None:
    case = Case(chain, 1, link)
    low, plain = case.nested.least.peak_bytes, case.nested.found(case.kept)
    budgets = [round(low + share * (plain.peak_bytes - low)) for share in SHARES]
    table: dict[str, list[str]] = {name: [] for name in PLANNERS}
    for budget_bytes in budgets:
        for candidate in compare_planners(chain, budget_bytes, link=link):
            seconds = candidate.seconds
            table[candidate.solver].append("does not fit" if seconds is None else f"{seconds / plain.seconds:.3f}")
    print(f"\nTime over that of keeping everything: {title}")
    print("  " + "budget, share of the way up".ljust(28) + "".join(f"{share:>14.0%}" for share in SHARES))
    for name, cells in table.items():
        print("  " + name.ljust(28) + "".join(cell.rjust(14) for cell in cells))
