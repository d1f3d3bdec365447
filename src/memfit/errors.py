"""Every error memfit raises on purpose, in one tree.

    MemfitError                       exit code 1: it failed
    |-- UsageError                    exit code 2: the request itself is wrong
    |   |-- BadQuantity               "0", "8 GBs": not a size, time or number we understand
    |   |-- CannotPull                a lever was allowed that would not compute the same here
    |   |-- CommandNotFound           the command to measure does not exist
    |   |-- InvalidSchedule           a plan that cannot be run on this chain
    |   `-- RunExists                 the run folder is already there
    |-- ProcessUnavailable            the process is gone, or belongs to somebody else
    |-- RecordError                   a run folder cannot be read
    |   |-- NotARun                   nothing that looks like a run
    |   |-- NewerFormat               written by a newer memfit
    |   `-- DamagedRecord             a file in it is broken beyond its tail
    |-- DataError                     a data set cannot be fetched or read
    |-- StorageError                  the run folder cannot be written (disk full, no permission)
    |-- Interrupted                   exit code 130: a signal ended a series of runs; what is done is kept
    |-- MissingExtra                  an optional dependency is not installed
    |-- PredictionFailed              a job could not be traced; carries its own traceback
    |-- PlanBroken                    the model was not called as it was when its plan was made
    |-- ProofFailed                   the planned step is not the plain one; the model is as it was
    `-- DoesNotFit                    exit code 3: the answer is that it does not fit

A message has three parts: what happened, what was found, what to try.
"""

from __future__ import annotations

from typing import Any


class MemfitError(Exception):
    """An error with an exit code and three parts: what happened, what was found, what to try."""

    exit_code = 1

    def __init__(self, what: str, *, found: str = "", hint: str = "") -> None:
        self.what = what
        self.found = found
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.found:
            parts.append(f"found: {self.found}")
        if self.hint:
            parts.append(f"try: {self.hint}")
        return "; ".join(parts)


class UsageError(MemfitError):
    """The request itself is wrong."""

    exit_code = 2


class BadQuantity(UsageError):
    """A text that is not a size, time or number."""


class CannotPull(UsageError):
    """A lever of a plan that cannot be pulled here."""


class CommandNotFound(UsageError):
    """The command to measure does not exist or cannot be executed."""


class InvalidSchedule(UsageError):
    """A plan whose blocks or transfers cannot be run on this chain."""


class RunExists(UsageError):
    """The run folder is already there and may not be overwritten."""


class ProcessUnavailable(MemfitError):
    """A process is gone, or may not be read by this user."""


class RecordError(MemfitError):
    """A run folder cannot be read."""


class NotARun(RecordError):
    """The path holds nothing that looks like a run."""


class NewerFormat(RecordError):
    """The run was written by a newer memfit."""


class DamagedRecord(RecordError):
    """A file of the run is broken beyond its tail."""


class DataError(MemfitError):
    """A data set cannot be fetched, or a file of it cannot be read."""


class StorageError(MemfitError):
    """The run folder cannot be written."""


class NoOutput(StorageError):
    """The standard output is closed, or lies on a full disk."""


class Interrupted(MemfitError):
    """Ctrl-C or a termination signal ended a series of runs; what is done is kept."""

    exit_code = 130


class MissingExtra(MemfitError):
    """An optional dependency is not installed."""


class UnsupportedTorch(MemfitError):
    """The installed torch is outside of the versions that memfit was run with."""


class PredictionFailed(MemfitError):
    """The job could not be traced; carries its own traceback, and the name of the signal that ended its process."""

    def __init__(
        self, what: str, *, kind: str, found: str = "", hint: str = "", traceback: str = "", signal: str = "",
        needs_rank: int | None = None, mail: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what, found=found, hint=hint)
        self.kind = kind
        self.needs_rank = needs_rank
        """The rank that is to be predicted before, since this one needs the shapes that it sends."""
        self.mail = mail or {}
        """Shapes that stages of this rank have sent before it had to wait."""
        self.traceback = traceback
        self.signal = signal


class PlanBroken(MemfitError):
    """The model was not called as it was when the plan was made."""


class ProofFailed(MemfitError):
    """The planned step is not the plain one, and no block could be named; the model is as it was."""


class DoesNotFit(MemfitError):
    """The answer is that it does not fit; carries the numbers."""

    exit_code = 3

    def __init__(
        self, what: str, *, limit_bytes: int, needed_bytes: int | None = None, found: str = "", hint: str = ""
    ) -> None:
        super().__init__(what, found=found, hint=hint)
        self.limit_bytes = limit_bytes
        self.needed_bytes = needed_bytes
        self.levers: tuple[Any, ...] = ()
        """What could still be changed (records.plan.Lever), where a planner knows."""
