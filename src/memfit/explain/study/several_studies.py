"""Several studies beside each other: each explained by itself, and all trials in one model with the study as a choice.

The model of all trials says how much more one study takes than another when hyperparameters are held fixed, and, by the
pairs of study and hyperparameter, what acts differently in them. It has an error rate of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memfit.explain.study.effects import found_pairs, main_key, pair_key
from memfit.explain.study.explain import MIN_TRIALS, explain_table, report_of
from memfit.explain.study.sentences.report import StudyReport
from memfit.explain.study.sentences.words import METHOD, change_figure, interval_text, listed, p_text, signed_bytes
from memfit.explain.study.statistics.factors import Factor
from memfit.explain.study.statistics.inference import ERROR_RATE, Interval
from memfit.explain.study.table import Table, table_of
from memfit.records.study import Study
from memfit.records.study_findings import FindingVerdict, StudiesFindings, StudyFinding

STUDY = "(study)"
"""The name under which the study is a choice of the common model; a hyperparameter may itself be called study."""


def explain_studies(studies: Sequence[Study], quantity: str | None = None) -> StudiesFindings:
    """Explain studies beside each other; `quantity` is 'peak' or 'average', by default what most trials have."""
    tables = _with_own_titles([table_of(study, quantity) for study in studies])
    each = tuple(explain_table(table) for table in tables)
    quantities = {table.quantity for table in tables if len(table)}
    if len(quantities) > 1:
        note = f"not compared with each other: one has the {listed(sorted(quantities))}"
        return StudiesFindings(studies=each, between=(), notes=(note,))
    between = between_tables([table for table in tables if len(table)])
    return StudiesFindings(studies=each, between=tuple(between))


def _with_own_titles(tables: list[Table]) -> list[Table]:
    """Studies of one name are distinguished by their place."""
    counts = Counter(table.title for table in tables)
    return [
        replace(table, title=f"{table.title} ({place})") if counts[table.title] > 1 else table
        for place, table in enumerate(tables, start=1)
    ]


def between_tables(tables: list[Table]) -> list[StudyFinding]:
    """What differs between studies at equal hyperparameters."""
    shared, own = _names(tables)
    pooled = _pooled(tables, shared, own)
    if len(tables) < 2 or len(pooled) < MIN_TRIALS or np.ptp(pooled.memory_bytes) == 0:
        return [_unknown("there is nothing to compare")]
    if not shared:
        return [_unknown("they have no hyperparameter in common")]
    report, _ = report_of(pooled, over_time=False)
    along = (*report.plan.together.get(STUDY, ()), *report.plan.moved_along(STUDY))
    if along:
        return [_unknown(f"{listed(along)} changed along with them")]
    factor = next((each for each in report.plan.factors if each.name == STUDY), None)
    if factor is None:
        return [_unknown(report.plan.reason)]
    pairs = [(a, b) for a, b in found_pairs(report.plan, report.answers) if STUDY in (a.name, b.name)]
    return [*_levels(report, factor, own), *(_differently(report, *pair) for pair in pairs)]


def _names(tables: list[Table]) -> tuple[list[str], list[str]]:
    """Hyperparameters that all studies have; and those that only some have, and that vary in one of them."""
    seen = [_values_by_name(table) for table in tables]
    names = dict.fromkeys(name for each in seen for name in each)
    shared = [name for name in names if all(name in each for each in seen)]
    own = [name for name in names if name not in shared and any(len(each.get(name, ())) > 1 for each in seen)]
    return shared, own


def _values_by_name(table: Table) -> dict[str, set[str]]:
    seen: dict[str, set[str]] = {}
    for row in table.values:
        for name, value in row.items():
            seen.setdefault(name, set()).add(repr(value))
    return seen


def _pooled(tables: list[Table], shared: list[str], own: list[str]) -> Table:
    """All trials in one table; what only one study varied counts as average in the others."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(table, name) for table in tables])

    labels = tuple(label for table in tables for label in table.labels)
    columns = ("memory_bytes", "background_bytes", "hours", "times_hours", "num_parameters", "num_activations")
    names = {*shared, *own}
    values = tuple(
        {**{name: value for name, value in row.items() if name in names}, STUDY: table.title}
        for table in tables
        for row in table.values
    )
    return replace(
        tables[0], title="all", labels=labels, values=values, absent_elsewhere=frozenset(own),
        **{name: joined(name) for name in columns},
    )  # fmt: skip


def _unknown(reason: str) -> StudyFinding:
    sentence = f"how the studies differ at equal hyperparameters cannot be concluded: {reason}"
    return StudyFinding(topic="study", verdict="cannot tell", sentence=sentence)


def _levels(report: StudyReport, factor: Factor, own: list[str]) -> list[StudyFinding]:
    """Each study against the one with most trials."""
    found = report.answers[main_key(STUDY)]
    averaged = [f"not all of them have {listed(own)}: taken at the average of those that do"] if own else []
    return [
        _level(report, str(factor.low), str(option), change, found.p, averaged)
        for option, change in zip(factor.options, found.intervals, strict=True)
    ]


def _level(report: StudyReport, low: str, high: str, change: Interval, p: float, averaged: list[str]) -> StudyFinding:
    _, least, most = change
    is_found = p <= ERROR_RATE and not least <= 0 <= most
    verdict: FindingVerdict = "found" if is_found else "cannot tell"
    if is_found:
        sentence = f"{high} against {low} at equal hyperparameters: {interval_text(change)}"
    elif max(-least, most) <= report.matters_bytes:
        verdict, sentence = (
            "ruled out",
            f"{high} takes as much as {low} at equal hyperparameters: {interval_text(change)}",
        )
    else:
        sentence = _undecided(report, low, high, change)
    own_p = p if is_found or p > ERROR_RATE else None  # of all studies at once: another one may have made it small
    return StudyFinding(
        topic="study", subjects=(high, low), verdict=verdict, sentence=sentence,
        evidence=(*([] if own_p is None else [p_text(own_p)]), *averaged),
        effect=change_figure(change, METHOD), p=own_p,
    )  # fmt: skip


def _undecided(report: StudyReport, low: str, high: str, change: Interval) -> str:
    """What is said of a difference that was not found, as of a hyperparameter: its interval may be without zero."""
    _, least, most = change
    ends = f"{signed_bytes(least)} to {signed_bytes(most)} at equal hyperparameters"
    if least <= 0 <= most:
        return f"whether {high} takes more than {low} does not stand out from chance; it could be anything from {ends}"
    return (
        f"{high} against {low}: perhaps {ends}; as {report.num_questions} things were looked at, one that stands out "
        "as much comes up by chance"
    )


def _differently(report: StudyReport, first: Factor, second: Factor) -> StudyFinding:
    """A hyperparameter that does more in one study than in another."""
    found = report.answers[pair_key(first, second)]
    choice, other = (first, second) if first.name == STUDY else (second, first)
    place = found.strongest // other.columns.shape[1] if choice is first else found.strongest % len(choice.options)
    where = choice.options[place]
    sentence = (
        f"{other.name} does not act alike: from low to high it adds {interval_text(found.change)} more in {where} than "
        f"in {choice.low}"
    )
    return StudyFinding(
        topic="study", subjects=(other.name,), verdict="found", sentence=sentence, evidence=(p_text(found.p),),
        effect=change_figure(found.change, METHOD), p=found.p,
    )  # fmt: skip
