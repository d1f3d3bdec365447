"""Pretended CUDA streams and events: nothing waits on them, but memory belongs to the stream it was asked for on.

PyTorch's caching allocator keeps a pool of free blocks for each stream, so that what FSDP2 gathers and reduces on
streams of its own is never used again by the layers. The log notes the stream of every storage. As torch does (read in
torch 2.13), new streams come from two rings of 32, one for each priority, so that the 33rd is the first again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from unittest.mock import patch

import torch

from memfit.predict.observe.storage_log import TraceLog

RING = 32
"""Streams of one priority."""


class _DoesNothing:
    """What streams and events have in common: whatever they are asked to wait for is done."""

    def query(self) -> bool:
        """Everything is done."""
        return True

    def _nothing(self, *args: object, **kwargs: object) -> None:
        return None

    synchronize = wait = _nothing


class GhostEvent(_DoesNothing):
    """An event that has happened."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.cuda_event = 0

    record = _DoesNothing._nothing

    def elapsed_time(self, other: object) -> float:
        """Some milliseconds."""
        return 1.0


class GhostStream(_DoesNothing):
    """A stream on which nothing runs; a context in which it is the current one."""

    log: TraceLog
    rings: dict[bool, Iterator[int]]

    def __init__(self, device: object = None, priority: int = 0, *args: object, **kwargs: object) -> None:
        urgent = priority < 0
        self._use(1 + urgent * RING + next(self.rings[urgent]) % RING)

    def _use(self, number: int) -> None:
        self.cuda_stream = self.stream_id = number
        self._before: list[int] = []
        self.device = torch.device("cuda", 0)

    @classmethod
    def numbered(cls, number: int) -> GhostStream:
        """The stream of this number."""
        made = cls.__new__(cls)
        made._use(number)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GhostStream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __enter__(self) -> GhostStream:
        self._before.append(self.log.stream)
        self.log.stream = self.cuda_stream
        return self

    def __exit__(self, *error: object) -> None:
        self.log.stream = self._before.pop()

    def is_capturing(self) -> bool:
        """No graph is recorded."""
        return False

    wait_stream = wait_event = _DoesNothing._nothing

    def record_event(self, *args: object) -> GhostEvent:
        """An event."""
        return GhostEvent()


@contextlib.contextmanager
def pretending_streams(log: TraceLog) -> Iterator[None]:
    """Within, streams of torch are these, and the log knows on which one the program works."""
    rings = {False: itertools.count(), True: itertools.count()}
    stream_class = type("Stream", (GhostStream,), {"log": log, "rings": rings})

    def current(*_: object) -> GhostStream:
        return stream_class.numbered(log.stream)

    def switched(stream: GhostStream | None = None) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if stream is None else stream

    def switch(stream: GhostStream) -> None:
        log.stream = stream.cuda_stream

    answers: dict[str, Callable[..., object]] = {
        "Stream": stream_class, "Event": GhostEvent, "current_stream": current,
        "default_stream": lambda *_: stream_class.numbered(0), "stream": switched, "set_stream": switch,
    }  # fmt: skip
    try:
        with contextlib.ExitStack() as stack:
            for name, function in answers.items():
                stack.enter_context(patch.object(torch.cuda, name, function))
            for name in ("current_stream", "set_stream"):
                stack.enter_context(patch.object(torch.accelerator, name, answers[name]))
            stack.enter_context(patch.object(torch, "Stream", stream_class))
            yield
    finally:
        log.stream = 0
