"""Sentences on the effect of a hyperparameter, alone and together with another.

Verdicts: found (p within the error rate, and then the interval is without zero), ruled out (the whole interval is too
small to matter), note (it acts through the law or together with another), cannot tell.
"""

from __future__ import annotations

from memfit.explain.study.effects import EffectShares, found_pairs, pair_key, shares_of
from memfit.explain.study.sentences.report import StudyReport
from memfit.explain.study.sentences.words import (
    METHOD,
    Interval,
    change_figure,
    interval_text,
    is_sizeless,
    listed,
    p_text,
    share_text,
    signed_bytes,
    value_text,
)
from memfit.explain.study.statistics.factors import Factor
from memfit.explain.study.statistics.inference import Estimate
from memfit.records.study_findings import FindingVerdict, StudyFinding
from memfit.units import format_bytes

SEEMS = 0.15
"""A hyperparameter that explains this share by itself looks as if it mattered."""


def effect_findings(report: StudyReport) -> list[StudyFinding]:
    """What every hyperparameter does; or why that is unknown."""
    plan = report.plan
    crowded = [_crowded(report, name, count) for name, count in report.design.crowded.items()]
    if not plan.questions and not plan.together:
        return [_no_effects(report), *crowded] if report.design.point_encodings or not crowded else crowded
    mixed = [*(_mixed(name, partners) for name, partners in plan.together.items()), *crowded]
    if not plan.questions:
        return [*mixed, _no_effects(report)] if _unsaid(report) else mixed
    return [*(_effect_finding(report, factor) for factor in plan.factors), *mixed]


def _unsaid(report: StudyReport) -> tuple[str, ...]:
    """Hyperparameters that varied, and did not move together with others."""
    names = (options[0].name for options in report.design.point_encodings)
    return tuple(name for name in names if name not in report.plan.together)


def _no_effects(report: StudyReport) -> StudyFinding:
    names = _unsaid(report)
    sentence = "no hyperparameter varied"
    if names:
        sentence = (
            f"what {listed(names)} {'does' if len(names) == 1 else 'do'} cannot be concluded: {report.plan.reason}"
        )
    return StudyFinding(topic="hyperparameter", subjects=names, verdict="cannot tell", sentence=sentence)


def _crowded(report: StudyReport, name: str, num_options: int) -> StudyFinding:
    """A choice of so many options that none was tried often; the effects of the others are averages over it."""
    sentence = (
        f"what {name} does cannot be concluded: {num_options:,} options were tried in {len(report.table):,} trials; "
        "the effects of other hyperparameters are averages over them"
    )
    return StudyFinding(topic="hyperparameter", subjects=(name,), verdict="cannot tell", sentence=sentence)


def _mixed(name: str, partners: tuple[str, ...]) -> StudyFinding:
    whom = listed(partners) if partners else "what moved memory besides hyperparameters"
    sentence = f"{name}: cannot be separated from {whom}, which moved together with it"
    return StudyFinding(topic="hyperparameter", subjects=(name,), verdict="cannot tell", sentence=sentence)


def _effect_finding(report: StudyReport, factor: Factor) -> StudyFinding:
    """What one hyperparameter does, the others held fixed."""
    found = report.of(factor)
    verdict = _verdict(report, factor, found)
    shares = shares_of(factor, report.plan, report.design, report.covariates, report.table.memory_bytes)
    chance = "" if found.is_behind_a_step else f"{p_text(found.p)}; "
    explains = f"explains {share_text(shares.alone)} by itself, {share_text(shares.beyond)} beyond the rest"
    evidence = [chance + explains]
    evidence += (_trend(found, shares) if verdict == "found" else []) + _explained_away(report, shares)
    evidence += _moved_along(report, factor) + _by_repeats(report)
    if verdict == "found":
        evidence += _remarks(report, factor, found)
    return StudyFinding(
        topic="hyperparameter",
        subjects=(factor.name,),
        verdict=verdict,
        sentence=_sentence(report, factor, found, verdict),
        evidence=tuple(evidence),
        effect=change_figure(found.change, METHOD),
        p=None if found.is_behind_a_step else found.p,
        share=shares.alone,
        share_beyond=shares.beyond,
    )


def _verdict(report: StudyReport, factor: Factor, found: Estimate) -> FindingVerdict:
    if found.is_found:
        return "found"
    if report.partners_of(factor) or report.acts_through_the_law(factor):
        return "note"
    return "ruled out" if found.reach <= report.matters_bytes else "cannot tell"


def _sentence(report: StudyReport, factor: Factor, found: Estimate, verdict: FindingVerdict) -> str:
    path, change, name = _path(factor, found), found.change, factor.name
    if verdict == "found":
        along = report.plan.moved_along(name)
        along += tuple(report.design.crowded)
        held = f"everything else but {listed(along)}" if along else "everything else"
        return f"{name}: {interval_text(change)} {path}, {held} held fixed"
    if verdict == "ruled out":
        return f"{name} does not matter: {interval_text(change)} {path}, {_of_all(report)}"
    if verdict == "note":
        return f"{name} acts {_through(report, factor)}; by itself {interval_text(change)} {path}"
    if found.is_behind_a_step:
        return _behind_a_step(name, path, change)
    return _cannot_tell(report, name, path, change)


def _path(factor: Factor, found: Estimate) -> str:
    low, high = _ends(factor, found.strongest)
    return f"from {low} to {high}"


def _ends(factor: Factor, contrast: int) -> tuple[str, str]:
    """What is compared: low and high, or the most common option (the lowest value) and another."""
    high = factor.options[contrast] if factor.scale == "choice" else factor.high
    return value_text(factor.low), value_text(high)


def _places(first: Factor, second: Factor, found: Estimate) -> tuple[int, int]:
    """Of the contrast of two that stands for all, which it is of either."""
    of_first, of_second = divmod(found.strongest, len(second.deltas))
    return of_first, of_second


def _of_all(report: StudyReport) -> str:
    return f"below a tenth of the {format_bytes(report.differ_bytes)} by which trials differ"


def _through(report: StudyReport, factor: Factor) -> str:
    partners = report.partners_of(factor)
    others = [name for name in partners if name != factor.name]
    if others:
        return f"together with {listed(others)}"
    return "along a curve" if partners else "through the law"


def _behind_a_step(name: str, path: str, change: Interval) -> str:
    ends = f"{signed_bytes(change[1])} to {signed_bytes(change[2])}"
    return (
        f"{name} changed along with time: beside a step in the order of recording that fits as well as none, {path} it "
        f"could be anything from {ends}"
    )


def _cannot_tell(report: StudyReport, name: str, path: str, change: Interval) -> str:
    _, low, high = change
    ends = f"{signed_bytes(low)} to {signed_bytes(high)}"
    if low <= 0 <= high:
        return f"{name}: no effect stands out from chance; {path} it could be anything from {ends}"
    return (
        f"{name}: perhaps {ends} {path}; as {report.num_questions} things were looked at, one that stands out as much "
        "comes up by chance"
    )


def _trend(found: Estimate, shares: EffectShares) -> list[str]:
    """The order of values, where it goes the way of the effect."""
    rho = shares.rank_correlation
    if rho is None or abs(rho) < 0.5 or (rho > 0) != (found.change[0] > 0):
        return []
    return [f"memory {'rises' if rho > 0 else 'falls'} with it in order: rank correlation {rho:+.2f}"]


def _remarks(report: StudyReport, factor: Factor, found: Estimate) -> list[str]:
    remarks = []
    if found.reach <= report.matters_bytes:
        remarks.append(f"small: {_of_all(report)}")
    if is_sizeless(factor.name):
        remarks.append(f"{factor.name} changes the size of no tensor: look for what else moved with it")
    return remarks


def _moved_along(report: StudyReport, factor: Factor) -> list[str]:
    """Those that could not be separated from it: what is said of it may be theirs."""
    along = report.plan.moved_along(factor.name)
    return [f"{listed(along)} moved together with it: what is said of it may be due to either"] if along else []


def _by_repeats(report: StudyReport) -> list[str]:
    if not report.plan.is_by_repeats:
        return []
    return [f"by repeats of {report.design.num_points} points, and of these points alone"]


def _explained_away(report: StudyReport, shares: EffectShares) -> list[str]:
    """An effect that only seems to be there while something else is not accounted for."""
    if not report.found or shares.alone < SEEMS or shares.beside > shares.alone / 4:
        return []
    kinds = ["the order of recording" if each.kind in ("step", "drift") else each.kind for each in report.found]
    left = share_text(shares.beside)
    seems = f"by itself it seems to explain {share_text(shares.alone)}"
    return [f"{seems}; once {listed(kinds)} is accounted for, {left} is left"]


def joint_findings(report: StudyReport) -> list[StudyFinding]:
    """Pairs that act together, and effects that bend."""
    return [_joint_finding(report, *pair) for pair in found_pairs(report.plan, report.answers)]


def _joint_finding(report: StudyReport, first: Factor, second: Factor) -> StudyFinding:
    found = report.answers[pair_key(first, second)]
    change = found.change
    if first is second:
        sentence = (
            f"{first.name} does not act along a straight line: halfway memory lies {interval_text(change)} off the "
            "line between its ends"
        )
    else:
        ends = [_ends(each, place) for each, place in zip((first, second), _places(first, second, found), strict=True)]
        sentence = (
            f"{first.name} and {second.name} act together: what {first.name} adds from {ends[0][0]} to {ends[0][1]} "
            f"changes by {interval_text(change)} when {second.name} is {ends[1][1]} in place of {ends[1][0]}"
        )
    return StudyFinding(
        topic="interaction",
        subjects=(first.name, second.name) if first is not second else (first.name,),
        verdict="found",
        sentence=sentence,
        evidence=(p_text(found.p),),
        effect=change_figure(change, METHOD),
        p=found.p,
    )
