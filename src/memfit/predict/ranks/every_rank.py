"""Prediction of every rank: one child process for each rank that differs, and one more to show that others do not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from memfit.errors import PredictionFailed, UsageError
from memfit.predict.engine import Question
from memfit.predict.ranks.alike_ranks import classes_of, why_alike
from memfit.predict.ranks.rank_evidence import RankEvidence
from memfit.records.prediction import Prediction, RankClass, RankPredictions
from memfit.records.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """One rank that was run."""

    prediction: Prediction
    evidence: RankEvidence
    digest: str
    """Of its events: equal for ranks that allocate and free the same bytes in the same order."""


RunRank = Callable[[Question, dict[str, str]], RankRun]
"""Predicts the rank that a question names; with the shapes that other ranks send to it."""


@dataclass(slots=True)
class RankRuns:
    """The ranks that were run so far, each once."""

    question: Question
    run: RunRank
    found: dict[int, RankRun] = field(default_factory=dict)
    mail: dict[str, str] = field(default_factory=dict)

    def of(self, rank: int, waiting: tuple[int, ...] = ()) -> RankRun:
        """Run a rank; first those whose shapes it needs."""
        if rank not in self.found:
            options = msgspec.structs.replace(self.question.options, rank=rank)
            self.found[rank] = self._run(replace(self.question, options=options), rank, waiting)
            self.mail.update(self.found[rank].evidence.mail)
        return self.found[rank]

    def _run(self, question: Question, rank: int, waiting: tuple[int, ...]) -> RankRun:
        """Run a rank again and again, each time with the shapes that others have sent meanwhile.

        Ranks with several stages wait for each other in turn (rank 0 has stages 0 and 2, rank 1 has 1 and 3): what a
        rank sent before it had to wait is handed on. Where nothing new was sent, waiting has no end and is refused.
        """
        while True:
            try:
                return self.run(question, self.mail)
            except PredictionFailed as error:
                self.mail.update(error.mail)
                if error.needs_rank in (None, rank, *waiting):
                    raise
                failed, needed, known = error, error.needs_rank, len(self.mail)
            try:
                self.of(needed, (*waiting, rank))
            except PredictionFailed as error:
                if error.needs_rank is None:
                    raise
            if len(self.mail) == known:
                raise failed


def predict_one(question: Question, run: RunRank) -> Prediction:
    """The prediction of the rank that the options name."""
    rank = question.options.rank
    assert isinstance(rank, int)
    return RankRuns(question, run).of(rank).prediction


def predict_every_rank(question: Question, run: RunRank) -> RankPredictions:
    """One prediction of every rank that differs from the others."""
    started, num_ranks = time.perf_counter(), question.options.ranks
    runs = RankRuns(question, run)
    evidence = runs.of(0).evidence
    asks = bool(evidence.asked_at)
    found = [part for ranks in classes_of(num_ranks, evidence) for part in _agreeing(ranks, runs, asks=asks)]
    classes = [
        RankClass(
            ranks=ranks,
            traced=traced,
            why=why_alike(ranks, traced, evidence),
            prediction=runs.of(traced[0]).prediction,
        )
        for ranks, traced in _joined(found, runs)
    ]
    return RankPredictions(
        target=question.job.target,
        device=classes[0].prediction.device,
        num_ranks=num_ranks,
        classes=tuple(sorted(classes, key=lambda each: each.ranks[0])),
        asked_at=tuple(dict.fromkeys(line for each in runs.found.values() for line in each.evidence.asked_at)),
        total_seconds=time.perf_counter() - started,
    )


def _agreeing(ranks: tuple[int, ...], runs: RankRuns, *, asks: bool) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A class with the ranks of it that were run; halved where the first and the last one differ.

    Where the job itself asks for its rank, the one in the middle is run too.
    """
    middle = len(ranks) // 2
    tried = sorted({ranks[0], ranks[middle] if asks else ranks[0], ranks[-1]})
    if len({runs.of(rank).digest for rank in tried}) == 1:
        return [(ranks, tuple(tried))]
    return _agreeing(ranks[:middle], runs, asks=asks) + _agreeing(ranks[middle:], runs, asks=asks)


def _joined(
    found: list[tuple[tuple[int, ...], tuple[int, ...]]], runs: RankRuns
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Classes whose events turned out to be equal are one."""
    by_digest: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for ranks, traced in found:
        digest = runs.of(traced[0]).digest
        before_ranks, before_traced = by_digest.get(digest, ((), ()))
        by_digest[digest] = tuple(sorted((*before_ranks, *ranks))), (*before_traced, *traced)
    return list(by_digest.values())


def digest_of(timeline: Timeline) -> str:
    """A short name of all allocations and frees in their order."""
    total = hashlib.sha256()
    for span in timeline.spans:
        total.update(f"{span.start} {span.end} {span.num_bytes} {span.device} {span.stream};".encode())
    return total.hexdigest()


def check_rank(num_ranks: int, rank: int | str) -> None:
    """Refuse a rank that the group does not have."""
    if isinstance(rank, int) and not 0 <= rank < num_ranks:
        hint = f"--rank 0 to --rank {num_ranks - 1}, or all" if num_ranks > 1 else "--ranks N says how many there are"
        raise UsageError(f"there is no rank {rank} among {num_ranks}", hint=hint)
