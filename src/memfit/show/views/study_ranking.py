"""Ranking of a study's trials: best first by metric or by peak memory, and the best 100, 20, 5 and 1 % of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memfit.records.study import Study, TrialRecord

RankedBy = Literal["metric", "memory"]
TOP_SHARES = (1.0, 0.2, 0.05, 0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTrials:
    """Finished trials: those with the number they are ranked by, best first, and all others."""

    by: RankedBy
    best_is_high: bool
    ranked: tuple[TrialRecord, ...]
    others: tuple[TrialRecord, ...]
    """Out of memory, failed, stopped or rejected, or done without that number."""


def number_of(trial: TrialRecord, by: RankedBy) -> float | None:
    """What a trial is ranked by."""
    return trial.metric if by == "metric" else trial.peak.value


def rank_trials(study: Study, by: RankedBy) -> RankedTrials:
    """Done trials in the order of their metric, or of their peak, the smallest first."""
    best_is_high = by == "metric" and study.settings.goal.direction == "maximize"
    finished = [trial for trial in study.trials if trial.is_finished]
    numbered = [(number_of(trial, by), trial) for trial in finished if trial.kind == "done"]
    keyed = [(number, trial) for number, trial in numbered if number is not None]
    keyed.sort(key=lambda pair: pair[0], reverse=best_is_high)
    ranked = tuple(trial for _, trial in keyed)
    known = {trial.number for trial in ranked}
    others = tuple(trial for trial in finished if trial.number not in known)
    return RankedTrials(by=by, best_is_high=best_is_high, ranked=ranked, others=others)


def top_share(trials: Sequence[TrialRecord], share: float) -> Sequence[TrialRecord]:
    """The best part of trials that stand best first: at least one, rounded up."""
    return trials[: max(1, math.ceil(round(len(trials) * share, 6)))]


def top_groups(ranked: Sequence[TrialRecord]) -> list[tuple[str, Sequence[TrialRecord]]]:
    """The best 100, 20, 5 and 1 % with their titles; shares that come to the same trials are one group."""
    groups: list[tuple[list[str], Sequence[TrialRecord]]] = []
    for share in TOP_SHARES:
        chosen = top_share(ranked, share)
        if groups and len(groups[-1][1]) == len(chosen):
            groups[-1][0].append(f"{share:.0%}")
        else:
            groups.append(([f"{share:.0%}"], chosen))
    return [(f"best {', '.join(names)}: {_trials(len(chosen), len(ranked))}", chosen) for names, chosen in groups]


def _trials(count: int, total: int) -> str:
    return f"{count:,} of {total:,} trials"
