"""Simulated studies with a known truth, on four kinds of designs, for tests of `memfit explain`.

    independent   every hyperparameter drawn by itself
    tuner         after ten random trials, new ones near the good ones: values crowd and hyperparameters move together;
                  in every second study what the tuner minimises is memory itself, so that noise steers the design
    blocked       one batch size after the other, in the order of time; in half of the studies memory steps up or down
                  at some trial, in a third every point is run twice
    repeats       a grid of two to six points of one or two hyperparameters, each run two to eight times: all trials
                  shuffled, or one round through the grid after the other; in a quarter of the studies a few trials are
                  missing, in half memory steps up or down as above

Noise is normal, heavy-tailed (Student's t with 3 degrees of freedom) or grows with the batch, in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from memfit.explain.study.table import Table
from memfit.units import MIB

DesignName = Literal["independent", "tuner", "blocked", "repeats"]
DESIGNS: tuple[DesignName, ...] = ("independent", "tuner", "blocked", "repeats")
BATCHES, OPTIMIZERS = (16, 32, 64, 128, 256), ("adam", "sgd", "rmsprop")
GRIDS = ((2, 2), (2, 2), (2, 3), (3, 2), (2,), (3,), (5,))
LEAST_REPEATS_DF = 4
"""So many trials a grid has at least beyond its points."""
FLOOR_MIB, NOISE_MIB = 400.0, 5.0

Row = dict[str, Any]
Rule = Callable[[Row], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What each hyperparameter adds, in bytes; zero is exactly none."""

    parts: dict[str, Callable[..., float]]
    step_bytes: float = 0.0
    step_place: int = 0

    def change(self, name: str, low: object, high: object) -> float:
        """From one value to another, everything else held fixed."""
        return self.parts[name](high) - self.parts[name](low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One simulated study."""

    table: Table
    truth: Truth


def simulate(design: DesignName, seed: int, *, has_effects: bool = True, num_trials: int | None = None) -> Simulated:
    """A study of 24 to 60 trials (of a repeated grid, 6 to 48); without effects nothing but noise moves memory."""
    random = np.random.default_rng([seed, DESIGNS.index(design), int(has_effects)])
    n = num_trials or int(random.integers(24, 61))
    parts = _parts(random, has_effects)
    noises = _noises(random, n, seed)

    def memory_mib(row: Row, place: int) -> float:
        return FLOOR_MIB + sum(part(row[name]) for name, part in parts.items()) / MIB + noises(row, place)

    step_mib, step_place = 0.0, 0
    if design in ("blocked", "repeats"):
        rows = _blocked(random, n, is_twice=seed % 3 == 0) if design == "blocked" else _repeated(random)
        n = len(rows)
        if has_effects and seed % 2:
            edge = min(4, n // 3)
            step_mib, step_place = float(random.uniform(-60, 60)), int(random.integers(edge, n - edge))
    elif design == "tuner":
        rows = _tuned(random, n, memory_mib, by_memory=bool(seed % 2))
    else:
        rows = [_drawn(random) for _ in range(n)]
    memory = [memory_mib(row, place) + step_mib * (place >= step_place) for place, row in enumerate(rows)]
    truth = Truth(parts=parts, step_bytes=step_mib * MIB, step_place=step_place)
    return Simulated(table=made_table(rows, memory, random), truth=truth)


def _drawn(random: np.random.Generator) -> Row:
    return {
        "lr": float(np.exp(random.uniform(np.log(1e-4), 0))),
        "batch_size": int(random.choice(BATCHES)),
        "width": int(random.integers(32, 512)),
        "optimizer": str(random.choice(OPTIMIZERS)),
        "dropout": float(random.uniform(0, 0.5)),
    }


def _parts(random: np.random.Generator, has_effects: bool) -> dict[str, Callable[..., float]]:
    """Each hyperparameter with a chance of one half to do nothing."""
    strengths = random.uniform(0.2, 1.0, 5) * (random.random(5) < 0.5) * has_effects * MIB
    batch, width, rate, optimizer, dropout = (float(s) for s in strengths)
    by_optimizer = dict(zip(OPTIMIZERS, random.uniform(-20, 20, 3) * optimizer, strict=True))
    return {
        "lr": lambda value: 3 * rate * math.log(value),
        "batch_size": lambda value: 0.2 * batch * value,
        "width": lambda value: 0.1 * width * value,
        "optimizer": lambda value: float(by_optimizer[value]),
        "dropout": lambda value: 30 * dropout * value,
    }


def _noises(random: np.random.Generator, n: int, seed: int) -> Callable[[Row, int], float]:
    normal, heavy = random.normal(0, NOISE_MIB, 2 * n), random.standard_t(3, 2 * n) * NOISE_MIB / 2
    kind = seed % 3
    if kind == 0:
        return lambda row, place: float(normal[place])
    if kind == 1:
        return lambda row, place: float(heavy[place])
    return lambda row, place: float(normal[place]) * (0.3 + row["batch_size"] / 128)


def _blocked(random: np.random.Generator, n: int, *, is_twice: bool) -> list[Row]:
    num_points = n // 2 if is_twice else n
    rows = [_drawn(random) | {"batch_size": BATCHES[place * len(BATCHES) // num_points]} for place in range(num_points)]
    return rows + [rows[place] for place in random.permutation(num_points)] if is_twice else rows


def _repeated(random: np.random.Generator) -> list[Row]:
    """Repeats that do not come one after the other: what a step in time does would be in all points alike."""
    points = _grid(random)
    least = 2 + LEAST_REPEATS_DF // len(points)
    num_rounds = int(random.integers(least, 9))
    rounds = [[points[place] for place in random.permutation(len(points))] for _ in range(num_rounds)]
    if random.random() < 0.5:
        rounds = [points] * num_rounds
    rows = [row for each in rounds for row in each]
    if random.random() < 0.5:
        rows = [rows[place] for place in random.permutation(len(rows))]
    if random.random() < 0.25:
        spare = len(rows) - len(points) - LEAST_REPEATS_DF
        lost = set(random.permutation(np.arange(len(points), len(rows)))[: int(random.integers(0, min(spare, 3) + 1))])
        rows = [row for place, row in enumerate(rows) if place not in lost]
    return rows


def _grid(random: np.random.Generator) -> list[Row]:
    """All combinations of some values of one or two hyperparameters; the others are the same everywhere."""
    sizes = GRIDS[random.integers(len(GRIDS))]
    names = random.permutation(["batch_size", "width", "lr"] + ["optimizer"] * (max(sizes) <= len(OPTIMIZERS)))
    points = [_drawn(random)]
    for name, size in zip(names, sizes, strict=False):
        values: list[Any] = []
        while len(values) < size:
            value = _drawn(random)[name]
            values += [] if value in values else [value]
        points = [{**point, name: value} for point in points for value in values]
    return points


def _tuned(
    random: np.random.Generator, n: int, memory_mib: Callable[[Row, int], float], *, by_memory: bool
) -> list[Row]:
    """Like a tree-structured Parzen estimator: near one of the good quarter, each hyperparameter by itself."""
    rows, losses = [], []
    for place in range(n):
        good = [rows[i] for i in np.argsort(losses)[: max(2, len(rows) // 4)]] if place >= 10 else []
        row = _near(random, good) if good else _drawn(random)
        rows.append(row)
        score = (math.log(row["lr"]) + 5) ** 2 / 10 - row["width"] / 200 - row["batch_size"] / 200 + random.normal()
        losses.append(memory_mib(row, place) if by_memory else score)
    return rows


def _near(random: np.random.Generator, good: list[Row]) -> Row:
    fresh = _drawn(random)
    picked = {name: good[random.integers(len(good))][name] for name in fresh}
    return {
        "lr": float(np.clip(picked["lr"] * np.exp(random.normal(0, 1.2)), 1e-4, 1)),
        "batch_size": picked["batch_size"] if random.random() < 0.7 else fresh["batch_size"],
        "width": int(np.clip(picked["width"] + random.normal(0, 70), 32, 511)),
        "optimizer": picked["optimizer"] if random.random() < 0.7 else fresh["optimizer"],
        "dropout": float(np.clip(picked["dropout"] + random.normal(0, 0.08), 0, 0.5)),
    }


def made_table(rows: list[Row], memory_mib: list[float], random: np.random.Generator, **sizes: np.ndarray) -> Table:
    """A table of trials that began every half hour, beside other programs that have nothing to do with it."""
    n = len(rows)
    unknown = np.full(n, math.nan)
    hours = np.arange(n) * 0.5
    return Table(
        title="simulated",
        quantity="peak memory of the job",
        is_system_wide=False,
        labels=tuple(range(n)),
        memory_bytes=np.array(memory_mib) * MIB,
        values=tuple(rows),
        background_bytes=random.normal(3000, 100, n) * MIB,
        hours=(8 + hours) % 24,
        times_hours=hours,
        num_parameters=sizes.get("num_parameters", unknown),
        num_activations=sizes.get("num_activations", unknown),
    )


def simulate_networks(seed: int, num_trials: int = 40) -> Simulated:
    """Networks whose memory follows the law: 16 bytes per parameter, and 8 or nothing per activation and example."""
    random = np.random.default_rng([seed, 99])
    rows = [_drawn(random) | {"layers": int(random.integers(1, 6))} for _ in range(num_trials)]
    width, layers = (np.array([row[name] for row in rows], dtype=float) for name in ("width", "layers"))
    batch = np.array([row["batch_size"] for row in rows], dtype=float)
    parameters, activations = width**2 * layers * 4, width * layers * 20
    per_activation = 8.0 * (seed % 2)
    memory = FLOOR_MIB + (16 * parameters + per_activation * batch * activations) / MIB
    memory = memory + random.normal(0, 2, num_trials)
    parts: dict[str, Callable[..., float]] = {"parameter": lambda _: 16.0, "activation and example": lambda _: 0.0}
    parts["activation and example"] = lambda _: per_activation
    table = made_table(rows, memory.tolist(), random, num_parameters=parameters, num_activations=activations)
    return Simulated(table=table, truth=Truth(parts=parts))
