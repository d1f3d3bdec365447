"""Rules that any two sentences of one report of `memfit explain` have to obey, and a search for breaches of them.

 1  found: the interval is without zero, and p is within the error rate
 2  ruled out: the whole interval lies within what matters
 3  "it could be anything": the interval holds zero
 4  one hyperparameter has one verdict
 5  a hyperparameter of a found pair, or one that carries the law, is neither ruled out nor without a verdict
 6  a law has no negative bytes, and no term whose interval holds zero
 7  important are only hyperparameters whose effect, alone or in a pair, was found
 8  a trend has the sign of its effect
 9  "nothing to explain" stands alone
10  every trial that is named is one of the study
11  what does not stand out, though its interval is without zero, says that this comes up by chance
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from memfit.records.study_findings import StudyFinding, StudyFindings

SLACK = 1e-9


def contradictions(findings: StudyFindings, trials: Iterable[int] = ()) -> list[str]:
    """Every breach of the rules in one report; `trials` are the numbers that its study has."""
    rules: tuple[Callable[[StudyFindings], Iterable[str]], ...] = (
        _found_without_zero, _ruled_out_within, _anything_holds_zero, _one_verdict, _partners_count, _law_is_physical,
        _important_are_found, _trends_agree, _nothing_stands_alone, _chance_is_named,
    )  # fmt: skip
    broken = [breach for rule in rules for breach in rule(findings)]
    return broken + _unknown_trials(findings, set(trials))


def _sized(findings: StudyFindings, verdict: str) -> Iterable[tuple[StudyFinding, float, float]]:
    for each in findings.findings:
        figure = each.effect
        if each.verdict == verdict and figure is not None and figure.low is not None and figure.high is not None:
            yield each, figure.low, figure.high


def _found_without_zero(findings: StudyFindings) -> Iterable[str]:
    for each, low, high in _sized(findings, "found"):
        if low <= 0 <= high:
            yield f"found, with an interval that holds zero: {each.sentence}"
    for each in findings.findings:
        if each.verdict == "found" and each.p is not None and each.p > findings.error_rate:
            yield f"found at p = {each.p:.3g}: {each.sentence}"
        if each.verdict != "found" and each.topic == "hyperparameter" and (each.p or 1.0) <= findings.error_rate:
            yield f"not found at p = {each.p:.3g}: {each.sentence}"


def _ruled_out_within(findings: StudyFindings) -> Iterable[str]:
    for each, low, high in _sized(findings, "ruled out"):
        limit = (findings.matters_bytes or 0.0) * (1 + SLACK)
        if each.effect is not None and each.effect.unit == "bytes" and max(-low, high) > limit:
            yield f"ruled out, though it may reach beyond what matters: {each.sentence}"


def _chance_is_named(findings: StudyFindings) -> Iterable[str]:
    for each, low, high in _sized(findings, "cannot tell"):
        said = " ".join((each.sentence, *each.evidence))
        if not low <= 0 <= high and "stand" in said and "by chance" not in said:
            yield f"does not stand out, with an interval without zero: {each.sentence}"


def _anything_holds_zero(findings: StudyFindings) -> Iterable[str]:
    for each, low, high in _sized(findings, "cannot tell"):
        if "it could be anything" in each.sentence and not low <= 0 <= high:
            yield f"anything, though the interval is without zero: {each.sentence}"


def _one_verdict(findings: StudyFindings) -> Iterable[str]:
    names = [name for each in findings.about("hyperparameter") for name in each.subjects]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"{name} has {names.count(name)} verdicts"


def _partners_count(findings: StudyFindings) -> Iterable[str]:
    verdicts = {name: each.verdict for each in findings.about("hyperparameter") for name in each.subjects}
    for pair in findings.about("interaction"):
        for name in pair.subjects:
            if pair.verdict == "found" and verdicts.get(name) in ("ruled out", "cannot tell"):
                yield f"{name} is {verdicts[name]}, but acts together with another: {pair.sentence}"
    law_holds = any(law.verdict == "found" for law in findings.about("law"))
    if law_holds and verdicts and set(verdicts.values()) == {"ruled out"}:
        yield "a law holds, but no hyperparameter matters"


def _law_is_physical(findings: StudyFindings) -> Iterable[str]:
    for law in findings.about("law"):
        if law.verdict != "found":
            continue
        if "-" in law.sentence.partition(":")[2]:
            yield f"a law with negative bytes: {law.sentence}"
        for line in law.evidence:
            ends = re.search(r"95 % interval (\S+) to (\S+)\)", line)
            if ends and float(ends[1]) <= 0:
                yield f"a term whose interval holds zero: {line}"


def _important_are_found(findings: StudyFindings) -> Iterable[str]:
    found = {
        name
        for each in findings.findings
        if each.verdict == "found" and each.topic in ("hyperparameter", "interaction")
        for name in each.subjects
    }
    for each in findings.importances:
        if each.name not in found:
            yield f"{each.name} is important, but no effect of it was found"


def _trends_agree(findings: StudyFindings) -> Iterable[str]:
    for each in findings.findings:
        value = each.effect.value if each.effect is not None else None
        for line in each.evidence:
            is_wrong = ("rises with it" in line and (value or 0) < 0) or ("falls with it" in line and (value or 0) > 0)
            if is_wrong:
                yield f"{each.sentence}, but {line}"


def _nothing_stands_alone(findings: StudyFindings) -> Iterable[str]:
    if any("nothing to explain" in note for note in findings.notes) and findings.findings:
        yield "nothing to explain, beside findings"


def _unknown_trials(findings: StudyFindings, trials: set[int]) -> list[str]:
    if not trials:
        return []
    named = [int(label) for each in findings.about("pair") for label in each.subjects]
    for each in findings.about("order of recording"):
        named += [int(number) for number in re.findall(r"trials? (\d+)", each.sentence)]
    return [f"there is no trial {number}" for number in named if number not in trials]
