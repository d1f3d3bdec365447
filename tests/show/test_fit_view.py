"""Does the table of candidates say who fits, who needs how much, and who has no plan and why?"""

from __future__ import annotations

from memfit.plan.planners import compare_planners, make_plan
from memfit.records.fit import Fit, LoopFit, Proof
from memfit.records.plan import Link
from memfit.show.terminal.fit import fit_text, loop_fit_text
from memfit.testing.made_records.chains import even_chain
from memfit.units import format_bytes

LINK = Link(name="host memory", out_bytes_per_second=8e9, in_bytes_per_second=8e9)


def test_a_planner_is_chosen_too_large_or_without_a_plan_for_a_reason():
    chain = even_chain(8)
    budget_bytes = make_plan(chain, 2**50).plain_peak_bytes * 3 // 4
    plan = make_plan(chain, budget_bytes, link=LINK)
    names = ["combined", "revolve", "keep all", "vDNN conv"]
    candidates = compare_planners(chain, budget_bytes, link=LINK, names=names)
    text = fit_text(
        Fit(target="made", budget_bytes=budget_bytes, plan=plan, candidates=candidates), width=110, color=False
    )
    rows = {line.strip("* ").split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    assert f"* combined {format_bytes(plan.peak_bytes)}" in rows["combined"]
    assert "does not fit" in rows["keep all"]
    assert "fit" not in rows["revolve"]
    assert rows["vDNN conv"] == "vDNN conv ? no plan"
    assert "vDNN conv: no stage is a convolution with a stage before it" in text


def test_the_headline_has_the_users_budget_and_what_was_measured():
    """A plan that promises more than it takes is sought above the budget, and proven to hold it."""
    chain = even_chain(8)
    budget_bytes = make_plan(chain, 2**50).plain_peak_bytes * 3 // 4
    plan = make_plan(chain, budget_bytes * 21 // 20)
    measured_bytes = budget_bytes - 4096
    proof = Proof(num_compared=3, promised_bytes=plan.peak_bytes, measured_peak_bytes=measured_bytes)
    fit = Fit(target="made", budget_bytes=budget_bytes, plan=plan, candidates=(), proof=proof)
    headline = fit_text(fit, width=200, color=False).splitlines()[0]
    assert headline.endswith(f"{format_bytes(measured_bytes)} measured for a budget of {format_bytes(budget_bytes)}")
    assert f"promise up to {format_bytes(plan.budget_bytes)} were tried" in fit_text(fit, width=200, color=False)


def test_of_several_plans_of_a_script_the_largest_is_shown_with_what_its_plain_step_was_measured_with():
    """A chain may count what is called twice too high: where all is kept, the proof has measured the plain step."""

    def fit_of(num_stages: int, measured_bytes: int) -> Fit:
        plan = make_plan(even_chain(num_stages), 2**50)
        proof = Proof(num_compared=3, promised_bytes=plan.peak_bytes, measured_peak_bytes=measured_bytes)
        return Fit(target="made", budget_bytes=measured_bytes + 1, plan=plan, candidates=(), proof=proof)

    large, small = fit_of(8, 3 * 2**20), fit_of(4, 2**20)
    found = LoopFit(name="train.py", budget_bytes=large.budget_bytes, fits=(large, small))
    text = loop_fit_text(found, width=200, color=False)
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    assert rows["with everything kept"].startswith("with everything kept 3.00 MiB")
    assert rows["with everything kept"].endswith("the largest of 2 plans")
    assert rows["promised"].endswith("more than was measured, which counts")
