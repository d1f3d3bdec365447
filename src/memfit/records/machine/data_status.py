"""Status of the data sets on this machine: which are there, how large, and where."""

from __future__ import annotations

from typing import Literal

import msgspec


class DataStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One data set on this machine."""

    name: str
    title: str
    state: Literal["here", "incomplete", "damaged", "not here"]
    num_bytes: int
    """Its size once it is here."""
    folder: str
    sources: tuple[str, ...]
    """Where it can be had, the official place first."""
