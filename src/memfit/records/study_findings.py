"""Findings on a study: what drives memory, what else moved it, and what the data cannot tell.

Law of memory fitted to the trials of a study: bytes = base + b * parameters + c * batch * activations.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.figure import Figure

Topic = Literal[
    "order of recording",
    "other programs",
    "time of day",
    "hyperparameter",
    "interaction",
    "law",
    "size of the network",
    "pair",
    "study",
]
FindingVerdict = Literal["found", "ruled out", "cannot tell", "note"]

SYSTEM_MEMORY = "system memory used"
"""In the method of a trial's figure: the number holds other programs too."""


class StudyFinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer, with what it rests on."""

    topic: Topic
    subjects: tuple[str, ...] = ()
    """The hyperparameters, or the trials, it is about."""
    verdict: FindingVerdict
    """'found' keeps to the study's error rate; 'ruled out' means that any effect is too small to matter."""
    sentence: str
    evidence: tuple[str, ...] = ()
    effect: Figure | None = None
    """The change of memory, with its 95 % interval as low and high; of other programs a ratio, bytes per byte."""
    p: float | None = None
    """Adjusted for everything that was looked at."""
    share: float | None = None
    """Of the variance between trials: what this explains by itself."""
    share_beyond: float | None = None
    """What it explains beyond everything else in the model."""


class Importance(msgspec.Struct, frozen=True, kw_only=True):
    """How much one hyperparameter decides whether a trial is among the largest."""

    name: str
    share: float
    """Of the sum over all hyperparameters, after what shuffled data gives by chance was taken off."""


class StudyFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything found in one study."""

    title: str
    quantity: str
    """What was explained: 'peak memory of the job', 'average system memory used'."""
    num_trials: int
    num_points: int | None = None
    """Different sets of hyperparameters; fewer than trials where some were repeated."""
    low_bytes: float | None
    high_bytes: float | None
    differ_bytes: float | None = None
    """What the trials differ by: the span of the middle nine tenths of them."""
    matters_bytes: float | None = None
    """The smallest effect that matters: a share of what the trials differ by."""
    error_rate: float
    """How many of a hundred studies without any effect, divided by 100, would show at least one finding."""
    findings: tuple[StudyFinding, ...]
    importances: tuple[Importance, ...] = ()
    importance_reason: str = ""
    """Why there are none."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    constant: tuple[str, ...] = ()
    """Hyperparameters that the study has and did not vary."""

    def about(self, topic: Topic, *subjects: str) -> tuple[StudyFinding, ...]:
        """The findings of a topic, all or those about these subjects."""
        return tuple(f for f in self.findings if f.topic == topic and (not subjects or f.subjects == subjects))


class StudiesFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Several studies beside each other: each by itself, and what differs between them."""

    studies: tuple[StudyFindings, ...]
    between: tuple[StudyFinding, ...]
    """How much more one study takes than another at equal hyperparameters, and what acts differently in them."""
    notes: tuple[str, ...] = ()


class MemoryLaw(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A law that holds; a term that did not vary, or is not surely there, is None."""

    base_bytes: float
    bytes_per_parameter: float | None = None
    bytes_per_activation: float | None = None
    """For each activation of each example of a batch."""

    def bytes_of(self, num_parameters: float, num_batch_activations: float) -> float:
        """What the law says of a network; `num_batch_activations` are those of all examples of a batch."""
        per_parameter, per_activation = self.bytes_per_parameter or 0.0, self.bytes_per_activation or 0.0
        return self.base_bytes + per_parameter * num_parameters + per_activation * num_batch_activations
