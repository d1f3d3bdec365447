"""Document of a plan: its promise, the curve of time against memory, its candidates, and its schedule as a chart."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from memfit.records.files.ranges import MOST_BYTES
from memfit.records.fit import Fit, LoopFit
from memfit.records.plan import Plan, Step
from memfit.show.as_json import plain
from memfit.show.page.documents.document import Body, Document, codes, numbers
from memfit.units import format_bytes

ROWS = ("compute", "recompute", "sent over the link", "fetched back")
STEP_ROWS = {"recompute": "recompute"}


def plan_document(plan: Plan, fit: Fit | None = None, loop: LoopFit | None = None) -> Document:
    """Everything the page draws of a plan, and of the fit and the training that it comes from where they are known."""
    names = (
        "solver", "budget_bytes", "peak_bytes", "seconds", "plain_peak_bytes", "plain_seconds", "recompute_seconds",
        "stall_seconds", "moved_bytes", "lower_bound_seconds", "bound_of", "smallest_budget_bytes", "binding",
        "decisions", "frontier", "levers", "applied_levers", "notes", "link",
    )  # fmt: skip
    body: Body = {name: plain(getattr(plan, name)) for name in names}
    budget_bytes = budget_of(plan, fit)
    body["budget_bytes"] = budget_bytes
    measured_bytes = None if fit is None else fit.measured_peak_bytes
    peak_bytes = plan.peak_bytes if measured_bytes is None else measured_bytes
    fits = budget_bytes is None or peak_bytes <= budget_bytes
    body |= {"gap": plan.gap, "slowdown": plan.slowdown, "fits": fits, "target": plan.chain.target}
    body |= {"device": plan.chain.device, "source": plan.chain.source, "time_source": plan.chain.time_source}
    body["sentence"] = plan_sentence(plan, budget_bytes, measured_bytes)
    body["gantt"] = _gantt(plan)
    body["memory"] = {
        "seconds": numbers([step.start_seconds for step in plan.steps]),
        "bytes": numbers([step.memory_bytes for step in plan.steps]),
        "end_seconds": numbers([step.start_seconds + step.seconds for step in plan.steps]),
    }
    body["candidates"] = [] if fit is None else plain(fit.candidates)
    body["proof"] = None if fit is None or fit.proof is None else plain(fit.proof)
    body["unproven_because"] = "" if fit is None else fit.unproven_because
    body["loop"] = (
        None if loop is None else {**plain(msgspec.structs.replace(loop, fits=())), "num_plans": len(loop.fits)}
    )
    title = (plan.chain.target if fit is None else fit.target) or "a training"
    within = "without a budget" if budget_bytes is None else f"within {format_bytes(budget_bytes)}"
    return Document(kind="plan", title=f"{title} {within}", body=body)


def budget_of(plan: Plan, fit: Fit | None = None) -> int | None:
    """What was asked for; a plan for a training that fits as it is was made without a budget."""
    budget_bytes = plan.budget_bytes if fit is None else fit.budget_bytes
    return None if budget_bytes >= MOST_BYTES else budget_bytes


def plan_sentence(plan: Plan, budget_bytes: int | None, measured_bytes: int | None = None) -> str:
    """What a step takes under the plan, measured or as promised, and what that costs."""
    longer = 100 * (plan.slowdown - 1)
    price = f"{longer:.0f} % longer" if longer >= 0.5 else "no longer"
    peak_bytes = plan.peak_bytes if measured_bytes is None else measured_bytes
    promise = "" if measured_bytes is None else f" (measured; {format_bytes(plan.peak_bytes)} promised)"
    fits = "with no budget to keep"
    if budget_bytes is not None:
        fits = f"{'within' if peak_bytes <= budget_bytes else 'above'} the budget of {format_bytes(budget_bytes)}"
    is_plain = plan.peak_bytes == plan.plain_peak_bytes and longer < 0.5
    instead = "with everything kept" if is_plain else f"in place of {format_bytes(plan.plain_peak_bytes)}"
    return (
        f"A step takes {format_bytes(peak_bytes)}{promise} {instead}, {fits}{'' if is_plain else f', and {price}'} "
        f"(sizes {plan.chain.source}, times {plan.chain.time_source}); the peak is {plan.binding.where}."
    )


def _gantt(plan: Plan) -> Body:
    """Bars of the compute stream and of the link."""
    bars = [*_compute_bars(plan), *_link_bars(plan)]
    return {
        "rows": list(ROWS),
        "row": codes([bar[0] for bar in bars], ROWS),
        "name": codes([bar[1] for bar in bars]),
        "start": numbers([bar[2] for bar in bars]),
        "end": numbers([bar[3] for bar in bars]),
        "kind": codes([bar[4] for bar in bars]),
    }


def _compute_bars(plan: Plan) -> Iterator[tuple[str, str, float, float, str]]:
    for step in plan.steps:
        row = STEP_ROWS.get(step.kind, "compute")
        yield row, _stage(plan, step), step.start_seconds, step.start_seconds + step.seconds, step.kind


def _link_bars(plan: Plan) -> Iterator[tuple[str, str, float, float, str]]:
    for move in plan.moves:
        name = f"{plan.chain.stages[move.boundary].name}, {format_bytes(move.num_bytes)}"
        yield "sent over the link", name, *move.send_seconds, "move"
        yield "fetched back", name, *move.fetch_seconds, "move"


def _stage(plan: Plan, step: Step) -> str:
    return "the optimizer's step" if step.stage is None else plan.chain.stages[step.stage].name
