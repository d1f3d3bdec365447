"""Explanation of a study: one number of memory per trial in, findings in plain sentences out.

Three families of questions share an error rate of one in twenty: what else than hyperparameters moved memory (order,
other programs, time of day), what each hyperparameter does alone and in pairs, and which of them are important. In a
study without any effect, at most one in twenty shows a finding; intervals are 95 % each.
"""

from __future__ import annotations

import numpy as np

from memfit.explain.study.effects import Effects, find_effects
from memfit.explain.study.factors import Factor, factors_of
from memfit.explain.study.importance import importances_of
from memfit.explain.study.law import fit_law
from memfit.explain.study.order import Circumstance, background_effect, order_effect, time_of_day_effect
from memfit.explain.study.pairs import repeats_spread, twins_of
from memfit.explain.study.regression import residuals, with_intercept
from memfit.explain.study.sentences import effects as study_say_effects
from memfit.explain.study.sentences import order, sizes
from memfit.explain.study.table import Table, table_of
from memfit.records.study import Study
from memfit.records.study_findings import StudyFinding, StudyFindings

ERROR_RATE = 0.05
FOR_CIRCUMSTANCES, FOR_HYPERPARAMETERS, FOR_IMPORTANCE = 0.02, 0.02, 0.01
"""How the error rate is shared out; they add up to it."""
MIN_TRIALS = 3


def explain_study(study: Study, quantity: str | None = None) -> StudyFindings:
    """Explain a study; `quantity` is 'peak' or 'average', by default the one that most trials have."""
    return explain_table(table_of(study, quantity))


def explain_table(table: Table) -> StudyFindings:
    """Explain a table of trials."""
    known = table.memory_bytes
    notes = order.left_out_notes(table)
    if len(table) < MIN_TRIALS or np.ptp(known) == 0:
        return _nothing(table, notes)
    encodings, constant = factors_of(table.values)
    if constant:
        notes.append(f"did not vary: {', '.join(constant)}")
    factors = [options[-1] for options in encodings]
    circumstances, unknown = _circumstances(table, encodings)
    found = [each for each in circumstances if _is_found(each, circumstances)]
    covariates = np.hstack([np.empty((len(table), 0)), *(each.columns for each in found)])
    effects = find_effects(encodings, covariates, known)
    findings = [
        *(
            order.circumstance_finding(table, each, each.p * len(circumstances), each in found)
            for each in circumstances
        ),
        *unknown,
        *_hyperparameters(table, encodings, effects, found),
        *study_say_effects.joint_findings(effects, FOR_HYPERPARAMETERS),
        sizes.law_finding(fit_law(table, covariates)),
        *sizes.size_findings(table),
        *sizes.twin_findings(table, twins_of(table), found, repeats_spread(table)),
    ]
    rest = residuals(with_intercept(covariates), known) if covariates.size else known
    importances, reason = importances_of(factors, rest, FOR_IMPORTANCE) if factors else ((), "nothing varied")
    return StudyFindings(
        title=table.title,
        quantity=table.quantity,
        num_trials=len(table),
        low_bytes=float(known.min()),
        high_bytes=float(known.max()),
        error_rate=ERROR_RATE,
        findings=tuple(findings),
        importances=importances,
        importance_reason=reason,
        notes=tuple(notes),
    )


def _nothing(table: Table, notes: list[str]) -> StudyFindings:
    known = table.memory_bytes
    why = "every trial took the same memory" if len(known) >= MIN_TRIALS else f"{len(known)} trials with a number"
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


def _circumstances(table: Table, factors: list[list[Factor]]) -> tuple[list[Circumstance], list[StudyFinding]]:
    """What else may have moved memory; and what of it is unknown."""
    answers = {
        "order of recording": order_effect(table, factors) or "there are too few trials",
        "other programs": background_effect(table, factors),
        "time of day": time_of_day_effect(table, factors),
    }
    circumstances = [answer for answer in answers.values() if isinstance(answer, Circumstance)]
    unknown = [
        order.unknown_circumstance(topic, answer, table) for topic, answer in answers.items() if isinstance(answer, str)
    ]
    return circumstances, unknown


def _is_found(each: Circumstance, tested: list[Circumstance]) -> bool:
    return each.p * len(tested) <= FOR_CIRCUMSTANCES and not each.fails


def _hyperparameters(
    table: Table, encodings: list[list[Factor]], effects: Effects, found: list[Circumstance]
) -> list[StudyFinding]:
    if effects.reason:
        names = tuple(options[0].name for options in encodings)
        return [study_say_effects.no_effects_finding(names, effects.reason)]
    return [study_say_effects.effect_finding(table, effect, found, FOR_HYPERPARAMETERS) for effect in effects.effects]
