"""A fit in the terminal: candidates side by side, the plan, its proof, and what to do with it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.records.fit import Fit, LoopFit, Proof
from memfit.records.plan import Candidate, Lever, Plan
from memfit.show.text_output import render
from memfit.units import bytes_rounded_up, format_bytes, format_ratio, format_seconds

MOST_DECISIONS = 8


def fit_text(fit: Fit, *, width: int, color: bool) -> str:
    """The whole answer."""
    plan = fit.plan
    parts: list[RenderableType] = [
        Text(f"{fit.target}: {_headline(fit)}"),
        Text(""),
        _candidates(fit.candidates, plan),
        *_reasons(fit.candidates),
        Text(""),
        Text("\n".join(_plan_lines(plan))),
    ]
    if plan.decisions:
        parts += [Text(""), _decisions(plan)]
    parts += [Text(""), Text("\n".join(_proof_lines(fit)))]
    for name, lines in (("Notes", (*fit.notes, *plan.notes)), ("Load it with", _how_to_load(fit))):
        if lines:
            parts.append(Text(f"\n{name}:\n" + "\n".join(f"  {line}" for line in lines)))
    return render(Group(*parts), width, color)


def _headline(fit: Fit) -> str:
    """What was measured under the plan, where something was: a plan may promise more than it takes, and be aimed so."""
    measured_bytes = fit.measured_peak_bytes
    peak_bytes, how = (fit.plan.peak_bytes, "planned") if measured_bytes is None else (measured_bytes, "measured")
    return (
        f"{format_bytes(fit.plan.plain_peak_bytes)} with everything kept, "
        f"{format_bytes(peak_bytes)} {how} for a budget of {format_bytes(fit.budget_bytes)}"
    )


def _candidates(candidates: tuple[Candidate, ...], plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("plan", "peak", "step", "slower by", "waits", "moved"):
        table.add_column(name, justify="left" if name == "plan" else "right")
    for candidate in candidates:
        table.add_row(*_row(candidate, plan))
    return table


def _row(candidate: Candidate, plan: Plan) -> list[str]:
    mark = "* " if candidate.solver == plan.solver and candidate.fits else "  "
    peak = "?" if candidate.peak_bytes is None else format_bytes(candidate.peak_bytes)
    if not candidate.fits or candidate.seconds is None:
        return [mark + candidate.solver, peak, "does not fit" if candidate.peak_bytes else "no plan", "", "", ""]
    slower = candidate.seconds / plan.plain_seconds - 1.0 if plan.plain_seconds else 0.0
    return [
        mark + candidate.solver,
        peak,
        format_seconds(candidate.seconds),
        format_ratio(slower),
        format_seconds(candidate.stall_seconds) if candidate.stall_seconds else "",
        format_bytes(candidate.moved_bytes) if candidate.moved_bytes else "",
    ]


def _reasons(candidates: tuple[Candidate, ...]) -> list[RenderableType]:
    """Why some have no plan at all, not even one that is too large."""
    return [Text(f"  {c.solver}: {c.reason}") for c in candidates if c.peak_bytes is None and c.reason]


def _plan_lines(plan: Plan) -> list[str]:
    link = f", link {plan.link.name} ({plan.link.source})" if plan.link is not None else ""
    return [
        f"Plan: {plan.solver}, {format_seconds(plan.seconds)} per step, {format_ratio(plan.slowdown - 1)} slower than "
        f"plain, at most {format_ratio(plan.gap)} above the best of {plan.bound_of}",
        f"Sizes are {plan.chain.source}, times are {plan.chain.time_source}{link}",
        f"The peak is {plan.binding.where}: "
        + ", ".join(f"{part.name} {format_bytes(part.num_bytes)}" for part in plan.binding.parts[:4]),
        _last_line(plan),
        *_lever_lines(plan),
    ]


_LEVER_WORDS = {
    "step-in-backward": "the optimizer steps each parameter in the backward; gradients cannot be read after it",
    "chunked-loss": "the loss is computed in chunks of rows; all logits are never there",
}


def _lever_lines(plan: Plan) -> list[str]:
    levers = plan.applied_levers
    return [f"Lever {lever.name}: {_LEVER_WORDS.get(lever.name, 'applied')}{_of(lever.module)}" for lever in levers]


def _of(module: str) -> str:
    return f" ({module})" if module else ""


def _last_line(plan: Plan) -> str:
    if plan.operators is None:
        return f"Smallest budget for a plan of this kind: {format_bytes(plan.smallest_budget_bytes)}"
    choice, moved = plan.operators, sum(each.is_moved for each in plan.operators.dropped)
    moves = f", {moved} are moved ({format_bytes(plan.moved_bytes)})" if moved else ""
    again = f"{len(choice.dropped) - moved} saved tensors are dropped, {len(choice.repeated)} operators are run again"
    return f"Operator by operator: {again}{moves}"


def _decisions(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("decision")
    table.add_column("bytes freed", justify="right")
    table.add_column("seconds paid", justify="right")
    ordered = sorted(plan.decisions, key=lambda decision: -decision.freed_bytes)
    for decision in ordered[:MOST_DECISIONS]:
        table.add_row(decision.what, format_bytes(decision.freed_bytes), format_seconds(decision.paid_seconds))
    if len(ordered) > MOST_DECISIONS:
        table.add_row(f"and {len(ordered) - MOST_DECISIONS} more", "", "")
    return table


def _proof_lines(fit: Fit) -> list[str]:
    proof = fit.proof
    if proof is None:
        return [f"Nothing was run or measured: {fit.unproven_because or 'no proof was asked for'}"]
    lines = [_same_line(proof)]
    if proof.measured_peak_bytes is not None:
        lines.append(
            f"Measured peak of the planned step: {format_bytes(proof.measured_peak_bytes)}; promised "
            f"{format_bytes(proof.promised_bytes)}, budget {format_bytes(fit.budget_bytes)}"
        )
    if fit.plan.budget_bytes > fit.budget_bytes:
        aim = format_bytes(fit.plan.budget_bytes)
        lines.append(f"Promises lie above what is measured here: plans that promise up to {aim} were tried")
    if fit.num_rounds > 1:
        lines.append(f"Planned {fit.num_rounds} times until the measured peak lay within the budget")
    if fit.kept_blocks:
        lines.append("Kept, because they compute something else when run again: " + ", ".join(fit.kept_blocks))
    return lines


def _same_line(proof: Proof) -> str:
    what = f"loss, gradients, buffers and random state ({proof.num_compared} values)"
    if proof.bit_equal:
        return f"Proven: with the same seed, {what} are bit-equal with and without the plan"
    if proof.inexact_because:
        return (
            f"Proven within tolerance, NOT bit-equal: {len(proof.within_tolerance)} of {what} differ"
            f"{_by_at_most(proof)}; {proof.inexact_because}"
        )
    return (
        f"Proven within tolerance: {len(proof.within_tolerance)} of {what} differ as much as two plain runs do: "
        "kernels here are not deterministic"
    )


def _by_at_most(proof: Proof) -> str:
    return "" if proof.largest_share is None else f", gradients by at most {proof.largest_share:.1g} of the largest"


def _how_to_load(fit: Fit) -> tuple[str, ...]:
    if not fit.plan_file:
        return ()
    needs_optimizer = any(lever.name == "step-in-backward" for lever in fit.plan.applied_levers)
    return (f"memfit.apply_plan(model, {fit.plan_file!r}{', optimizer=optimizer' if needs_optimizer else ''})",)


def loop_fit_text(found: LoopFit, *, width: int, color: bool) -> str:
    """What came of a training script that was fitted while it ran."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for what, value, more in _loop_rows(found):
        table.add_row(what, value, more)
    parts: list[RenderableType] = [Text(f"\n{found.name or 'training'}: {_loop_headline(found)}"), table]
    notes = dict.fromkeys((*found.notes, *found.departures))
    if notes:
        parts.append(Text("Notes:\n" + "\n".join(f"  {note}" for note in notes)))
    if found.plan_file:
        parts.append(Text(f"The plan is in {found.plan_file}; --plan {found.plan_file} uses it again"))
    return render(Group(*parts), width, color)


def _loop_headline(found: LoopFit) -> str:
    budget = format_bytes(found.budget_bytes)
    if found.ended:
        return f"did not end well ({found.ended}); budget {budget}"
    if found.within_budget is None and found.num_unsure:
        return f"not known whether within {budget}: {found.num_unsure} measured passes may have taken more"
    if found.within_budget is None:
        return f"a plan for {budget} was proven and not used"
    if found.is_over_between_passes and not found.num_over_budget:
        more = f"every measured pass within {budget}; between passes (evaluation) the program took MORE than the budget"
        return f"{more}; try smaller batches there, or --budget {_enough_for(found.between_peak_bytes or 0)} or more"
    return _under_the_plan(found, budget) + _before_the_plan(found)


def _under_the_plan(found: LoopFit, budget: str) -> str:
    if found.within_budget and found.num_unsure:
        return f"within {budget} as far as is known; {found.num_unsure} more measured passes may have taken more"
    if found.within_budget and found.departures:
        return f"within {budget} in every measured pass; a pass that was not measured may have taken more (see notes)"
    if found.within_budget:
        return f"trained within {budget}"
    over = f"OVER the budget of {budget} in {found.num_over_budget} of {found.num_measured} measured passes"
    peak_bytes = found.measured_peak_bytes
    if peak_bytes is None or peak_bytes <= found.budget_bytes:
        return over
    return f"{over}; try --budget {_enough_for(peak_bytes)}, which the highest took"


def _enough_for(peak_bytes: int) -> str:
    """A budget as the command line takes it."""
    return format_bytes(bytes_rounded_up(peak_bytes)).replace(" ", "")


def _before_the_plan(found: LoopFit) -> str:
    if (found.first_peak_bytes or 0) <= found.budget_bytes:
        return ""
    return "; before there was a plan, a pass took MORE"


def _loop_rows(found: LoopFit) -> list[tuple[str, str, str]]:
    rows = []
    for fit in sorted(found.fits, key=lambda each: each.plan.plain_peak_bytes)[-1:]:  # of the last among the largest
        rows += _plan_rows(fit, len(found.fits))
    if found.measured_peak_bytes is not None:
        at_most = ", at most" if found.is_upper_bound else ""
        passes = f"measured{at_most}; highest of {found.num_measured} measured of {found.num_passes} passes"
        rows.append(("in the training", format_bytes(found.measured_peak_bytes), passes))
    if found.first_peak_bytes is not None:
        rows.append(("before there was a plan", format_bytes(found.first_peak_bytes), "measured, at most"))
    if found.between_peak_bytes is not None:
        are = "evaluation, which runs as it is" if found.num_between == 1 else "evaluations, which run as they are"
        stretches = f"measured, at least; {found.num_between} {are}"
        rows.append(("between passes", format_bytes(found.between_peak_bytes), stretches))
    if found.process_peak_bytes is not None:
        rows.append(("whole process", format_bytes(found.process_peak_bytes), "measured; with Python and libraries"))
    if found.fits:
        times = f"of {format_seconds(found.seconds)}; {len(found.fits)} plan{'s' if len(found.fits) > 1 else ''}"
        rows.append(("fitting took", format_seconds(found.fitting_seconds), times))
    return rows


def _plan_rows(fit: Fit, num_plans: int) -> list[tuple[str, str, str]]:
    """What one plan promises, and what it took in its proof."""
    plan, proof = fit.plan, fit.proof
    measured_bytes = None if proof is None else proof.measured_peak_bytes
    keeps_all = plan.peak_bytes == plan.plain_peak_bytes and not (plan.operators or plan.applied_levers)
    kept_bytes = measured_bytes if keeps_all and measured_bytes is not None else plan.plain_peak_bytes
    of_which = f"{plan.chain.source}{f'; the largest of {num_plans} plans' if num_plans > 1 else ''}"
    rows = [("with everything kept", format_bytes(kept_bytes), of_which)]
    rows += [("lever", lever.name, _LEVER_WORDS.get(lever.name, "")) for lever in plan.applied_levers]
    too_much = "; more than was measured, which counts" if fit.budget_bytes < plan.peak_bytes else ""
    rows.append(
        ("promised", format_bytes(plan.peak_bytes), f"plan {plan.solver}, {_slower(plan)} than plain{too_much}")
    )
    if proof is not None and measured_bytes is not None:
        same = "bit-equal to the plain step" if proof.bit_equal else "equal to the plain step within its own noise"
        if proof.inexact_because:
            same = f"NOT bit-equal to the plain step, within tolerance{_by_at_most(proof)}"
        rows.append(("in the proof", format_bytes(measured_bytes), f"measured; {same}"))
    return rows


def _slower(plan: Plan) -> str:
    return f"{format_ratio(plan.slowdown - 1)} slower"


def levers_text(levers: tuple[Lever, ...], *, width: int, color: bool) -> str:
    """What remains when no plan fits."""
    table = Table(box=None, pad_edge=False)
    for name in ("lever", "smallest budget", "fits", "price"):
        table.add_column(name, overflow="fold")
    for lever in levers:
        fits = "no" if lever.peak_bytes is None else "yes"
        table.add_row(lever.name, format_bytes(lever.smallest_budget_bytes), fits, lever.price)
    return render(table, width, color)
