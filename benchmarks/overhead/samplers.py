"""How is a tool that watches from a process of its own switched on and off around a block?

It is started once, beside the training process and not below it (or its own memory would be part of the job), and
then paused and continued by signals: what is compared is the steady state of being watched. What starting costs is
reported apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.overhead.quiet import cpu_seconds
from memfit.measure.session import Attachment
from memfit.records.run import settings_for

HERE = Path(__file__).parent


class NoSampler:
    """For tools that live inside of the training process alone, and for the control."""

    pid: int | None = None
    start_up_seconds: float | None = 0.0
    """CPU time until it had settled; None when it never did."""

    def __init__(self, target_pid: int, folder: str) -> None:
        self.folder = folder

    def go(self) -> None:
        """Watch from now on."""

    def pause(self) -> None:
        """Stop watching, ready to go on."""

    def close(self) -> None:
        """End for good."""


class Watcher(NoSampler):
    """A sampler in a process of its own."""

    def __init__(self, target_pid: int, folder: str) -> None:
        super().__init__(target_pid, folder)
        self._start(target_pid)

    def _start(self, target_pid: int) -> None:
        self._process = subprocess.Popen(
            self.command(target_pid), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder
        )
        self.pid = self._process.pid

    def command(self, target_pid: int) -> list[str]:
        """How the tool is told to watch a running process."""
        raise NotImplementedError

    def go(self) -> None:
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)  # raises when the tool has died: a silent tool would look free of charge

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Psutil(Watcher):
    """psutil in a process of its own, every 10 ms."""

    def command(self, target_pid: int) -> list[str]:
        return [sys.executable, str(HERE / "psutil_sampler.py"), str(target_pid), "0.01", "psutil.txt"]


class Mprof(Watcher):
    """memory_profiler's mprof attached to the job, every 100 ms (its default)."""

    def command(self, target_pid: int) -> list[str]:
        return [sys.executable, "-m", "mprof", "run", "--attach", "-T", "0.1", "-o", "mprof.dat", str(target_pid)]


class Psrecord(Watcher):
    """psrecord attached to the job, without a pause between readings (its default)."""

    def command(self, target_pid: int) -> list[str]:
        return [sys.executable, "-m", "psrecord", str(target_pid), "--log", "psrecord.txt"]


class Memfit(Watcher):
    """memfit's own sampler attached to the job, at its default: 10 ms, or 100 ms beside short marked steps."""

    def _start(self, target_pid: int) -> None:
        settings = settings_for(None, attached=True)
        self._attachment = Attachment(target_pid, Path(self.folder) / "run", settings, overwrite=True)
        self._attachment.messages(10.0)
        self.folder = str(Path(self.folder) / "run")
        self.pid = self._attachment._sampler.pid

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._attachment.close()


Sampler = Callable[[int, str], NoSampler]


def settled(sampler: NoSampler, look_seconds: float = 0.3, most_seconds: float = 6.0) -> float | None:
    """Wait until a freshly started sampler has done its start-up work.

    Returns the CPU seconds that took; None when it is as busy after a while as in the beginning: no end can be seen.
    """
    if sampler.pid is None:
        return 0.0
    deadline, spent = time.monotonic() + most_seconds, cpu_seconds(sampler.pid)
    while time.monotonic() < deadline:
        time.sleep(look_seconds)
        now = cpu_seconds(sampler.pid)
        if now > 0 and now - spent < 0.1 * look_seconds:
            return now
        spent = now
    return None


@contextlib.contextmanager
def paused_samplers(kinds: dict[str, Sampler], target_pid: int) -> Iterator[dict[str, NoSampler]]:
    """Every sampler, started, settled and paused; all are ended at the end, whatever happens."""
    samplers: dict[str, NoSampler] = {}
    with tempfile.TemporaryDirectory(prefix="memfit-bench-") as folder:
        try:
            for name, kind in kinds.items():
                own = Path(folder) / name.replace(" ", "-")
                own.mkdir()
                samplers[name] = kind(target_pid, str(own))
                samplers[name].start_up_seconds = settled(samplers[name])
                samplers[name].pause()
            yield samplers
        finally:
            for sampler in samplers.values():
                with contextlib.suppress(ProcessLookupError):
                    sampler.close()
