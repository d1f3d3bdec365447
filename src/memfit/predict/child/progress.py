"""Progress of a prediction: the child writes it to a file, the parent shows it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

FILE = "progress.txt"
EVERY_SECONDS = 1.0
FIRST_AFTER_SECONDS = 2.0
"""A prediction that is there sooner says nothing on the way."""
WIDTH = 200
STARTING = "loading torch and the job"
DEFAULT_SECONDS = 900.0
"""How long a prediction may take when nothing else is asked for."""


@contextlib.contextmanager
def reporting(folder: str, describe: Callable[[], str]) -> Iterator[None]:
    """Within, a thread writes down every second what is going on; without a folder nothing is written."""
    if not folder:
        yield
        return
    descriptor = os.open(Path(folder) / FILE, os.O_WRONLY | os.O_CREAT)
    over = threading.Event()

    def report() -> None:
        while not over.wait(EVERY_SECONDS):
            with contextlib.suppress(Exception):  # the program changes while it is looked at
                os.pwrite(descriptor, describe()[:WIDTH].ljust(WIDTH).encode()[:WIDTH], 0)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.close(descriptor)


class Teller:
    """Tells somebody who waits how long it has taken and where the job is; `tell` is None without a listener."""

    def __init__(self, folder: Path, tell: Callable[[str], None] | None) -> None:
        self._folder, self._tell, self._started = folder, tell, time.monotonic()

    def wait(self, process: subprocess.Popen[bytes], most_seconds: float | None) -> int:
        """The exit code of the process; TimeoutExpired as `process.wait` raises it."""
        if self._tell is None:
            return process.wait(most_seconds)
        pause = FIRST_AFTER_SECONDS
        while True:
            left = None if most_seconds is None else most_seconds - self._took_seconds
            try:
                return process.wait(pause if left is None else max(0.0, min(pause, left)))
            except subprocess.TimeoutExpired:
                if left is not None and left <= pause:
                    raise
            self._tell(f"{self._took_seconds:.0f} s: {last_report(self._folder) or STARTING}")
            pause = EVERY_SECONDS

    @property
    def _took_seconds(self) -> float:
        return time.monotonic() - self._started


def last_report(folder: Path) -> str:
    """What the child was doing when it was last heard of."""
    try:
        return (folder / FILE).read_text(errors="replace").strip()
    except OSError:
        return ""
