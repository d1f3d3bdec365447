"""Everything that is known of a study before it is put into words: all sentences are written from this one record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.explain.study.effects import EffectPlan, found_pairs, main_key
from memfit.explain.study.law import BATCH_NAMES, TERMS, Law
from memfit.explain.study.sentences.words import is_sized, is_sizeless
from memfit.explain.study.statistics.design import Design
from memfit.explain.study.statistics.factors import Factor
from memfit.explain.study.statistics.inference import Estimate, Key, answer
from memfit.explain.study.statistics.regression import residuals
from memfit.explain.study.table import Table
from memfit.explain.study.time_and_background import Circumstance

CARRIED = 0.01
"""What the law explains moves with a hyperparameter when this is the chance that it only seems so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """Questions and answers of one study."""

    table: Table
    design: Design
    circumstances: tuple[Circumstance, ...]
    taken_out: tuple[Key, ...]
    """Circumstances that stand in the model of the hyperparameters."""
    covariates: np.ndarray
    plan: EffectPlan
    law: Law | str
    answers: dict[Key, Estimate]
    differ_bytes: float
    matters_bytes: float
    """The smallest effect that matters."""

    @property
    def num_questions(self) -> int:
        return len(self.answers)

    @property
    def found(self) -> list[Circumstance]:
        """What moved memory besides hyperparameters, beyond chance."""
        return [each for each in self.circumstances if self.is_found(each)]

    def is_found(self, each: Circumstance) -> bool:
        return self.answers[each.key].is_found and each.key in self.taken_out

    def of(self, factor: Factor) -> Estimate:
        return self.answers[main_key(factor.name)]

    @property
    def found_law(self) -> Law | None:
        law = self.law
        return law if isinstance(law, Law) and law.holds(self.answers) else None

    def partners_of(self, factor: Factor) -> tuple[str, ...]:
        """Hyperparameters that it acts together with, beyond chance; itself where its effect bends."""
        pairs = found_pairs(self.plan, self.answers)
        names = [b.name if a.name == factor.name else a.name for a, b in pairs if factor.name in (a.name, b.name)]
        return tuple(dict.fromkeys(names))

    def acts_through_the_law(self, factor: Factor) -> bool:
        """Whether what the law explains depends on this hyperparameter, by its name or because sizes move with it."""
        law, base = self.found_law, self.plan.base
        if law is None or base is None or is_sizeless(factor.name):
            return False
        if (factor.name in BATCH_NAMES and TERMS[1] in law.terms) or is_sized(factor.name):
            return True
        questions = [each for each in self.plan.questions if each.key == main_key(factor.name)]
        explained = law.explained_bytes[self.design.points.point_of]
        return bool(np.ptp(explained)) and answer(questions, explained)[main_key(factor.name)].p <= CARRIED

    @property
    def scatter_bytes(self) -> tuple[float, int] | None:
        """The standard deviation of trials around the model of all hyperparameters, and its degrees of freedom."""
        base = self.plan.base
        if base is None:
            return None
        df = len(base) - base.columns.shape[1]
        left = residuals(base.columns, base.rows.responses(self.table.memory_bytes[:, None])[:, 0])
        return float(np.sqrt((left**2).sum() / df)), df
