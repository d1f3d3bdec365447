"""Sentences on the fitted law, on the size of the networks, and on trials that differ in one thing only."""

from __future__ import annotations

import numpy as np

from memfit.explain.study.law import (
    BASE,
    BYTES_PER_ACTIVATION,
    BYTES_PER_PARAMETER,
    MEANINGS,
    TERMS,
    own_bytes,
    term_key,
)
from memfit.explain.study.sentences.report import StudyReport
from memfit.explain.study.sentences.words import Interval, is_sizeless, share_text, signed_bytes, value_text
from memfit.explain.study.statistics.design import TrialTwins
from memfit.explain.study.table import Table
from memfit.records.study import finite_or_reason
from memfit.records.study_findings import StudyFinding
from memfit.units import format_bytes

MOST_TWINS = 3
MOST_COMPARED = 500


def law_finding(report: StudyReport) -> StudyFinding:
    """bytes = a + b * parameters + c * batch * activations, where it holds; without terms that may be zero."""
    law = report.law
    if isinstance(law, str):
        return StudyFinding(topic="law", verdict="cannot tell", sentence=f"no law can be fitted: {law}")
    evidence = [f"per {term} {_per(report.answers[term_key(term)].change)}" for term in law.terms]
    evidence += [f"left out: a term per {term}, {_why(change)}" for term, change in law.left_out]
    if not law.holds(report.answers):
        sentence = "no law of the form a + b * parameters + c * batch * activations shows in these numbers"
        return StudyFinding(topic="law", verdict="cannot tell", sentence=sentence, evidence=tuple(evidence))
    within = format_bytes(law.typical_error_bytes)
    evidence.insert(0, f"predicts {share_text(law.predicted)} of the differences on trials left out, within {within}")
    terms = [f"{report.answers[term_key(term)].change[0]:.3g} bytes per {term}" for term in law.terms]
    _, low, _ = base = report.answers[BASE].change
    if low > 0:
        terms.insert(0, format_bytes(base[0]))
    else:
        evidence.append("whether anything is taken whatever the network's size is unknown: the interval holds zero")
    if TERMS[0] in law.terms:
        evidence += _meaning(report.answers[term_key(TERMS[0])].change)
    sentence = f"memory follows a law: {' + '.join(terms)}"
    p = min(report.answers[term_key(term)].p for term in law.terms)
    return StudyFinding(
        topic="law", verdict="found", sentence=sentence, evidence=tuple(evidence), p=p, share=law.predicted
    )


def _per(change: Interval) -> str:
    middle, low, high = change
    return f"{middle:.4g} bytes (95 % interval {low:.4g} to {high:.4g})"


def _why(change: Interval) -> str:
    _, low, high = change
    if high < 0:
        return "which would be below zero: the numbers do not follow it"
    return f"whose interval holds zero ({low:.4g} to {high:.4g} bytes)"


def _meaning(per_parameter: Interval) -> list[str]:
    _, low, high = per_parameter
    fitting = [bytes_each for bytes_each in MEANINGS if low <= bytes_each <= high]
    return [f"{fitting[0]} bytes per parameter is {MEANINGS[fitting[0]]}"] if len(fitting) == 1 else []


def size_findings(table: Table) -> list[StudyFinding]:
    """Could the networks' own numbers make such differences?"""
    own = own_bytes(table)
    if own is None:
        return []
    own_span, span = float(np.ptp(own)), float(np.ptp(table.memory_bytes))
    assumed = f"assumed: {BYTES_PER_PARAMETER} bytes per parameter, {BYTES_PER_ACTIVATION} per activation and example"
    sentence = (
        f"the networks' own numbers take {format_bytes(float(own.min()))} to {format_bytes(float(own.max()))}, "
        f"a span of {format_bytes(own_span)}; the memory of the trials spans {format_bytes(span)}"
    )
    evidence = [assumed]
    if own_span < 0.1 * span:
        rest = share_text(1 - own_span / span)
        evidence.append(f"{rest} of the span must come from something else than the networks")
    return [StudyFinding(topic="size of the network", verdict="note", sentence=sentence, evidence=tuple(evidence))]


def twin_findings(
    report: StudyReport, twins: list[TrialTwins], repeats: tuple[float, int] | None
) -> list[StudyFinding]:
    """The pairs that differ in one hyperparameter only."""
    return [_twin_finding(report, pair, repeats) for pair in twins[:MOST_TWINS]]


def _twin_finding(report: StudyReport, pair: TrialTwins, repeats: tuple[float, int] | None) -> StudyFinding:
    table = report.table
    labels = table.labels[pair.first], table.labels[pair.second]
    values = f"{value_text(pair.values[0])} and {value_text(pair.values[1])}"
    change = signed_bytes(pair.change_bytes)
    sentence = f"trials {labels[0]} and {labels[1]} differ in {pair.name} alone ({values}) and by {change}"
    evidence = []
    if any(each.kind == "step" and pair.first < each.place <= pair.second for each in report.found):
        evidence.append(
            "the step in the order of recording lies between them, so the pair says nothing on " + pair.name
        )
    evidence += _drift_between(report, pair)
    if is_sizeless(pair.name):
        evidence.append(f"{pair.name} changes the size of no tensor")
    evidence += [_scatter_text(report, repeats), *_others_span(table, pair)]
    subjects = (str(labels[0]), str(labels[1]))
    return StudyFinding(topic="pair", subjects=subjects, verdict="note", sentence=sentence, evidence=tuple(evidence))


def _drift_between(report: StudyReport, pair: TrialTwins) -> list[str]:
    """What a drift that was found makes of the difference of two trials."""
    share = (pair.second - pair.first) / (len(report.table) - 1)
    drifts = [report.answers[each.key].change[0] for each in report.found if each.kind == "drift"]
    return [f"the drift in the order of recording makes {signed_bytes(drift * share)} of it" for drift in drifts]


def _scatter_text(report: StudyReport, repeats: tuple[float, int] | None) -> str:
    """What two trials differ by when nothing differs; unknown where nothing was repeated."""
    if repeats is not None:
        return f"repeats of the same trial scatter by {format_bytes(repeats[0])} ({repeats[1]} degrees of freedom)"
    unknown = "how far repeats of one trial scatter is unknown: none was repeated"
    scatter = report.scatter_bytes
    if scatter is None:
        return unknown
    return f"{unknown}; around the model of all hyperparameters trials scatter by {format_bytes(scatter[0])}"


def _others_span(table: Table, pair: TrialTwins) -> list[str]:
    """How far the same hyperparameter moves elsewhere in the study without such a change."""
    values = [row.get(pair.name) for row in table.values[:MOST_COMPARED]]
    numbers = [finite_or_reason(value)[0] for value in values]
    if not all(number is not None and number > 0 for number in numbers):
        return []
    logs, memory = np.log(np.array(numbers, dtype=float)), table.memory_bytes[: len(values)]
    is_alike = np.abs(memory[:, None] - memory) < 0.1 * abs(pair.change_bytes)
    factors = np.exp(np.where(is_alike, np.abs(logs[:, None] - logs), 0.0))
    here = max(pair.values) / min(pair.values)
    first, second = sorted(divmod(int(np.argmax(factors)), len(values)))
    if factors[first, second] < 10 * here:
        return []
    difference = format_bytes(abs(float(memory[first] - memory[second])))
    elsewhere = f"trials {table.labels[first]} and {table.labels[second]} differ by a factor of"
    return [f"a factor of {here:.3g} here; {elsewhere} {factors[first, second]:.0f} and by {difference} only"]
