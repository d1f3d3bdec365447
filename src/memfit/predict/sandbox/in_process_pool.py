"""Pools of processes that do their work in the calling process, one call after the other. Standard library only."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

Call = Callable[..., object]
P = ParamSpec("P")
R = TypeVar("R")


class Result:
    """As what `apply_async` returns; the work is done already."""

    def __init__(self, work: Call, callback: Call | None, error_callback: Call | None) -> None:
        self._value, self._error = None, None
        try:
            self._value = work()
        except Exception as error:
            self._error = error
            if error_callback is not None:
                error_callback(error)
        else:
            if callback is not None:
                callback(self._value)

    def get(self, timeout: float | None = None) -> object:
        """The value, or the error that came."""
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None:
        """It is done."""

    def ready(self) -> bool:
        """It is done."""
        return True

    def successful(self) -> bool:
        """Whether no error came."""
        return self._error is None


class InProcessPool:
    """As `multiprocessing.Pool`."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Call | None = None,
        initargs: Iterable[object] = (),
        *args: object,
        **kwargs: object,
    ) -> None:
        self._processes = processes or os.cpu_count() or 1
        self._pool: list[Any] = []
        self._ctx = SimpleNamespace(Manager=InProcessManager)
        if initializer is not None:
            initializer(*initargs)

    def apply(self, func: Callable[..., R], args: Iterable[object] = (), kwds: Mapping[str, object] | None = None) -> R:
        """One call."""
        return func(*args, **(kwds or {}))

    def map(self, func: Callable[..., R], iterable: Iterable[object], chunksize: int | None = None) -> list[R]:
        """A call for each item."""
        return [func(item) for item in iterable]

    def starmap(
        self, func: Callable[..., R], iterable: Iterable[Iterable[object]], chunksize: int | None = None
    ) -> list[R]:
        """A call for each tuple of arguments."""
        return [func(*items) for items in iterable]

    def imap(self, func: Call, iterable: Iterable[object], chunksize: int = 1) -> Iterator[object]:
        """A call for each item, when it is asked for."""
        return map(func, iterable)

    imap_unordered = imap

    def apply_async(
        self, func: Call, args: Iterable[object] = (), kwds: Mapping[str, object] | None = None,
        callback: Call | None = None, error_callback: Call | None = None,
    ) -> Result:  # fmt: skip
        """One call, done when this returns."""
        return Result(lambda: func(*args, **(kwds or {})), callback, error_callback)

    def map_async(
        self, func: Call, iterable: Iterable[object], chunksize: int | None = None, callback: Call | None = None,
        error_callback: Call | None = None,
    ) -> Result:  # fmt: skip
        """A call for each item, done when this returns."""
        return Result(lambda: self.map(func, iterable), callback, error_callback)

    def starmap_async(
        self, func: Call, iterable: Iterable[Iterable[object]], chunksize: int | None = None,
        callback: Call | None = None, error_callback: Call | None = None,
    ) -> Result:  # fmt: skip
        """A call for each tuple of arguments, done when this returns."""
        return Result(lambda: self.starmap(func, iterable), callback, error_callback)

    def close(self) -> None:
        """Nothing is left to close."""

    terminate = join = close

    def __enter__(self) -> InProcessPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.terminate()


class InProcessExecutor(concurrent.futures.Executor):
    """As `concurrent.futures.ProcessPoolExecutor`."""

    def __init__(
        self, max_workers: int | None = None, mp_context: object = None, initializer: Call | None = None,
        initargs: Iterable[object] = (), **kwargs: object,
    ) -> None:  # fmt: skip
        if initializer is not None:
            initializer(*initargs)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[R]:
        """One call, done when this returns."""
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class InProcessManager:
    """As `multiprocessing.Manager()`: its objects are plain ones."""

    dict, list, Namespace = dict, list, SimpleNamespace
    Queue, JoinableQueue = queue.Queue, queue.Queue
    Lock, RLock, Event, Condition = threading.Lock, threading.RLock, threading.Event, threading.Condition
    Semaphore, BoundedSemaphore, Barrier = threading.Semaphore, threading.BoundedSemaphore, threading.Barrier
    Pool = InProcessPool

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Addresses and serializers are not needed."""

    def Value(self, typecode: object, value: object, *args: object) -> object:
        """One value."""
        return SimpleNamespace(value=value, get=lambda: value)

    def start(self, *args: object, **kwargs: object) -> None:
        """Nothing to start."""

    shutdown = join = connect = start

    def __enter__(self) -> InProcessManager:
        return self

    def __exit__(self, *error: object) -> None:
        return None
