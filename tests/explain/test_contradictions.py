"""Does any report contradict itself, do intervals hold the truth, and is nothing found where nothing is?

The rules are those of `memfit.testing.oracles.contradictions`; benchmarks/study/coverage.py runs more of the
same simulations.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from made_studies import made_study

from memfit.explain.study.explain import explain_study, explain_table, findings_of, report_of
from memfit.explain.study.statistics.inference import Base, Estimand, answer, rows_of_trials
from memfit.records.figure import Figure
from memfit.records.study_findings import Importance, StudyFinding, StudyFindings
from memfit.testing.made_records.simulated_studies import DESIGNS, DesignName, Truth, simulate, simulate_networks
from memfit.testing.oracles.contradictions import contradictions

NUM_STUDIES = 9


@pytest.mark.parametrize("design", DESIGNS)
def test_no_report_contradicts_itself_and_intervals_hold_the_truth(design: DesignName):
    """Of 45 intervals about 2 miss; more than 7 come up in 1 of 500 tries."""
    missed = 0
    for seed in range(NUM_STUDIES):
        made = simulate(design, seed)
        report, unknown = report_of(made.table)
        assert contradictions(findings_of(report, unknown), made.table.labels) == []
        for factor in report.plan.factors:
            missed += not holds_truth(factor, report.of(factor).intervals, made.truth)
    assert missed <= 7


def holds_truth(factor, intervals, truth: Truth) -> bool:
    highs = factor.options if factor.scale == "choice" else (factor.high,)
    changes = [truth.change(factor.name, factor.low, high) for high in highs]
    return all(low <= change <= high for change, (_, low, high) in zip(changes, intervals, strict=True))


@pytest.mark.parametrize(("design", "seed"), [("independent", 149), ("independent", 273), ("repeats", 158)])
def test_what_was_taken_out_by_a_look_at_memory_makes_nothing_else_a_finding(design: DesignName, seed: int):
    """Nothing is there but noise. Something besides hyperparameters seemed to stand out by itself, was taken out, and
    beside it as many as three hyperparameters were found."""
    made = simulate(design, seed, has_effects=False)
    report, unknown = report_of(made.table)
    assert report.taken_out
    findings = findings_of(report, unknown)
    assert [each.sentence for each in findings.findings if each.verdict == "found"] == []
    assert contradictions(findings, made.table.labels) == []


def test_networks_that_follow_the_law_get_it_without_contradiction_or_a_term_that_is_not_there():
    for seed in range(6):
        made = simulate_networks(seed)
        findings = explain_table(made.table)
        assert contradictions(findings, made.table.labels) == []
        (law,) = findings.about("law")
        assert law.verdict == "found"
        assert ("per activation" in law.sentence) == (seed % 2 == 1)


def test_memory_above_a_floor_is_judged_by_what_varies():
    """6 MiB on top of 370: hidden units make all the difference there is, so they matter."""
    study = made_study(lambda row, place: row["width"] / 80, noise_mib=0.2)
    (width,) = explain_study(study).about("hyperparameter", "width")
    assert width.verdict == "found"
    (dropout,) = explain_study(study).about("hyperparameter", "dropout")
    assert dropout.verdict == "ruled out"


def test_repeats_of_one_point_are_no_evidence_that_counts_several_times():
    """Twelve points, each with an oddity of its own, run five times: 60 trials know no more than 12."""
    random = np.random.default_rng(0)
    num_found = 0
    for seed in range(10):
        points = [{"a": float(random.uniform()), "b": float(random.uniform())} for _ in range(12)]
        odd = random.normal(0, 20, 12)
        rows = [points[i % 12] for i in range(60)]
        study = made_study(lambda row, place, odd=odd: float(odd[place % 12]), rows=rows, noise_mib=0.5, seed=seed)
        num_found += any(f.verdict == "found" for f in explain_study(study).findings)
    assert num_found <= 3


def test_the_number_of_a_trial_is_that_of_the_study():
    study = made_study(lambda row, place: 300.0 * (place >= 25))
    later = tuple(
        msgspec.structs.replace(trial, proposal=msgspec.structs.replace(trial.proposal, number=trial.number + 100))
        for trial in study.trials
    )
    (order,) = explain_study(msgspec.structs.replace(study, trials=later)).about("order of recording")
    assert "trials 100-124 and trials 125-139" in order.sentence


def test_an_interval_of_one_contrast_is_students_where_noise_is_normal_and_leverage_equal():
    """An oracle: two groups of 20, where the exact interval is known; HC3 is 1 / (1 - 1/20) wider in its error, and the
    calibration takes that back."""
    from memfit.explain.student_t import t_quantile

    y = np.random.default_rng(3).normal(100, 1, 40)
    group = np.repeat([0.0, 1.0], 20)[:, None]
    base = Base(np.ones((40, 1)), rows_of_trials(40))
    question = Estimand(key=("x",), base=base, further=group, contrasts=np.array([[0.0, 1.0]]))
    (_, low, high) = answer([question], y)["x",].change
    pooled = np.sqrt((y[:20].var(ddof=1) + y[20:].var(ddof=1)) / 2 * 2 / 20)
    assert (high - low) / 2 == pytest.approx(t_quantile(38) * pooled, rel=0.04)


# ---- every rule can be broken ----------------------------------------------------------------------------------------


def report_with(*findings: StudyFinding, importances: tuple[Importance, ...] = (), notes: tuple[str, ...] = ()):
    return StudyFindings(
        title="", quantity="", num_trials=9, low_bytes=0.0, high_bytes=100.0, differ_bytes=100.0, matters_bytes=10.0,
        error_rate=0.05, findings=findings, importances=importances, notes=notes,
    )  # fmt: skip


def effect(low: float, high: float) -> Figure:
    return Figure(value=(low + high) / 2, unit="bytes", source="measured", low=low, high=high)


def about(name: str, verdict: str, low: float, high: float, **more) -> StudyFinding:
    given = {"topic": "hyperparameter", "subjects": (name,), "sentence": name, "p": 0.01 if verdict == "found" else 0.5}
    return StudyFinding(verdict=verdict, effect=effect(low, high), **(given | more))  # pyright: ignore[reportArgumentType]


PAIR = StudyFinding(topic="interaction", subjects=("a", "b"), verdict="found", sentence="a and b act together", p=0.01)
LAW = StudyFinding(
    topic="law", verdict="found", sentence="memory follows a law: 3 MiB + -6 bytes per parameter", p=0.01
)
BROKEN = {
    "found with zero": report_with(about("a", "found", -1, 50)),
    "found by chance": report_with(about("a", "found", 20, 50, p=0.3)),
    "not found, yet sure": report_with(about("a", "cannot tell", 20, 50, p=0.01)),
    "ruled out, yet large": report_with(about("a", "ruled out", -5, 50)),
    "anything without zero": report_with(about("a", "cannot tell", 20, 50, sentence="it could be anything from")),
    "two verdicts": report_with(about("a", "cannot tell", -20, 50), about("a", "ruled out", -1, 5)),
    "partner ruled out": report_with(about("a", "ruled out", -1, 5), PAIR),
    "negative bytes": report_with(LAW),
    "important, not found": report_with(importances=(Importance(name="a", share=1.0),)),
    "wrong trend": report_with(about("a", "found", 20, 50, evidence=("memory falls with it in order",))),
    "nothing beside something": report_with(about("a", "found", 20, 50), notes=("nothing to explain: 2 trials",)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_seen(name: str):
    assert len(contradictions(BROKEN[name])) >= 1


def test_a_trial_that_is_not_there_is_seen():
    pair = StudyFinding(topic="pair", subjects=("3", "9"), verdict="note", sentence="")
    assert contradictions(report_with(pair), range(5)) == ["there is no trial 9"]


def test_further_columns_go_beside_a_basis_that_is_there():
    """The whole was decomposed anew for each of a hundred questions: four times the processor's seconds of a report."""
    random = np.random.default_rng(0)
    base = Base(np.hstack([np.ones((50, 1)), random.normal(size=(50, 3))]), rows_of_trials(50))
    further = np.hstack([1e6 * random.normal(size=(50, 1)), base.columns[:, [1]] + 1e-5 * random.normal(size=(50, 1))])
    basis, triangle, norms = base.with_further(further)
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(basis @ triangle * norms, np.hstack([base.columns, further]), rtol=1e-9, atol=1e-9)
