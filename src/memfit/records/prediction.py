"""Prediction of one training: peaks by level, tensors alive there, assumptions.

Prediction of every rank of a distributed training: classes of ranks that are alike, and the proof of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from memfit.records.figure import Figure
from memfit.records.files.notebook import NotebookRecord
from memfit.records.files.versioned_file import FileKind, read_record
from memfit.records.timeline import Timeline

PREDICTION_FORMAT = "memfit-prediction"
PREDICTION_VERSION = 3
"""2 added the level `cudnn`, 3 the level `network`; records of older versions are read as they are."""

LevelName = Literal["tensors", "allocated", "reserved", "cudnn", "context", "network", "device", "smallest", "process"]
"""tensors: bytes asked for by live tensors; allocated, reserved: as `torch.cuda.memory_allocated`, `_reserved` count;
cudnn: what workspaces that only cuDNN knows may add to reserved, where a job calls it; context: what the driver takes
beside the allocator; network: what NCCL takes there, on a rank of many; device: the whole card; smallest: the least
card it still runs on; process: resident memory of the CPU process."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One peak, and what is counted in it."""

    name: LevelName
    figure: Figure
    meaning: str


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One named part of what is alive at the peak."""

    name: str
    num_bytes: int
    num_tensors: int


class AtPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Who is alive when the tensors peak, split five ways; each split adds up to the peak."""

    event: int
    step: int
    phase: str
    by_category: tuple[Share, ...]
    by_module: tuple[Share, ...]
    by_phase: tuple[Share, ...]
    by_line: tuple[Share, ...]
    by_operator: tuple[Share, ...]


class Assumption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something the prediction took for granted."""

    kind: str
    """'scalar answer', 'upper bound', 'attention', 'probe', 'process', 'context', 'script', ..."""
    text: str
    line: str = ""
    count: int = 1


class FailedAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The first allocation that does not fit."""

    requested_bytes: int
    limit_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    step: int
    phase: str
    module: str
    operator: str
    line: str
    message: str
    """As PyTorch would report it."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The headline peak at one value of a setting."""

    value: float
    peak_bytes: int
    how: Literal["traced", "interpolated"]
    fits: bool | None = None


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The peak as a function of one setting."""

    setting: str
    level: LevelName
    points: tuple[SweepPoint, ...]
    largest_fitting: float | None = None
    reason: str = ""
    """Why there is no largest value, or how it was found."""


class LengthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of a training step with a batch of one size."""

    name: str
    """'typical', '99 %' (of the batches are not larger), 'longest'."""
    size: int
    shape: str
    """As a person would say it: '32 x 118', or the length alone."""
    peak_bytes: int
    fits: bool | None = None


class BatchLengths(msgspec.Struct, frozen=True, kw_only=True):
    """The peak over the lengths that the batches of an epoch have."""

    source: str
    """Where the lengths are from."""
    level: LevelName
    points: tuple[LengthPoint, ...]
    num_batches: int
    num_seen: int
    """How many of them were looked at; fewer than all where there was no time."""
    num_too_large: float | None = None
    """Batches of an epoch that would not fit, on lines between the points; None without a limit, and where the
    longest batch was not reached and the others fit."""

    @property
    def is_whole(self) -> bool:
        """Whether every batch was looked at and the longest was trained on."""
        return self.num_seen == self.num_batches and any(point.name == "longest" for point in self.points)


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """What one change alone would save at the tensor peak."""

    change: str
    saved_bytes: int
    peak_bytes: int
    how: Literal["from the trace", "traced again"]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the prediction itself took."""

    trace_seconds: float
    probe_seconds: float
    total_seconds: float
    host_peak_bytes: int
    num_operators: int


class Prediction(NotebookRecord, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of a training that has not been run."""

    format: str = msgspec.field(default_factory=lambda: PREDICTION_FORMAT)
    format_version: int = msgspec.field(default_factory=lambda: PREDICTION_VERSION)
    """Made by functions, so that they are written although they are the usual ones."""
    target: str
    settings: dict[str, str] = {}
    arguments: tuple[str, ...] | None = None
    """Of a script; None for what is no script, and in records from before they were kept."""
    device: str
    """'cpu', or the name of the GPU."""
    route: str
    """How it was had: 'fake cpu', 'fake cuda', 'fake cpu, translated to cuda'."""
    torch_version: str
    num_steps: int
    num_threads: int | None = None
    """CPU threads of operators that the figures are for; None on a GPU, and where nothing was probed."""
    levels: tuple[Level, ...]
    at_peak: AtPeak
    phases: tuple[Share, ...] = ()
    """The largest tensor bytes within each phase."""
    assumptions: tuple[Assumption, ...] = ()
    error_band: str = ""
    """How far off predictions of this kind were, and against what."""
    failed: FailedAllocation | None = None
    memory_limit_bytes: int | None = None
    sweep: Sweep | None = None
    lengths: BatchLengths | None = None
    savings: tuple[Saving, ...] = ()
    step_time: Figure | None = None
    cost: Cost | None = None
    timeline: Timeline | None = None

    def level(self, name: LevelName) -> Figure | None:
        """The figure of one level, where this device has it."""
        return next((level.figure for level in self.levels if level.name == name), None)

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None when no limit was given."""
        return None if self.memory_limit_bytes is None else self.failed is None


PREDICTION_FILE = FileKind(
    format=PREDICTION_FORMAT,
    version=PREDICTION_VERSION,
    what="a prediction",
    hint="memfit predict ... --json > prediction.json",
    first_is_bare=True,
)


def read_prediction(path: str | Path) -> Prediction:
    """Read what `memfit predict --json` printed."""
    return read_record(path, PREDICTION_FILE, Prediction)


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


class RankPredictions(NotebookRecord, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


RANKS_FILE = FileKind(
    format=RANKS_FORMAT,
    version=RANKS_VERSION,
    what="a prediction of every rank",
    hint="memfit predict ... --rank all --json > ranks.json",
)


def read_ranks(path: str | Path) -> RankPredictions:
    """Read what `memfit predict --rank all --json` printed."""
    return read_record(path, RANKS_FILE, RankPredictions)


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
