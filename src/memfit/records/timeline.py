"""Timeline of tensor storages: lifetimes, who made them, and what for.

One record for both ways of knowing: a traced real step and a predicted one. Time is the index of the event in the
log, so that two runs of the same program can be laid over each other; seconds stand beside it where a clock was
running.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Category = Literal[
    "parameter", "buffer", "gradient", "optimizer state", "activation", "temporary", "input", "workspace"
]
Phase = Literal["setup", "data", "forward", "backward", "recompute", "update", "evaluation", "other"]

CATEGORIES: tuple[Category, ...] = (
    "parameter", "buffer", "gradient", "optimizer state", "activation", "temporary", "input", "workspace",
)  # fmt: skip
PHASES: tuple[Phase, ...] = ("setup", "data", "forward", "backward", "recompute", "update", "evaluation", "other")
INSIDE_A_KERNEL = "inside a kernel"
"""The operator of a span that one call took inside and gave back at its end."""


class LiveSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One storage from its allocation to its release."""

    start: int
    """Index of the event that allocated it."""
    end: int | None
    """Index of the event that released it; None when it outlived the log."""
    num_bytes: int
    category: Category
    phase: Phase
    """The phase it was born in."""
    module: str = ""
    """Path of the module that made it, as in `model.named_modules()`; empty outside of modules."""
    operator: str = ""
    device: str = "cpu"
    line: str = ""
    """'file.py:12' of the user's code, where it is known."""
    dtype: str = ""
    """'float32', 'bfloat16' of the tensor that was seen first; empty where it is not known."""
    stream: int = 0
    """The CUDA stream it was made on, whose pool of the allocator it came from; 0 is the default one."""


class PhaseMark(msgspec.Struct, frozen=True, kw_only=True):
    """From this event on, the program was in this phase of this step."""

    start: int
    step: int
    phase: Phase


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """All storages of the traced part of a run, in order of allocation."""

    spans: tuple[LiveSpan, ...]
    num_events: int
    phases: tuple[PhaseMark, ...] = ()
    event_seconds: tuple[float, ...] = ()
    """Seconds since the log began, one per event; empty when no clock was running."""
