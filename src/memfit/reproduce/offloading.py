"""All planners on standard networks over budgets and links: every answer, the ranking, and the published statements.

After Beaumont, Eyraud-Dubois and Shilova ("Optimal GPU-CPU offloading strategies for deep neural network training",
2020), who report that their two heuristics are better than earlier approaches; the same authors ("Efficient combination
of rematerialization and offloading for training DNNs", 2021) report that moving as well removes a third of the overhead
of recomputing.

Budgets run in equal steps from the smallest that any plan fits into to the peak with everything kept. Every answer is
the arbiter's replay. Planners that only recompute know no link, so they are asked once for each budget.

The standard networks of a comparison of planners, and the settings of one step of each.

The sizes are such that a step takes several GiB; changing the batch changes bytes and seconds in the same proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from memfit.errors import UsageError
from memfit.plan.case import Case
from memfit.plan.planners import PLANNERS, candidate_of, smallest_budget
from memfit.records.plan import Candidate, Chain, Link
from memfit.records.reproduction import Cell, Network, Panel, PlannerStanding, Statement
from memfit.reproduce.statements import judged

EQUALLY_FAST = 1.001
EARLIER = ("offload all", "vDNN all", "vDNN conv", "vDNN++", "AutoSwap", "TFLMS")
HEURISTICS = ("offload prefix", "offload fluid")
A_THIRD = 1 / 3
HEURISTICS_SOURCE = "Beaumont, Eyraud-Dubois and Shilova, 2020"
COMBINED_SOURCE = "Beaumont, Eyraud-Dubois and Shilova, 2021"
HEURISTICS_SAY = "two heuristics that choose what to move to the host are faster than earlier rules that only move"
COMBINED_SAYS = "moving as well as recomputing takes away a third of the time that recomputing alone adds"


def budgets_between(chain: Chain, link: Link, num_points: int) -> list[int]:
    """Budgets in equal steps, from the smallest that a plan fits into to the plain peak; both ends are among them."""
    if num_points < 2:
        raise UsageError("a curve needs two points or more", found=str(num_points), hint="--points 7")
    case = Case(chain, max(1, chain.fixed.total_bytes), link)
    low, high = smallest_budget(case, PLANNERS["combined"]), case.nested.plain.peak_bytes
    return sorted({low + (high - low) * k // (num_points - 1) for k in range(num_points)})


def compare_networks(
    chains: Mapping[str, Chain], links: Sequence[Link], *, num_points: int, show: Callable[[str, float], None]
) -> tuple[Panel, ...]:
    """Every planner on every chain; `show` is called with what is at hand and which share of the work is over."""
    all_work = sum(_work(chain) for chain in chains.values()) * len(links) * num_points
    panels: list[Panel] = []
    done = 0
    for name, chain in chains.items():

        def tick(link: Link, name: str = name, chain: Chain = chain) -> None:
            nonlocal done
            show(f"{name}, {link.out_bytes_per_second / 1e9:g} GB/s", done / all_work)
            done += _work(chain)

        panels += compare_links(name, chain, links, num_points=num_points, tick=tick)
    return tuple(panels)


def _work(chain: Chain) -> int:
    """What all planners together cost at one budget, about: the square of the number of stages."""
    return len(chain.stages) ** 2


def compare_links(
    name: str,
    chain: Chain,
    links: Sequence[Link],
    *,
    num_points: int,
    planners: Sequence[str] = tuple(PLANNERS),
    tick: Callable[[Link], None] = lambda link: None,
) -> tuple[Panel, ...]:
    """Every planner at every budget behind every link; `tick` is called before each budget."""
    budgets = budgets_between(chain, links[0], num_points)
    start = Case(chain, budgets[0])
    alone: dict[int, list[Candidate]] = {}
    panels = []
    for link in links:
        cells = []
        for budget_bytes in budgets:
            tick(link)
            case = start.with_link(link, budget_bytes)
            if budget_bytes not in alone:
                alone[budget_bytes] = _ask(case, [p for p in planners if PLANNERS[p].family == "checkpoint"])
            moving = _ask(case, [p for p in planners if PLANNERS[p].family != "checkpoint"])
            cells.append(Cell(budget_bytes=budget_bytes, candidates=_fastest_first([*alone[budget_bytes], *moving])))
        panels.append(Panel(network=name, link=link, cells=tuple(cells)))
    return tuple(panels)


def describe_network(
    name: str, settings: tuple[str, ...], num_examples: int, chain: Chain, link: Link, notes: tuple[str, ...] = ()
) -> Network:
    """What a network takes before any planner has touched it, and what it takes at least."""
    case = Case(chain, max(1, chain.fixed.total_bytes), link)
    return Network(
        name=name,
        settings=settings,
        num_examples=num_examples,
        num_stages=len(chain.stages),
        plain_peak_bytes=case.nested.plain.peak_bytes,
        plain_seconds=case.nested.plain.seconds,
        smallest_budget_bytes=smallest_budget(case, PLANNERS["combined"]),
        notes=notes,
    )


def _ask(case: Case, planners: Sequence[str]) -> list[Candidate]:
    return [candidate_of(case, PLANNERS[name]) for name in planners]


def _fastest_first(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda c: (c.seconds is None, c.seconds or 0.0, c.peak_bytes or 0)))


def rank_planners(panels: Sequence[Panel]) -> tuple[PlannerStanding, ...]:
    """How often each planner fits, and its time over that of the fastest, over all panels and budgets."""
    over_best: dict[str, list[float | None]] = {}
    for cell in (cell for panel in panels for cell in panel.cells):
        best = cell.candidates[0].seconds
        for candidate in cell.candidates:
            ratio = None if candidate.seconds is None or not best else candidate.seconds / best
            over_best.setdefault(candidate.solver, []).append(ratio)
    standings = [_standing(name, ratios) for name, ratios in over_best.items()]
    return tuple(sorted(standings, key=lambda s: (-s.num_fits, s.mean_over_best or 0.0)))


def _standing(name: str, ratios: list[float | None]) -> PlannerStanding:
    known = [ratio for ratio in ratios if ratio is not None]
    return PlannerStanding(
        planner=name,
        family=PLANNERS[name].family,
        num_cells=len(ratios),
        num_fits=len(known),
        num_best=sum(ratio <= EQUALLY_FAST for ratio in known),
        mean_over_best=fmean(known) if known else None,
        worst_over_best=max(known, default=None),
    )


# ---- what the sources say --------------------------------------------------------------------------------------------


def statements_on(panels: Sequence[Panel], networks: Sequence[Network]) -> tuple[Statement, ...]:
    """Every statement with its verdict: the heuristics once, moving beside recomputing for each speed of the link."""
    speeds = dict.fromkeys(panel.link.out_bytes_per_second for panel in panels)
    return (_on_heuristics(panels), *(_on_moving(speed, panels, networks) for speed in speeds))


def _on_heuristics(panels: Sequence[Panel]) -> Statement:
    """Holds where the better heuristic is faster on average and more often faster than slower; the reverse refutes."""
    ratios = []
    for seconds in _answers(panels):
        earlier, ours = _least(seconds, EARLIER), _least(seconds, HEURISTICS)
        if earlier is not None and ours is not None:
            ratios.append(earlier / ours)
    if not ratios:
        reason = "there is no budget below the plain peak that both fit into"
        return judged(HEURISTICS_SAY, HEURISTICS_SOURCE, evidence=(), holds=None, reason=reason)
    faster, slower = sum(r > EQUALLY_FAST for r in ratios), sum(r < 1 / EQUALLY_FAST for r in ratios)
    mean = fmean(ratios)
    holds = None
    if (mean > EQUALLY_FAST) == (faster > slower) and faster != slower:
        holds = faster > slower
    evidence = (
        f"the better of the two heuristics against the best earlier rule that only moves: x{mean:.3f} as fast on "
        f"average over {len(ratios)} cases, from x{min(ratios):.3f} to x{max(ratios):.3f}",
        f"faster in {faster} of them, slower in {slower}, within a thousandth in the rest",
    )
    reason = "the average and the number of cases point different ways, or nowhere"
    return judged(HEURISTICS_SAY, HEURISTICS_SOURCE, evidence=evidence, holds=holds, reason=reason)


def _on_moving(speed: float, panels: Sequence[Panel], networks: Sequence[Network]) -> Statement:
    """Holds where at least a third of the recomputing planner's overhead is gone when it may move as well."""
    says = f"{COMBINED_SAYS} (over {speed / 1e9:g} GB/s)"
    overheads = []
    for network in networks:
        own = [p for p in panels if p.network == network.name and p.link.out_bytes_per_second == speed]
        for seconds in _answers(own):
            if "nested" in seconds and "combined" in seconds:
                overheads.append([seconds[name] / network.plain_seconds - 1 for name in ("nested", "combined")])
    recomputing = sum(pair[0] for pair in overheads)
    if recomputing <= 0:
        reason = "recomputing alone costs nothing at these budgets"
        return judged(says, COMBINED_SOURCE, evidence=(), holds=None, reason=reason)
    share = 1 - sum(pair[1] for pair in overheads) / recomputing
    evidence = (
        f"moving over {speed / 1e9:g} GB/s takes away {share:.0%} of the time that recomputing alone adds "
        f"({len(overheads)} cases)",
    )
    return judged(says, COMBINED_SOURCE, published="a third", evidence=evidence, holds=share >= A_THIRD)


def _answers(panels: Sequence[Panel]) -> Iterator[Mapping[str, float]]:
    """Seconds by planner at every budget below the plain peak."""
    for cell in (cell for panel in panels for cell in panel.cells[:-1]):
        yield {c.solver: c.seconds for c in cell.candidates if c.seconds is not None}


def _least(seconds: Mapping[str, float], names: Sequence[str]) -> float | None:
    return min((seconds[name] for name in names if name in seconds), default=None)


STANDARD: dict[str, tuple[str, ...]] = {
    "resnet50": ("batch_size=64",),
    "densenet121": ("batch_size=64",),
    "vgg16": ("batch_size=64",),
    "gpt": ("batch_size=8", "length=1024", "width=768", "heads=12", "layers=12", "words=8192"),
}
"""Workload: its settings."""
OTHERS: dict[str, tuple[str, ...]] = {"resnet18": ("batch_size=128",)}
"""Compared when they are asked for."""


def networks_called(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The networks that are meant with their settings; the standard ones when none is named."""
    known = {**STANDARD, **OTHERS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError("there is no such network here", found=", ".join(unknown), hint=f"one of {', '.join(known)}")
    return {name: known[name] for name in names} if names else dict(STANDARD)


def examples_in(settings: Sequence[str]) -> int:
    """How many examples one step takes."""
    return next(int(setting.split("=")[1]) for setting in settings if setting.startswith("batch_size="))
