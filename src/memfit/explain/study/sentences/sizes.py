"""Sentences on the fitted law, on the size of the networks, and on trials that differ in one thing only."""

from __future__ import annotations

import numpy as np

from memfit.explain.study.law import BYTES_PER_ACTIVATION, BYTES_PER_PARAMETER, MEANINGS, Law, own_bytes
from memfit.explain.study.order import Circumstance
from memfit.explain.study.pairs import TrialTwins
from memfit.explain.study.sentences.words import Interval, is_sizeless, share_text, signed_bytes, value_text
from memfit.explain.study.table import Table
from memfit.records.study_findings import StudyFinding
from memfit.units import format_bytes

MOST_TWINS = 3
MOST_COMPARED = 500


def law_finding(law: Law | str) -> StudyFinding:
    """bytes = a + b * parameters + c * batch * activations, where it holds."""
    if isinstance(law, str):
        return StudyFinding(topic="law", verdict="cannot tell", sentence=f"no law can be fitted: {law}")
    terms = [format_bytes(law.base_bytes[0])]
    within = format_bytes(law.typical_error_bytes)
    evidence = [f"predicts {share_text(law.predicted)} of the differences on trials left out, within {within}"]
    for each, what in ((law.per_parameter, "parameter"), (law.per_activation, "activation and example")):
        if each is not None:
            terms.append(f"{each[0]:.3g} bytes per {what}")
            evidence.append(f"per {what} {each[0]:.4g} bytes (95 % interval {each[1]:.4g} to {each[2]:.4g})")
    if not law.holds:
        sentence = "no law of the form a + b * parameters + c * batch * activations shows in these numbers"
        return StudyFinding(topic="law", verdict="cannot tell", sentence=sentence, evidence=tuple(evidence))
    if law.per_parameter is not None:
        evidence += _meaning(law.per_parameter)
    sentence = f"memory follows a law: {' + '.join(terms)}"
    return StudyFinding(topic="law", verdict="found", sentence=sentence, evidence=tuple(evidence), share=law.predicted)


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
    table: Table, twins: list[TrialTwins], found: list[Circumstance], repeats: tuple[float, int] | None
) -> list[StudyFinding]:
    """The pairs that differ in one hyperparameter only."""
    return [_twin_finding(table, pair, found, repeats) for pair in twins[:MOST_TWINS]]


def _twin_finding(
    table: Table, pair: TrialTwins, found: list[Circumstance], repeats: tuple[float, int] | None
) -> StudyFinding:
    labels = table.labels[pair.first], table.labels[pair.second]
    values = f"{value_text(pair.values[0])} and {value_text(pair.values[1])}"
    change = signed_bytes(pair.change_bytes)
    sentence = f"trials {labels[0]} and {labels[1]} differ in {pair.name} alone ({values}) and by {change}"
    evidence = []
    if any(each.kind == "step" and pair.first < each.place <= pair.second for each in found):
        evidence.append(
            "the step in the order of recording lies between them, so the pair says nothing on " + pair.name
        )
    if is_sizeless(pair.name):
        evidence.append(f"{pair.name} changes the size of no tensor")
    if repeats is not None:
        scatter = f"{format_bytes(repeats[0])} ({repeats[1]} degrees of freedom)"
        evidence.append(f"repeats of the same trial scatter by {scatter}")
    evidence += _others_span(table, pair)
    subjects = (str(labels[0]), str(labels[1]))
    return StudyFinding(topic="pair", subjects=subjects, verdict="note", sentence=sentence, evidence=tuple(evidence))


def _others_span(table: Table, pair: TrialTwins) -> list[str]:
    """How far the same hyperparameter moves elsewhere in the study without such a change."""
    values = [row.get(pair.name) for row in table.values[:MOST_COMPARED]]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 for v in values):
        return []
    logs, memory = np.log(np.array(values, dtype=float)), table.memory_bytes[: len(values)]
    is_alike = np.abs(memory[:, None] - memory) < 0.1 * abs(pair.change_bytes)
    factors = np.exp(np.where(is_alike, np.abs(logs[:, None] - logs), 0.0))
    here = max(pair.values) / min(pair.values)
    first, second = sorted(divmod(int(np.argmax(factors)), len(values)))
    if factors[first, second] < 10 * here:
        return []
    difference = format_bytes(abs(float(memory[first] - memory[second])))
    elsewhere = f"trials {table.labels[first]} and {table.labels[second]} differ by a factor of"
    return [f"a factor of {here:.3g} here; {elsewhere} {factors[first, second]:.0f} and by {difference} only"]
