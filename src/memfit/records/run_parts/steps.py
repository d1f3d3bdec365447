"""Optimizer steps of a run: begin, end, phases, and the exact peak of each."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

SEVERAL_OPTIMIZERS = -1
"""The optimizer of a group in which more than one took part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """One row per optimizer step, or per group of steps too short for a peak of their own; times in seconds since the
    run began, nan where a phase did not occur or the row was measured as a whole."""

    process: np.ndarray
    """Index into RunRecord.processes."""
    step: np.ndarray
    """Counts from 1 within the process, over all its optimizers; of a group its last step."""
    group_size: np.ndarray
    """How many steps the row stands for: 1, or those of a group, which together took from its begin to its end."""
    optimizer: np.ndarray
    """0 for the first optimizer that stepped, 1 for the second (a GAN has two); SEVERAL_OPTIMIZERS in a mixed group."""
    begin_seconds: np.ndarray
    forward_seconds: np.ndarray
    backward_seconds: np.ndarray
    update_seconds: np.ndarray
    end_seconds: np.ndarray
    peak_bytes: np.ndarray
    """Exact resident high-water mark of the row (the kernel's counter, reset at every boundary)."""
    data_peak_bytes: np.ndarray
    """Exact peaks of the four phases; nan where the phase did not occur or was not measured."""
    forward_peak_bytes: np.ndarray
    backward_peak_bytes: np.ndarray
    update_peak_bytes: np.ndarray

    def __len__(self) -> int:
        """The number of rows; `total` is that of the steps."""
        return len(self.step)

    @property
    def total(self) -> int:
        """How many steps there were, each of a group counted."""
        return int(self.group_size.sum())

    @property
    def first_step(self) -> np.ndarray:
        """The first step of every row; `step` is its last."""
        return self.step - self.group_size + 1

    @property
    def seconds_per_step(self) -> np.ndarray:
        """What a step of the row took; in a group the mean of its steps, because each alone is unknown."""
        return (self.end_seconds - self.begin_seconds) / self.group_size

    @property
    def is_whole(self) -> np.ndarray:
        """Which rows were measured as a whole, without a word about their phases."""
        phases = (self.forward_seconds, self.backward_seconds, self.update_seconds, self.data_peak_bytes)
        phases += (self.forward_peak_bytes, self.backward_peak_bytes, self.update_peak_bytes)
        return np.all(np.isnan(np.array(phases)), axis=0) & (~np.isnan(self.peak_bytes) | (self.group_size > 1))


def no_steps() -> Steps:
    """A run in which no optimizer step was seen."""
    empty = np.zeros(0)
    whole = np.zeros(0, dtype=np.int64)
    return Steps(
        process=whole, step=whole, group_size=whole, optimizer=whole, begin_seconds=empty, forward_seconds=empty,
        backward_seconds=empty, update_seconds=empty, end_seconds=empty, peak_bytes=empty, data_peak_bytes=empty,
        forward_peak_bytes=empty, backward_peak_bytes=empty, update_peak_bytes=empty,
    )  # fmt: skip


def join_steps(parts: list[Steps]) -> Steps:
    """The steps of several processes in one table, ordered by their end."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return no_steps()
    order = np.argsort(np.concatenate([part.end_seconds for part in parts]), kind="stable")
    return Steps(**{f.name: np.concatenate([getattr(part, f.name) for part in parts])[order] for f in fields(Steps)})
