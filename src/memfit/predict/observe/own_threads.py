"""Threads that a script starts itself: what follows its tensors is on in them too. Standard library only.

Modes of torch are on in one thread alone: without this, what a thread computes would not be recorded. The end of
the run, when it comes in a thread, is the end of the main thread as well, which may be waiting.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from unittest.mock import patch

from memfit.predict.child.run_script import EnoughSteps

END_SIGNAL = signal.SIGRTMAX - 3
LEFT_ALONE = "memfit_left_alone"
"""Set on threads that stand for another process."""


OVERLAP = (
    "several threads of the script work at the same time: their tensors lie beside each other as they happened to "
    "here, and in another run they may lie otherwise"
)


class Turns:
    """Sees whether threads take turns."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._last = 0
        self.are_taken = False
        """Whether one thread worked between two calls of another."""

    def note(self) -> None:
        """The running thread works now."""
        thread = threading.get_ident()
        if thread != self._last:
            self.are_taken |= thread in self._seen
            self._seen.add(thread)
            self._last = thread


@contextlib.contextmanager
def followed(entering: Callable[[], contextlib.AbstractContextManager[object]]) -> Iterator[None]:
    """Within, every thread that is started runs inside of `entering()`."""
    start, is_over = threading.Thread.start, threading.Event()

    def begin(thread: threading.Thread) -> None:
        if not getattr(thread, LEFT_ALONE, False):
            run = thread.run
            thread.run = lambda: _run(run, entering, is_over)
        start(thread)

    with patch.object(threading.Thread, "start", begin), _ended_by_signal():
        try:
            yield
        finally:
            is_over.set()


def _run(
    run: Callable[[], None], entering: Callable[[], contextlib.AbstractContextManager[object]], is_over: threading.Event
) -> None:
    try:
        with entering():
            run()
    except EnoughSteps:
        if not is_over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, END_SIGNAL)


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Within, the main thread ends when a thread says so, also where it waits; nothing outside of a main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise EnoughSteps

    before = signal.signal(END_SIGNAL, end)
    try:
        yield
    finally:
        signal.signal(END_SIGNAL, before)


def start_alone(run: Callable[[], object], name: str) -> None:
    """Start a thread that stands for another process: nothing of it is followed."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    setattr(thread, LEFT_ALONE, True)
    thread.start()
