"""Protocol between memfit and its sampler process: the orders it is started with, and the status lines it sends back.

    memfit  --- SamplerOrders, one JSON object in an inherited file --->  sampler
    memfit  <-- a StatusLine, one JSON object a line on a pipe ---------  sampler

Standard library only: the sampler loads this file. What is decoded has the stated types, or is refused as BadMessage.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from types import UnionType
from typing import NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from memfit.records.run_parts.live import LiveState


class BadMessage(ValueError):
    """A message that is none of the protocol's."""


# ---- orders --------------------------------------------------------------------------------------------------------


class LaunchOrder(NamedTuple):
    """Start this job."""

    command: tuple[str, ...]
    environment: dict[str, str | None]
    """Variables that the job gets in addition; None removes one."""
    limit_bytes: int | None
    grace_seconds: float
    """Between SIGTERM and SIGKILL when the limit is passed."""
    terminal_fd: int | None = None
    ignored_signals: tuple[int, ...] = ()
    ends_with_pid: int | None = None
    """The memfit command, for a job that it runs for itself and that must not outlive it; a user's job goes on."""


class AttachOrder(NamedTuple):
    """Watch this process, which runs already."""

    pid: int
    control_fd: int
    """Readable when the sampler is to detach from it."""


class SamplerOrders(NamedTuple):
    """What a sampler is to do; exactly one of `launch` and `attach` is given."""

    folder: str
    clock_start_ns: int
    interval_seconds: float
    eased_interval_seconds: float | None
    ledger: bool
    assume_watts: float | None
    status_fd: int
    live: bool
    launch: LaunchOrder | None = None
    attach: AttachOrder | None = None


def encode_orders(orders: SamplerOrders) -> bytes:
    """Orders as one JSON object."""
    return json.dumps(_plain(orders)).encode()


def decode_orders(data: bytes) -> SamplerOrders:
    """The orders that were encoded."""
    orders = _read(SamplerOrders, _parsed(data))
    if (orders.launch is None) == (orders.attach is None):
        raise BadMessage("orders must either launch a job or attach to one")
    if orders.launch is not None and not orders.launch.command:
        raise BadMessage("orders must name the command to launch")
    return orders


# ---- status lines --------------------------------------------------------------------------------------------------


class JobWatched(NamedTuple):
    """The job runs and is watched."""

    pid: int


class JobStopped(NamedTuple):
    """A signal has stopped the job, as Ctrl-Z does."""

    signal: int


class JobNotStarted(NamedTuple):
    """The command could not be executed."""

    error: str


class StorageFailed(NamedTuple):
    """The run folder cannot be written any more; the job goes on."""

    error: str
    seconds: float
    """Since the run began."""


class JobFinished(NamedTuple):
    """The job has ended, or was detached from; both fields None where only its parent knows."""

    exit_code: int | None = None
    signal: int | None = None


StatusLine = LiveState | JobWatched | JobStopped | JobNotStarted | StorageFailed | JobFinished
_KINDS: dict[str, type[StatusLine]] = {kind.__name__: kind for kind in get_args(StatusLine)}


def encode_status(line: StatusLine) -> bytes:
    """A status line, with its end."""
    return json.dumps({type(line).__name__: _plain(line)}).encode() + b"\n"


def decode_status(data: bytes) -> StatusLine:
    """The status line that was encoded."""
    message = _parsed(data)
    if not isinstance(message, dict) or len(message) != 1:
        raise BadMessage(f"a status line has one name: {data[:200]!r}")
    ((name, fields),) = message.items()
    if name not in _KINDS:
        raise BadMessage(f"no status line is called {name[:200]!r}")
    return _read(_KINDS[name], fields)


class StatusReader:
    """The receiving end of the pipe: whole lines, decoded, in order."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def read(self) -> list[StatusLine] | None:
        """What has come; None when the sampler has closed its end. Raises BlockingIOError as the pipe does."""
        chunk = os.read(self.descriptor, 65536)
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [decode_status(line) for line in lines]


# ---- named tuples as JSON ------------------------------------------------------------------------------------------

_Message = TypeVar("_Message", bound=tuple[object, ...])


def _plain(value: object) -> object:
    """A named tuple as a dictionary, whatever lies in it included."""
    fields = getattr(value, "_fields", None)
    if fields is None:
        return value
    return {name: _plain(getattr(value, name)) for name in fields}


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadMessage(f"not a JSON message: {data[:200]!r}") from None


@lru_cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _read(kind: type[_Message], fields: object) -> _Message:
    """A named tuple from a dictionary with exactly its fields, each of its type."""
    hints = _hints(kind)
    if not isinstance(fields, dict) or set(fields) != set(hints):
        raise BadMessage(f"{kind.__name__} has the fields {', '.join(hints)}")
    return kind(**{name: _typed(hint, fields[name], f"{kind.__name__}.{name}") for name, hint in hints.items()})


def _typed(hint: object, value: object, where: str) -> object:
    """A value as its type says; only the types that occur above are known."""
    if isinstance(hint, UnionType):
        (wanted,) = (option for option in get_args(hint) if option is not type(None))
        return None if value is None else _typed(wanted, value, where)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return _read(hint, value)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_typed(get_args(hint)[0], item, where) for item in value)
    if get_origin(hint) is dict and isinstance(value, dict):
        return {name: _typed(get_args(hint)[1], item, where) for name, item in value.items()}
    if type(value) is hint or (hint is float and type(value) is int):
        return value
    raise BadMessage(f"{where} cannot be {str(value)[:200]!r}")
