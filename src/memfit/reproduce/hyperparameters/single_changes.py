"""Trials that change one hyperparameter alone, of the published networks and of convolutional ones, and other learners.

The published tables change everything at once, so that they cannot say what one hyperparameter does. Here each of them
goes from the low to the high end of the published range while the others keep their value; the number of layers once
at equal nodes and once at equal width. The source names convolutional layers, GANs and other learners without figures:
they are measured the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memfit.job.data.images import images_said
from memfit.records.figure import Figure, measured, unknown
from memfit.records.reproduction import Learner, SingleChange
from memfit.records.study import Choice, SearchSpace, Study, StudySettings, TrialRecord
from memfit.reproduce.hyperparameters.published_tables import SOURCE
from memfit.reproduce.statements import mean_of
from memfit.study.tuners.replicated_blocks import ordered_tool

PREFIX = "single-"
LEARNERS_PREFIX = "learner-"
NODES, RATE, BATCH, DEPTH_NODES, DEPTH_WIDTH = "nodes", "lr", "batch_size", "layers, equal nodes", "layers, equal width"

Point = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSet:
    """A base point of a workload, and for each hyperparameter the values it takes alone."""

    workload: str
    data: str
    base: Point
    changes: Mapping[str, tuple[Point, ...]]

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.workload}-{self.data}"

    def levels(self, name: str) -> list[Point]:
        """The points of one hyperparameter, from low to high."""
        return [{**self.base, **change} for change in self.changes[name]]

    @property
    def points(self) -> list[Point]:
        """Every point once."""
        every = [point for name in self.changes for point in self.levels(name)]
        return [point for place, point in enumerate(every) if point not in every[:place]]


def _layers(width: int, count: int) -> str:
    return "-".join([str(width)] * count)


_MLP: Point = {"lr": 0.0042, "batch_size": 66, "hidden": _layers(200, 5)}
_CNN: Point = {"lr": 0.0042, "batch_size": 32, "width": 16, "blocks": 3}
_NODES: tuple[Point, ...] = tuple({"hidden": _layers(width, 5)} for width in (50, 200, 450))
_RATES: tuple[Point, ...] = ({"lr": 0.0002}, {"lr": 0.0042}, {"lr": 0.36})
CHANGE_SETS: dict[str, tuple[ChangeSet, ...]] = {
    "mnist": (
        ChangeSet(
            workload="mlp", data="mnist", base=_MLP,
            changes={
                NODES: _NODES,
                RATE: _RATES,
                BATCH: ({"batch_size": 8}, {"batch_size": 66}, {"batch_size": 98}),
                DEPTH_NODES: ({"hidden": "334-333-333"}, {"hidden": _layers(200, 5)}, {"hidden": _layers(100, 10)}),
                DEPTH_WIDTH: tuple({"hidden": _layers(200, count)} for count in (3, 5, 9)),
            },
        ),
    ),
    "fashion-mnist": (
        ChangeSet(workload="mlp", data="fashion-mnist", base=_MLP, changes={NODES: _NODES, RATE: _RATES}),
    ),
    "cifar-10": (
        ChangeSet(
            workload="cnn", data="cifar-10", base=_CNN,
            changes={
                NODES: tuple({"width": width} for width in (8, 16, 32)),
                RATE: _RATES,
                BATCH: tuple({"batch_size": size} for size in (8, 32, 98)),
                DEPTH_WIDTH: tuple({"blocks": count} for count in (2, 3, 4)),
            },
        ),
    ),
}  # fmt: skip
"""By the data set whose published table they go with."""
LEARNERS: dict[str, tuple[Point, ...]] = {
    "gan": ({"batch_size": 32, "width": 16}, {"batch_size": 32, "width": 64}),
    "forest": ({"trees": 10, "examples": 5000}, {"trees": 100, "examples": 5000}),
    "boosting": ({"rounds": 2, "leaves": 8, "examples": 5000}, {"rounds": 2, "leaves": 31, "examples": 5000}),
    "linear": ({"examples": 5000}, {"examples": 20_000}),
    "svm": ({"examples": 1000}, {"examples": 4000}),
}
"""Other learners on MNIST: a small and a larger setting of each."""


def change_settings(changes: ChangeSet, *, replicates: int, steps: int | None, seed: int) -> StudySettings:
    """The study that runs every point of a set, replicated in shuffled order."""
    fixed = {"data": changes.data, "optimizer": "adam", **({} if steps is None else {"steps": steps})}
    return _settings(changes.name, changes.workload, fixed, changes.points, replicates, seed)


def learner_settings(name: str, *, replicates: int, steps: int | None, seed: int) -> StudySettings:
    """The study that runs one other learner."""
    is_network = name == "gan"
    fixed: Point = {"data": "mnist", **({"steps": steps} if is_network and steps is not None else {})}
    return _settings(LEARNERS_PREFIX + name, name, fixed, LEARNERS[name], replicates, seed)


def _settings(
    name: str, workload: str, fixed: Point, points: Sequence[Point], replicates: int, seed: int
) -> StudySettings:
    names = dict.fromkeys(key for point in points for key in point)
    space = SearchSpace(
        parameters=tuple(
            Choice(name=key, options=tuple(dict.fromkeys(point[key] for point in points if key in point)))
            for key in names
        )
    )
    return StudySettings(
        name=name, source=SOURCE, workload=workload, fixed=fixed, space=space, seed=seed,
        tuner=ordered_tool(points, replicates), max_trials=len(points) * replicates,
        notes=(images_said(str(fixed["data"])),),
    )  # fmt: skip


def changes_in(study: Study, changes: ChangeSet) -> tuple[SingleChange, ...]:
    """What each hyperparameter did alone."""
    return tuple(_change(study, changes, name) for name in changes.changes)


def _change(study: Study, changes: ChangeSet, name: str) -> SingleChange:
    points = changes.levels(name)
    peaks = [mean_of((trial.peak.value for trial in _done(study, point)), "peak") for point in points]
    return SingleChange(
        workload=changes.workload,
        data=changes.data,
        name=name,
        levels=tuple(_level(change) for change in changes.changes[name]),
        peaks=tuple(peaks),
    )


def _level(change: Point) -> str:
    (value,) = change.values()
    widths = str(value).split("-") if isinstance(value, str) else []
    return f"{len(widths)} x {widths[0]}" if len(set(widths)) == 1 else str(value)


def _done(study: Study, point: Point) -> list[TrialRecord]:
    return [trial for trial in study.trials if trial.kind == "done" and trial.parameters == point]


def learners_in(study: Study) -> tuple[Learner, ...]:
    """Every setting of another learner: memory, time and energy."""
    points = study.settings.tuner.arguments["points"]
    return tuple(_learner(study, point) for point in points)


def _learner(study: Study, point: Point) -> Learner:
    done = _done(study, point)
    failed = next((t.outcome.message for t in study.trials if t.parameters == point and t.kind == "failed"), "")
    return Learner(
        name=study.settings.workload,
        settings=", ".join(f"{name}={value}" for name, value in point.items()),
        peak=mean_of((trial.peak.value for trial in done), "peak", reason=failed),
        duration=_mean([trial.duration for trial in done], "seconds", failed),
        energy=_mean([trial.energy for trial in done], "joules", failed),
    )


def _mean(figures: Sequence[Figure], unit: str, failed: str) -> Figure:
    known = [figure.value for figure in figures if figure.value is not None]
    if known:
        return measured(sum(known) / len(known), unit, f"mean of {len(known)} replicates")
    return unknown(
        unit, next((figure.reason for figure in figures if figure.reason), failed or "no replicate ended well")
    )
