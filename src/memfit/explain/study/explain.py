"""Explanation of a study: one number of memory per trial in, findings in plain sentences out.

What else than hyperparameters moved memory (order, other programs, time of day), what each hyperparameter does alone
and in pairs, and the law: all are estimated by one inference (`statistics/inference.py`) and share an error rate of one
in twenty. In a study without any effect, at most one in twenty shows a finding. Verdict and interval come from the same
statistic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memfit.explain.study.effects import EffectPlan, found_pairs, plan_effects
from memfit.explain.study.importance import importances_of
from memfit.explain.study.law import Law, fit_law
from memfit.explain.study.sentences import effects as say_effects
from memfit.explain.study.sentences import order, sizes
from memfit.explain.study.sentences.report import StudyReport
from memfit.explain.study.sentences.words import counted_trials
from memfit.explain.study.statistics.design import Design, beside_points, design_of, repeats_spread, twins_of
from memfit.explain.study.statistics.drift_intervals import with_unseen_steps
from memfit.explain.study.statistics.inference import (
    ERROR_RATE,
    Estimate,
    Key,
    answer,
    scatter_of_points,
)
from memfit.explain.study.statistics.regression import independent, residuals
from memfit.explain.study.table import Table, table_of
from memfit.explain.study.time_and_background import (
    ORDER,
    Circumstance,
    beyond_order,
    circumstances_of,
    settled,
)
from memfit.records.study import Study
from memfit.records.study_findings import Importance, StudyFindings

MIN_TRIALS = 3
MATTERS = 0.1
"""An effect below this share of what the trials differ by does not matter: it makes a hundredth of their variance."""


def explain_study(study: Study, quantity: str | None = None) -> StudyFindings:
    """Explain a study; `quantity` is 'peak' or 'average', by default the one that most trials have."""
    return explain_table(table_of(study, quantity))


def explain_table(table: Table) -> StudyFindings:
    """Explain a table of trials."""
    if len(table) < MIN_TRIALS or np.ptp(table.memory_bytes) == 0:
        return _nothing(table)
    return findings_of(*report_of(table))


def findings_of(report: StudyReport, unknown: dict[str, str]) -> StudyFindings:
    """A report in sentences; `unknown` holds what could not be asked, with the reason."""
    table, design = report.table, report.design
    notes = [
        *order.left_out_notes(table),
        *order.far_off_notes(table),
        *order.unsure_notes(table, report.matters_bytes),
    ]
    if design.constant:
        notes.append(f"did not vary: {', '.join(design.constant)}")
    importances, reason = _importances(report)
    return StudyFindings(
        title=table.title,
        quantity=table.quantity,
        num_trials=len(table),
        num_points=design.num_points,
        low_bytes=float(table.memory_bytes.min()),
        high_bytes=float(table.memory_bytes.max()),
        differ_bytes=report.differ_bytes,
        matters_bytes=report.matters_bytes,
        error_rate=ERROR_RATE,
        findings=(
            *(order.circumstance_finding(report, each) for each in report.circumstances),
            *(order.unknown_circumstance(topic, why, table) for topic, why in unknown.items()),
            *say_effects.effect_findings(report),
            *say_effects.joint_findings(report),
            sizes.law_finding(report),
            *sizes.size_findings(table),
            *sizes.twin_findings(report, twins_of(table), repeats_spread(table)),
        ),
        importances=importances,
        importance_reason=reason,
        notes=tuple(notes),
        constant=design.constant,
    )


def report_of(table: Table, *, over_time: bool = True) -> tuple[StudyReport, dict[str, str]]:
    """Ask everything, and answer it at once; what moved memory besides hyperparameters is taken out of their
    effects. `over_time` is False where the rows are not in the order of time."""
    design = design_of(table)
    y = table.memory_bytes
    asked, unknown = circumstances_of(table, design) if over_time else ([], {})
    circumstances, taken_out, aliased = _taken_out(asked, table, design)
    unknown |= aliased
    covariates = np.hstack([np.empty((len(table), 0)), *(each.columns for each in taken_out)])
    if covariates.shape[1]:
        covariates = independent(np.hstack([np.ones((len(table), 1)), covariates]))[:, 1:]
    plan = plan_effects(design, covariates, in_order=over_time)
    law = fit_law(table, design, covariates)
    answers = _answers(circumstances, plan, law, table, design)
    if taken_out:
        answers = _behind_the_first_look(answers, circumstances, table, design, in_order=over_time)
    answers |= _allowing_for_steps(answers, plan, circumstances, taken_out, y, design)
    answers |= {question.key: answers[question.key].by_size() for question in plan.questions}
    report = StudyReport(
        table=table,
        design=design,
        circumstances=tuple(circumstances),
        taken_out=tuple(each.key for each in taken_out),
        covariates=covariates,
        plan=plan,
        law=law,
        answers=answers,
        differ_bytes=differ_bytes(y),
        matters_bytes=MATTERS * differ_bytes(y),
    )
    return report, unknown


def _answers(
    circumstances: list[Circumstance], plan: EffectPlan, law: Law | str, table: Table, design: Design
) -> dict[Key, Estimate]:
    """All questions of the report at once. Where points are compared by their repeats, those say how far each point
    scatters; elsewhere one scatter has to do."""
    questions = [question for each in circumstances for question in each.questions]
    questions += [*plan.questions, *(() if isinstance(law, str) else law.questions)]
    scatter = None
    if plan.is_by_repeats:
        assert plan.base is not None
        scatter = scatter_of_points(plan.base, design.points, table.memory_bytes)
    return answer(questions, table.memory_bytes, scatter)


def _behind_the_first_look(
    answers: dict[Key, Estimate], circumstances: list[Circumstance], table: Table, design: Design, *, in_order: bool
) -> dict[Key, Estimate]:
    """The answers beside what was taken out, no surer than the surest of the same questions with nothing taken out.

    What is taken out was chosen by a look at memory: where nothing is there, one study in twenty has something that
    seems to stand out by itself, and beside it noise is small, so that more than half of those studies would show a
    finding. All questions together before anything was taken out (a closed test) keep the error rate of the report.
    """
    nothing = np.empty((len(table), 0))
    plan, law = plan_effects(design, nothing, in_order=in_order), fit_law(table, design, nothing)
    first_look = _answers(circumstances, plan, law, table, design)
    surest = min(each.p for each in first_look.values())
    return {key: replace(each, p=max(each.p, surest)) for key, each in answers.items()}


def _allowing_for_steps(
    answers: dict[Key, Estimate],
    plan: EffectPlan,
    circumstances: list[Circumstance],
    taken_out: list[Circumstance],
    y: np.ndarray,
    design: Design,
) -> dict[Key, Estimate]:
    """The answers on single hyperparameters, with intervals that hold whichever step in time is there."""
    order_of_recording = next((each for each in circumstances if each.key == ORDER), None)
    mains = [question for question in plan.questions if question.key[0] == "hyperparameter"]
    if order_of_recording is None:
        return {}
    is_in_the_model = order_of_recording in taken_out and _is_asked_beside(order_of_recording, plan, design)
    return with_unseen_steps(
        answers,
        mains,
        np.hstack(order_of_recording.candidates),
        y,
        step_place=1 if is_in_the_model else None,  # behind the intercept: the order comes first of all circumstances
        none_is_plausible=not is_in_the_model,
    )


def _is_asked_beside(order_of_recording: Circumstance, plan: EffectPlan, design: Design) -> bool:
    """Whether the model of hyperparameters has a column for it: not where it is the same at all points, or (by
    repeats) where it is a difference between points."""
    if not plan.is_by_repeats:
        return beside_points(design, order_of_recording.columns).shape[1] > 1
    assert plan.base is not None
    return plan.base.columns.shape[1] > design.num_points


def _taken_out(
    asked: list[Circumstance], table: Table, design: Design
) -> tuple[list[Circumstance], list[Circumstance], dict[str, str]]:
    """All circumstances with what the data say, those that stand out among themselves, and what cannot be separated
    from a step or drift that does."""
    known, found = _answered(asked, table, design)
    recorded = next((each for each in found if each.key == ORDER), None)
    if recorded is None:
        return known, found, {}
    again, unknown = beyond_order(known, recorded)
    return *_answered(again, table, design), unknown


def _answered(asked: list[Circumstance], table: Table, design: Design) -> tuple[list[Circumstance], list[Circumstance]]:
    answers = answer([question for each in asked for question in each.questions], table.memory_bytes)
    known = [settled(each, answers[each.key], table, design) for each in asked]
    return known, [each for each in known if answers[each.key].is_found and not each.fails]


def differ_bytes(memory_bytes: np.ndarray) -> float:
    """What the trials differ by: the span of the middle nine tenths of them."""
    low, high = np.quantile(memory_bytes, [0.05, 0.95])
    return float(high - low)


def _nothing(table: Table) -> StudyFindings:
    notes = [*order.left_out_notes(table), *order.unsure_notes(table, 0.0)]
    known = table.memory_bytes
    too_few = f"{counted_trials(len(known))} with a number; {MIN_TRIALS} or more are needed"
    why = "every trial took the same memory" if len(known) >= MIN_TRIALS else too_few
    return StudyFindings(
        title=table.title,
        quantity=table.quantity,
        num_trials=len(table),
        low_bytes=float(known.min()) if len(known) else None,
        high_bytes=float(known.max()) if len(known) else None,
        error_rate=ERROR_RATE,
        findings=(),
        importance_reason=why,
        notes=(*notes, f"nothing to explain: {why}"),
    )


def _importances(report: StudyReport) -> tuple[tuple[Importance, ...], str]:
    """Of the hyperparameters with an effect that was found, alone or in a pair."""
    plan, answers = report.plan, report.answers
    names = {factor.name for factor in plan.factors if report.of(factor).is_found}
    names |= {factor.name for pair in found_pairs(plan, answers) for factor in pair}
    if not names:
        return (), plan.reason or "no hyperparameter has an effect that stands out from chance"
    y = report.table.memory_bytes
    covariates = np.hstack([np.ones((len(y), 1)), report.covariates])
    factors = [options[0] for options in report.design.encodings if options[0].name in names]
    if not factors:
        return (), "it is not worked out for lists as a whole"
    return importances_of(factors, residuals(covariates, y))
