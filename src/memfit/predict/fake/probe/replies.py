"""Replies of the probe process, one line of JSON each."""

from __future__ import annotations

from typing import TypedDict


class Began(TypedDict):
    """The first line: what a bare process holds, and how fast the machine is."""

    baseline_bytes: int
    not_imported: list[str]
    flops_per_second: float
    bytes_per_second: float


class Trying(TypedDict):
    """The call that is run next; the last that is heard of when it ends the process."""

    trying: int


class NotRun(TypedDict):
    """Why a call was not run."""

    skipped: str


class Skipped(NotRun):
    """The same, with the number of its signature."""

    signature: int


class Taken(TypedDict):
    """What a call took when it was run for real."""

    inside_bytes: int
    output_bytes: list[int]
    touched_bytes: list[int]
    filled_bytes: int


class Answered(Taken):
    """The same, with the number of its signature."""

    signature: int


class AllHere(TypedDict):
    """The last line, where another number of threads was asked for as well: the calls that took something else."""

    all_here: list[Answered]
