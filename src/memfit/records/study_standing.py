"""How far is a running study?"""

from __future__ import annotations

from typing import Any

import msgspec


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A study while it runs, for the eye."""

    num_finished: int
    num_wanted: int | None
    """None when the study goes on until the tuner, or the clock, ends it."""
    num_running: int
    seconds: float
    """Since this session began."""
    seconds_left: float | None
    """None when there is nothing to estimate from."""
    live: tuple[dict[str, Any], ...] = ()
    """What is known of each running trial."""
    is_ending: bool = False
