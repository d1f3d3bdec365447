"""Prediction of every rank of a distributed training: classes of ranks that are alike, and the proof of it."""

from __future__ import annotations

import msgspec

from memfit.records.prediction import LevelName, Prediction

RANKS_FORMAT = "memfit-ranks"
RANKS_VERSION = 1


class RankClass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks that hold the same bytes at every moment."""

    ranks: tuple[int, ...]
    traced: tuple[int, ...]
    """Those that were run, with equal events; the first one's prediction stands for all."""
    why: str
    """What sets them apart from the others, and how it is known that they are alike."""
    prediction: Prediction


class RankPredictions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of every rank of a training that has not been run."""

    format: str = msgspec.field(default_factory=lambda: RANKS_FORMAT)
    format_version: int = msgspec.field(default_factory=lambda: RANKS_VERSION)
    target: str
    device: str
    num_ranks: int
    classes: tuple[RankClass, ...]
    """In the order of their first rank; together they hold every rank once."""
    asked_at: tuple[str, ...] = ()
    """Lines of the job that ask for its rank."""
    total_seconds: float = 0.0
    """What the predictions took together."""

    def of_rank(self, rank: int) -> Prediction:
        """The prediction that stands for a rank."""
        return next(each.prediction for each in self.classes if rank in each.ranks)

    @property
    def level(self) -> LevelName:
        """The level that is compared: what a GPU's allocator reserves, or the tensors of a CPU process."""
        return "reserved" if self.classes[0].prediction.level("reserved") is not None else "tensors"

    def bytes_of(self, rank_class: RankClass) -> int:
        """The peak of a class on that level."""
        figure = rank_class.prediction.level(self.level)
        assert figure is not None
        assert figure.value is not None
        return int(figure.value)

    @property
    def fullest(self) -> RankClass:
        """The class with the highest peak."""
        return max(self.classes, key=self.bytes_of)

    @property
    def fits(self) -> bool | None:
        """Whether every rank fits; None when no limit was given."""
        found = [each.prediction.fits for each in self.classes]
        return None if None in found else all(found)


def named_ranks(ranks: tuple[int, ...]) -> str:
    """'0, 2-5, 7'."""
    parts: list[str] = []
    start = before = None
    for rank in (*sorted(ranks), None):
        if before is not None and rank == before + 1:
            before = rank
            continue
        if start is not None:
            parts.append(str(start) if start == before else f"{start}-{before}")
        start = before = rank
    return ", ".join(parts)
