"""Sentences on the effect of a hyperparameter, alone and together with another.

Three verdicts: found (within the error rate), ruled out (the whole 95 % interval is too small to matter), cannot tell.
"""

from __future__ import annotations

import numpy as np

from memfit.explain.study.effects import Effect, Effects, JointEffect
from memfit.explain.study.order import Circumstance
from memfit.explain.study.sentences.words import (
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
from memfit.explain.study.table import Table
from memfit.records.study_findings import FindingVerdict, StudyFinding

MATTERS = 0.02
"""An effect below this share of a typical trial's memory does not matter."""
SEEMS = 0.15
"""A hyperparameter that explains this share by itself looks as if it mattered."""


def no_effects_finding(names: tuple[str, ...], reason: str) -> StudyFinding:
    """Too few trials for any effect."""
    sentence = f"what {listed(names)} do cannot be concluded: {reason}" if names else "no hyperparameter varied"
    return StudyFinding(topic="hyperparameter", subjects=names, verdict="cannot tell", sentence=sentence)


def effect_finding(table: Table, effect: Effect, found: list[Circumstance], error_rate: float) -> StudyFinding:
    """What one hyperparameter does, the others held fixed."""
    name = effect.factor.name
    if effect.together_with:
        sentence = f"{name}: cannot be separated from {listed(effect.together_with)}, which moved together with it"
        return StudyFinding(topic="hyperparameter", subjects=(name,), verdict="cannot tell", sentence=sentence)
    verdict = _verdict(effect, float(np.median(table.memory_bytes)), error_rate)
    strongest = max(range(len(effect.change_bytes)), key=lambda i: abs(effect.change_bytes[i][0]))
    change = effect.change_bytes[strongest]
    shares = f"{share_text(effect.share)} by itself, {share_text(effect.share_beyond)} beyond the rest"
    evidence = [f"{p_text(effect.p)}; explains {shares}"]
    evidence += (_trend(effect) if verdict == "found" else []) + _explained_away(effect, found)
    if is_sizeless(name) and verdict == "found":
        evidence.append(f"{name} changes the size of no tensor: look for what else moved with it")
    return StudyFinding(
        topic="hyperparameter",
        subjects=(name,),
        verdict=verdict,
        sentence=_effect_text(effect, strongest, change, verdict),
        evidence=tuple(evidence),
        effect=change_figure(change, f"least squares on {effect.factor.scale} values, HC3"),
        p=effect.p,
        share=effect.share,
        share_beyond=effect.share_beyond,
    )


def _verdict(effect: Effect, typical_bytes: float, error_rate: float) -> FindingVerdict:
    if effect.p <= error_rate:
        return "found"
    largest = max(max(abs(low), abs(high)) for _, low, high in effect.change_bytes)
    return "ruled out" if largest <= MATTERS * typical_bytes else "cannot tell"


def _effect_text(effect: Effect, strongest: int, change: Interval, verdict: FindingVerdict) -> str:
    factor = effect.factor
    high = factor.options[strongest] if factor.scale == "choice" else factor.high
    path = f"from {value_text(factor.low)} to {value_text(high)}"
    if verdict == "found":
        return f"{factor.name}: {interval_text(change)} {path}, everything else held fixed"
    if verdict == "ruled out":
        return f"{factor.name} does not matter: {interval_text(change)} {path}"
    ends = f"{signed_bytes(change[1])} to {signed_bytes(change[2])}"
    return f"{factor.name}: no effect stands out from chance; {path} it could be anything from {ends}"


def _trend(effect: Effect) -> list[str]:
    rho = effect.rank_correlation
    if rho is None:
        return []
    word = "rises" if rho > 0 else "falls"
    return [f"memory {word} with it in order: rank correlation {rho:+.2f}"] if abs(rho) >= 0.5 else []


def _explained_away(effect: Effect, found: list[Circumstance]) -> list[str]:
    """An effect that only seems to be there while something else is not accounted for."""
    if not found or effect.share < SEEMS or effect.share_beside > effect.share / 4:
        return []
    what = listed(["the order of recording" if each.kind in ("step", "drift") else each.kind for each in found])
    left = share_text(effect.share_beside)
    return [f"by itself it seems to explain {share_text(effect.share)}; once {what} is accounted for, {left} is left"]


def joint_findings(effects: Effects, error_rate: float) -> list[StudyFinding]:
    """Pairs that act together, and effects that bend."""
    return [_joint_finding(joint) for joint in sorted(effects.joint, key=lambda j: j.p) if joint.p <= error_rate]


def _joint_finding(joint: JointEffect) -> StudyFinding:
    first, second = joint.names
    if first == second:
        sentence = f"{first} does not act along a straight line: {interval_text(joint.change_bytes)} from end to middle"
    else:
        sentence = (
            f"{first} and {second} act together: from low to high {first} adds "
            f"{interval_text(joint.change_bytes)} more when {second} is high than when it is low"
        )
    return StudyFinding(
        topic="interaction",
        subjects=joint.names if first != second else (first,),
        verdict="found",
        sentence=sentence,
        evidence=(p_text(joint.p),),
        effect=change_figure(joint.change_bytes, "least squares, HC3"),
        p=joint.p,
    )
