"""What a prediction is doing right now: the child leaves it in a file, the parent says it when time is over."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

FILE = "progress.txt"
EVERY_SECONDS = 1.0
WIDTH = 200
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


def last_report(folder: Path) -> str:
    """What the child was doing when it was last heard of."""
    try:
        return (folder / FILE).read_text(errors="replace").strip()
    except OSError:
        return ""
