"""Law of a study's peak memory as a record, for the figure it is drawn into."""

from __future__ import annotations

import numpy as np

from memfit.explain.study.design import design_of
from memfit.explain.study.inference import answer
from memfit.explain.study.law import BASE, TERMS, fit_law, term_key
from memfit.explain.study.table import table_of
from memfit.records.memory_law import MemoryLaw
from memfit.records.study import Study

NO_LAW = "none of the form a + b * parameters + c * batch * activations shows in these numbers"


def memory_law(study: Study) -> MemoryLaw | str:
    """The law that `explain` finds in a study, or why there is none."""
    table = table_of(study, "peak")
    law = fit_law(table, design_of(table), np.empty((len(table), 0)))
    if isinstance(law, str):
        return law
    answers = answer(law.questions, table.memory_bytes)
    if not law.holds(answers):
        return NO_LAW
    values = {term: answers[term_key(term)].change[0] for term in law.terms}
    return MemoryLaw(
        base_bytes=answers[BASE].change[0],
        bytes_per_parameter=values.get(TERMS[0]),
        bytes_per_activation=values.get(TERMS[1]),
    )
