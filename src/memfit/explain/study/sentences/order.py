"""Sentences on what moved memory besides hyperparameters, and on what was left out."""

from __future__ import annotations

import msgspec
import numpy as np

from memfit.explain.study.sentences.report import StudyReport
from memfit.explain.study.sentences.words import (
    METHOD,
    Interval,
    change_figure,
    counted_trials,
    interval_text,
    listed,
    p_text,
    share_text,
    span_text,
)
from memfit.explain.study.table import Table
from memfit.explain.study.time_and_background import Circumstance
from memfit.records.figure import Figure
from memfit.records.study_findings import FindingVerdict, StudyFinding, Topic
from memfit.units import format_bytes

_TOPICS: dict[str, Topic] = {
    "step": "order of recording",
    "drift": "order of recording",
    "background": "other programs",
    "time of day": "time of day",
}

FAR_TRIALS, FAR_SPANS = 20, 3.0
"""Of at least so many trials, one is far off that is so many spans of nine tenths of them away from any other."""


def left_out_notes(table: Table) -> list[str]:
    """What was left out, and what that does to the answer."""
    notes = [f"left out: {counted_trials(count)} with the outcome {kind!r}" for kind, count in table.left_out.items()]
    too_large = ("out of memory", "over the limit", "rejected by prediction")
    if len(table) and any(kind in too_large for kind in table.left_out):
        notes.append("those left out needed the most memory, so that effects look smaller than they are")
    return notes


def unsure_notes(table: Table, matters_bytes: float) -> list[str]:
    """Peaks of which only a range is known that is as wide as effects that matter: of jobs as small as the process that
    started them."""
    wide = table.unsure_bytes[table.unsure_bytes > matters_bytes]
    if not len(wide):
        return []
    what = f"the peak of {counted_trials(len(wide))} is known as a range only"
    width = format_bytes(float(wide.max()))
    return [f"{what}, up to {width} wide; its lower end was taken: an effect of that size may be due to it"]


def far_off_notes(table: Table) -> list[str]:
    """One trial that lies far from all others: what is said of the rest is judged with it."""
    ranked = np.argsort(table.memory_bytes)
    memory = table.memory_bytes[ranked]
    low, high = np.quantile(memory, [0.05, 0.95])
    notes = []
    for place, gap, word in ((0, memory[1] - memory[0], "less"), (-1, memory[-1] - memory[-2], "more")):
        if len(memory) >= FAR_TRIALS and gap > FAR_SPANS * (high - low):
            what = f"trial {table.labels[ranked[place]]} took {format_bytes(float(memory[place]))}"
            notes.append(
                f"{what}, {format_bytes(float(gap))} {word} than any other: intervals are as wide as it makes them"
            )
    return notes


def circumstance_finding(report: StudyReport, each: Circumstance) -> StudyFinding:
    """A step, a drift, other programs or the time of day."""
    found, verdict = report.answers[each.key], _verdict(report, each)
    texts = {"step": _order_text, "drift": _order_text, "background": _background_text, "time of day": _hour_text}
    sentence, evidence = texts[each.kind](report, each, verdict)
    evidence = [*evidence, f"{p_text(found.p)}; explains {share_text(each.share)} of the variance by itself"]
    if each.share_beyond is not None:
        evidence.append(f"{share_text(each.share_beyond)} beyond all hyperparameters")
    if each.key in report.taken_out and verdict != "found":
        evidence.append("to be safe it is taken out of the effects of hyperparameters")
    return StudyFinding(
        topic=_TOPICS[each.kind],
        verdict=verdict,
        sentence=sentence,
        evidence=tuple(evidence),
        effect=_effect(found.change, each),
        p=found.p,
        share=each.share,
        share_beyond=each.share_beyond,
    )


def _effect(change: Interval, each: Circumstance) -> Figure | None:
    """In bytes; for other programs, bytes per byte that they held. A wave has no single change."""
    if each.kind == "time of day":
        return None
    figure = change_figure(change, METHOD)
    return msgspec.structs.replace(figure, unit="ratio") if each.kind == "background" else figure


def _verdict(report: StudyReport, each: Circumstance) -> FindingVerdict:
    if report.is_found(each):
        return "found"
    scale = float(np.ptp(report.table.background_bytes)) if each.kind == "background" else 1.0
    reach = report.answers[each.key].reach * (2.0 if each.kind == "time of day" else scale)  # a wave goes both ways
    return "ruled out" if reach <= report.matters_bytes and not each.fails else "cannot tell"


def _order_text(report: StudyReport, each: Circumstance, verdict: FindingVerdict) -> tuple[str, list[str]]:
    if verdict == "found":
        return _step_text(report, each) if each.kind == "step" else _drift_text(report, each)
    if each.fails:
        whom = listed(each.fails)
        return f"the order of recording cannot be separated from {whom}, which changed along with it", []
    found = report.answers[each.key]
    if verdict == "ruled out":
        return f"the order of recording does not matter: any step or drift is at most {format_bytes(found.reach)}", []
    sentence = "no step or drift in the order of recording stands out from chance"
    where = f"a step at trial {report.table.labels[each.place]}" if each.place else "a drift"
    likeliest = f"the likeliest, {where}: {interval_text(found.change)}"
    _, low, high = found.change
    if not low <= 0 <= high:
        likeliest += f"; {_by_chance(report)}"
    return sentence, [likeliest]


def _by_chance(report: StudyReport) -> str:
    """Why something is not found though its own interval is without zero."""
    return f"as {report.num_questions} things were looked at, one that stands out as much comes up by chance"


def _step_text(report: StudyReport, each: Circumstance) -> tuple[str, list[str]]:
    table, change = report.table, report.answers[each.key].change
    before = span_text(table.labels, 0, each.place)
    after = span_text(table.labels, each.place, len(table))
    y = table.memory_bytes
    evidence = []
    if not each.is_roomy:
        means = float(y[: each.place].mean()), float(y[each.place :].mean())
        evidence.append(f"means {format_bytes(means[0])} and {format_bytes(means[1])}")
    if y[: each.place].max() < y[each.place :].min() or y[: each.place].min() > y[each.place :].max():
        evidence.append(f"every one of {after} lies on the other side of every one of {before}")
    if each.survives:
        evidence.append(f"the step stays whichever is taken out: {listed(each.survives)}")
    evidence += _within_blocks(table, each)
    return (
        f"{before} and {after} differ by when they were recorded: {interval_text(change)} from one to the other",
        evidence,
    )


def _within_blocks(table: Table, each: Circumstance) -> list[str]:
    """What is left of the differences once the two blocks are looked at by themselves."""
    y = table.memory_bytes
    spreads = [np.ptp(part) for part in (y[: each.place], y[each.place :])]
    return [f"within the two groups memory spans {format_bytes(spreads[0])} and {format_bytes(spreads[1])}"]


def _drift_text(report: StudyReport, each: Circumstance) -> tuple[str, list[str]]:
    change = interval_text(report.answers[each.key].change)
    return f"memory drifts in the order of recording: {change} from the first trial to the last", []


def _background_text(report: StudyReport, each: Circumstance, verdict: FindingVerdict) -> tuple[str, list[str]]:
    middle, low, high = report.answers[each.key].change
    span_bytes = float(np.ptp(report.table.background_bytes))
    evidence = [f"other programs' memory spans {format_bytes(span_bytes)}"]
    digits = 2 if max(-low, high) >= 0.1 else 4
    middle, low, high = (round(each, digits) + 0.0 for each in (middle, low, high))  # no -0.00
    ends = f"{low:.{digits}f} to {high:.{digits}f}"
    slope = f"{middle:.{digits}f} bytes per byte that other programs held (95 % interval {ends})"
    if verdict == "found":
        return f"other programs are in the number: {slope}", evidence
    if verdict == "ruled out":
        return f"other programs do not matter: {slope}", evidence
    if not report.answers[each.key].change[1] <= 0 <= report.answers[each.key].change[2]:
        evidence.append(_by_chance(report))
    return f"whether other programs are in the number does not stand out from chance: {slope}", evidence


def _hour_text(report: StudyReport, each: Circumstance, verdict: FindingVerdict) -> tuple[str, list[str]]:
    hours = report.table.hours
    evidence = [f"trials began between {np.min(hours):.1f} h and {np.max(hours):.1f} h"]
    sentences = {
        "found": "memory follows the time of day",
        "ruled out": "the time of day does not matter",
        "cannot tell": "no wave over the day stands out from chance",
    }
    return sentences[verdict], evidence


def unknown_circumstance(topic: str, reason: str, table: Table) -> StudyFinding:
    """Something that was not recorded, or not varied."""
    evidence = ()
    if topic == "other programs" and table.is_system_wide:
        evidence = ("the number is the memory of the whole system, so other programs are in it by an unknown amount",)
    sentence = f"{topic}: {reason}"
    return StudyFinding(topic=topic, verdict="cannot tell", sentence=sentence, evidence=evidence)  # pyright: ignore[reportArgumentType]
