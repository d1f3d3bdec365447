"""Sentences on what moved memory besides hyperparameters, and on what was left out."""

from __future__ import annotations

import numpy as np

from memfit.explain.study.order import Circumstance
from memfit.explain.study.sentences.words import change_figure, interval_text, listed, p_text, share_text, span_text
from memfit.explain.study.table import Table
from memfit.records.study_findings import StudyFinding, Topic
from memfit.units import format_bytes

_TOPICS: dict[str, Topic] = {
    "step": "order of recording",
    "drift": "order of recording",
    "background": "other programs",
    "time of day": "time of day",
}


def left_out_notes(table: Table) -> list[str]:
    """What was left out, and what that does to the answer."""
    notes = [f"left out: {count} trials with the outcome {kind!r}" for kind, count in table.left_out.items()]
    if any(kind in ("out of memory", "over the limit", "rejected by prediction") for kind in table.left_out):
        notes.append("those left out needed the most memory, so that effects look smaller than they are")
    return notes


def circumstance_finding(table: Table, each: Circumstance, p: float, is_found: bool) -> StudyFinding:
    """A step, a drift, other programs or the time of day."""
    p = min(p, 1.0)
    texts = {"step": _step_text, "drift": _drift_text, "background": _background_text, "time of day": _hour_text}
    sentence, evidence = texts[each.kind](table, each, is_found)
    evidence = [*evidence, f"{p_text(p)}; explains {share_text(each.share)} of the variance by itself"]
    if each.share_beyond is not None:
        evidence.append(f"{share_text(each.share_beyond)} beyond all hyperparameters")
    has_bytes = each.effect_bytes is not None and each.kind != "background"
    return StudyFinding(
        topic=_TOPICS[each.kind],
        verdict="found" if is_found else "cannot tell",
        sentence=sentence,
        evidence=tuple(evidence),
        effect=change_figure(each.effect_bytes, "least squares, HC3") if has_bytes and each.effect_bytes else None,
        p=p,
        share=each.share,
        share_beyond=each.share_beyond,
    )


def _step_text(table: Table, each: Circumstance, is_found: bool) -> tuple[str, list[str]]:
    before = span_text(table.labels, 0, each.place)
    after = span_text(table.labels, each.place, len(table))
    y = table.memory_bytes
    means = float(y[: each.place].mean()), float(y[each.place :].mean())
    evidence = [f"means {format_bytes(means[0])} and {format_bytes(means[1])}"]
    if not is_found:
        return _no_step_text(each), evidence
    change = interval_text(each.effect_bytes) if each.effect_bytes else ""
    sentence = f"{before} and {after} differ by when they were recorded: {change} from one to the other"
    if y[: each.place].max() < y[each.place :].min() or y[: each.place].min() > y[each.place :].max():
        evidence.append(f"every one of {after} lies on the other side of every one of {before}")
    if each.survives:
        evidence.append(f"the step stays whichever is taken out: {listed(each.survives)}")
    evidence += _within_blocks(table, each)
    return sentence, evidence


def _no_step_text(each: Circumstance) -> str:
    if each.fails:
        return f"the order of recording cannot be separated from {listed(each.fails)}, which changed along with it"
    return "no step or drift in the order of recording stands out from chance"


def _within_blocks(table: Table, each: Circumstance) -> list[str]:
    """What is left of the differences once the two blocks are looked at by themselves."""
    y = table.memory_bytes
    spreads = [np.ptp(part) for part in (y[: each.place], y[each.place :])]
    return [f"within the two groups memory spans {format_bytes(spreads[0])} and {format_bytes(spreads[1])}"]


def _drift_text(table: Table, each: Circumstance, is_found: bool) -> tuple[str, list[str]]:
    if not is_found:
        return _no_step_text(each), []
    change = interval_text(each.effect_bytes) if each.effect_bytes else ""
    return f"memory drifts in the order of recording: {change} from the first trial to the last", []


def _background_text(table: Table, each: Circumstance, is_found: bool) -> tuple[str, list[str]]:
    span = format_bytes(float(np.ptp(table.background_bytes)))
    if each.effect_bytes is None:
        return "", []
    middle, low, high = each.effect_bytes
    slope = f"{middle:.2f} bytes per byte that other programs held (95 % interval {low:.2f} to {high:.2f})"
    evidence = [f"other programs' memory spans {span}"]
    if is_found:
        return f"other programs are in the number: {slope}", evidence
    return f"other programs show no influence: {slope}", evidence


def _hour_text(table: Table, each: Circumstance, is_found: bool) -> tuple[str, list[str]]:
    evidence = [f"trials began between {np.min(table.hours):.1f} h and {np.max(table.hours):.1f} h"]
    return ("memory follows the time of day" if is_found else "the time of day shows no influence"), evidence


def unknown_circumstance(topic: str, reason: str, table: Table) -> StudyFinding:
    """Something that was not recorded, or not varied."""
    evidence = ()
    if topic == "other programs" and table.is_system_wide:
        evidence = ("the number is the memory of the whole system, so other programs are in it by an unknown amount",)
    sentence = f"{topic}: {reason}"
    return StudyFinding(topic=topic, verdict="cannot tell", sentence=sentence, evidence=evidence)  # pyright: ignore[reportArgumentType]
