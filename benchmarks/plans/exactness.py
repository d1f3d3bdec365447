"""Are the planners' answers those of exhaustive search, within their bounds, and safe under rounding?"""

from __future__ import annotations

import statistics
from math import inf
from random import Random

from benchmarks.plans.report import Claim
from memfit.plan.case import Case, judge
from memfit.plan.offload.combined import _Descent, combined, combined_bound
from memfit.plan.offload.fluid import fraction_bound, offload_bound
from memfit.plan.offload.moves import MoveSearch
from memfit.plan.offload.offload import fluid_guess, offload
from memfit.plan.problem.program import lower
from memfit.plan.problem.simulator import simulate
from memfit.plan.recompute.nested import NestedPlanner
from memfit.testing.made_records.chains import odd_chain, odd_link, rough_chain
from memfit.testing.oracles.plan_search import best_moving, best_nested, best_of_all, best_unrestricted

SAME = 1e-9


def nested_claims(num_chains: int, seed: int = 0) -> list[Claim]:
    """Nested plans against all nested plans, at every budget that matters."""
    random, wrong, pairs, bounds = Random(seed), 0, 0, 0
    for _ in range(num_chains):
        chain = odd_chain(random, random.choice([2, 3, 3, 4, 4, 5, 5, 6]))
        edge, planner = best_nested(chain), NestedPlanner.of(chain)
        wrong += planner.least.peak_bytes != edge[0][0]
        for peak, seconds in edge:
            found = planner.best(peak)
            pairs += 1
            wrong += found is None or abs(found.seconds - seconds) > SAME
            bounds += planner.bound_seconds(peak) > seconds + SAME
    tried = f"{num_chains} chains of 2-6 stages, {pairs} budgets"
    return [
        Claim("nested plan = exhaustive search", tried, f"{wrong} differ", wrong == 0),
        Claim("bound of nested plans <= optimum", tried, f"{bounds} above", bounds == 0),
    ]


def persistence_claims(num_chains: int, seed: int = 4) -> list[Claim]:
    """How much faster a plan could be that is not nested."""
    random, gaps, better_than_best = Random(seed), [], 0
    for _ in range(num_chains):
        chain = odd_chain(random, random.randint(3, 5), options=False, rules=False)
        edge, planner = best_nested(chain), NestedPlanner.of(chain)
        peak = random.choice(edge)[0]
        found, best = planner.best(peak), best_unrestricted(chain, peak)
        assert found is not None
        assert best is not None
        better_than_best += found.seconds < best - SAME
        if best > 0:
            gaps.append(found.seconds / best - 1)
    beaten = sum(gap > SAME for gap in gaps)
    result = f"beaten in {beaten} of {len(gaps)}; mean {statistics.mean(gaps):.2%}, worst {max(gaps):.1%} slower"
    tried = f"{num_chains} chains of 3-5 stages"
    return [
        Claim(
            "no nested plan is faster than the best of any kind", tried, f"{better_than_best} are", not better_than_best
        ),
        Claim("nested plans against plans of any kind", tried, result, None),
    ]


def rounding_claims(num_chains: int, seed: int = 1) -> list[Claim]:
    """Coarse slots: plans still fit, bounds still hold, more memory is never slower."""
    random, over, above, slower, tried = Random(seed), 0, 0, 0, 0
    excess: list[float] = []
    for _ in range(num_chains):
        chain = rough_chain(random, random.randint(2, 6))
        edge, planner = best_nested(chain), NestedPlanner.of(chain, random.randint(8, 60))
        low, high = edge[0][0], edge[-1][0]
        before = inf
        for budget_bytes in sorted(random.randint(low, high) for _ in range(8)):
            found = planner.best(budget_bytes)
            best = min(seconds for peak, seconds in edge if peak <= budget_bytes)
            tried += 1
            if found is None:
                over += 1
                continue
            over += simulate(lower(chain, found.nodes)).peak_bytes > budget_bytes
            above += planner.bound_seconds(budget_bytes) > best + SAME
            slower += found.seconds > before * (1 + SAME)
            before = found.seconds
            excess.append(found.seconds / best - 1)
    what = f"{num_chains} chains, 8-60 slots, {tried} budgets"
    cost = f"mean {statistics.mean(excess):.3%}, worst {max(excess):.2%} above the optimum"
    return [
        Claim("rounded plans fit", what, f"{over} do not", over == 0),
        Claim("rounded bounds hold", what, f"{above} above the optimum", above == 0),
        Claim("more memory is never slower", what, f"{slower} slower", slower == 0),
        Claim("what so few slots cost", what, cost, None),
    ]


def offload_claims(num_chains: int, longest: int = 12, seed: int = 2) -> list[Claim]:
    """Moves against all sets, and against both bounds."""
    random, wrong, below, pairs = Random(seed), 0, 0, 0
    tight: list[float] = []
    ratios: dict[str, list[float]] = {"best prefix": [], "fluid set": [], "descent": []}
    for number in range(num_chains):
        num_stages = longest if number % 50 == 0 else random.randint(2, min(9, longest))
        chain, link = odd_chain(random, num_stages, options=False), odd_link(random)
        peak = max(lower(chain, Case(chain, 1).kept).memory_bytes())
        case = Case(chain, max(1, peak - random.randint(0, 40)), link)
        expected = best_moving(chain, link, case.budget_bytes)
        found = _seconds(case, offload(case))
        pairs += 1
        wrong += abs(found - expected) > SAME if expected is not None else found < inf
        if expected is None or expected == 0:
            continue
        bound = offload_bound(case.sizes, link, case.budget_bytes)
        fraction = fraction_bound(case.sizes, link, case.budget_bytes) + chain.update_seconds
        below += max(bound, fraction) > found + SAME
        tight.append(bound / found)
        for name, seconds in _heuristics(case).items():
            ratios[name].append(seconds / found)
    tried = f"{pairs} chains of up to {longest} stages"
    claims = [
        Claim("moves = enumeration of all sets", tried, f"{wrong} differ", wrong == 0),
        Claim("never below the fluid bound", tried, f"{below} below", below == 0),
        Claim("fluid bound / optimum", tried, f"mean {statistics.mean(tight):.3f}, least {min(tight):.2f}", None),
    ]
    for name, values in ratios.items():
        fitting = [value for value in values if value < inf]
        result = f"mean {statistics.mean(fitting):.4f}, worst {max(fitting):.2f}, none in {len(values) - len(fitting)}"
        claims.append(Claim(f"{name} / optimum", tried, result, None))
    return claims


def _heuristics(case: Case) -> dict[str, float]:
    assert case.link is not None
    search = MoveSearch(lower(case.chain, case.kept), case.link, case.budget_bytes)
    prefix, guess = search.prefixes(), fluid_guess(case)
    repaired = None if guess is None else search.repair(guess)
    starts = [start for start in (prefix, repaired) if start is not None]
    return {
        "best prefix": inf if prefix is None else search.seconds(prefix),
        "fluid set": inf if repaired is None else search.seconds(repaired),
        "descent": min((search.seconds(search.improve(start)) for start in starts), default=inf),
    }


def combined_claims(num_chains: int, seed: int = 3) -> list[Claim]:
    """Recomputing and moving against all plans with all sets."""
    random, wrong, below = Random(seed), 0, 0
    tight: list[float] = []
    descents: list[float] = []
    for _ in range(num_chains):
        chain, link = odd_chain(random, random.choice([2, 3, 3, 4, 4, 5])), odd_link(random)
        case = Case(chain, 1, link)
        low, high = case.nested.least.peak_bytes, case.nested.plain.peak_bytes
        case = case.with_budget(random.randint(max(1, low - 5), high))
        expected = best_of_all(chain, link, case.budget_bytes)
        found = _seconds(case, combined(case))
        wrong += abs(found - expected) > SAME if expected is not None else found < inf
        if expected is None or expected == 0:
            continue
        bound = combined_bound(case)
        below += bound > found + SAME
        tight.append(bound / found)
        descents.append(_seconds(case, _Descent(case, link).run()) / found)
    tried = f"{num_chains} chains of 2-5 stages"
    hits = sum(ratio < 1 + SAME for ratio in descents) / len(descents)
    worst = max(ratio for ratio in descents if ratio < inf)
    return [
        Claim("combined plan = enumeration", tried, f"{wrong} differ", wrong == 0),
        Claim("combined bound <= optimum", tried, f"{below} above", below == 0),
        Claim("combined bound / optimum", tried, f"mean {statistics.mean(tight):.3f}, least {min(tight):.2f}", None),
        Claim("descent alone (what longer chains get)", tried, f"optimal in {hits:.1%}, worst {worst:.3f}", None),
    ]


def _seconds(case: Case, proposal) -> float:
    outcome = None if proposal is None else judge(case, proposal)
    return inf if outcome is None else outcome.replayed.seconds
