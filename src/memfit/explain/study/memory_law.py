"""Law of a study's peak memory as a record, for the figure it is drawn into."""

from __future__ import annotations

import numpy as np

from memfit.explain.study.law import fit_law
from memfit.explain.study.table import table_of
from memfit.records.memory_law import MemoryLaw
from memfit.records.study import Study

NO_LAW = "none of the form a + b * parameters + c * batch * activations shows in these numbers"


def memory_law(study: Study) -> MemoryLaw | str:
    """The law that `explain` finds in a study, or why there is none."""
    table = table_of(study, "peak")
    law = fit_law(table, np.empty((len(table), 0)))
    if isinstance(law, str):
        return law
    if not law.holds:
        return NO_LAW
    terms = [None if term is None else term[0] for term in (law.per_parameter, law.per_activation)]
    return MemoryLaw(base_bytes=law.base_bytes[0], bytes_per_parameter=terms[0], bytes_per_activation=terms[1])
