"""How does a running program leave marks that survive its sudden death, for a few microseconds each?

One file per process, `marks-PID.txt`, made at the first mark (a Python that never trains leaves none). Each mark is
one line in one `write` on an append-only descriptor, so a kill can tear only the last. Any error of the disk
switches marking off for good, in silence: the job goes first. The format
of the lines is described where they are read, in `records/marks_file.py`.
"""

import atexit
import contextlib
import json
import os
import platform
import sys
import threading
from time import monotonic_ns

from .descriptors import close, open_high
from .high_water import HighWater

_PHASE_OF_LETTER = {b"F": "forward", b"B": "backward", b"U": "update", b"S": "data", b"V": "evaluation"}


class Marks:
    """The marks of this process; after a fork the child begins its own."""

    def __init__(self):
        self.folder = ""
        """Empty while nothing is to be written."""
        self.high_water = HighWater()
        self.phase = "data"
        self.step = 1
        """The number of the step that is running, from 1."""
        self.step_peak_bytes = 0
        """The exact peak of the running step so far."""
        self.failed = False
        self._descriptor = -1
        self._lock = threading.Lock()

    def start(self, folder):
        """Marks go to this folder from now on; nothing is written before the first."""
        self.__init__()
        self.folder = folder

    def mark(self, letter, extra=b""):
        """Write one mark and begin a new stretch of the high-water mark."""
        if self._descriptor < 0 and not self._open():
            return
        try:
            peak_bytes = self.high_water.read_and_reset()
            self._write(b"%s %d %d%s\n" % (letter, monotonic_ns(), peak_bytes, extra))
        except (OSError, ValueError, IndexError):
            self._switch_off()
            return
        if peak_bytes > self.step_peak_bytes:
            self.step_peak_bytes = peak_bytes
        self.phase = _PHASE_OF_LETTER.get(letter) or extra.decode("utf-8", "replace").strip()

    def next_step(self):
        """Count the step that just ended; its peak is forgotten here, not in the file."""
        self.step += 1
        self.step_peak_bytes = 0

    def note(self, message):
        """Leave a sentence for the reader of the record."""
        self._line(b"N", {"message": message})

    def exception(self, error_type, error, out_of_memory):
        """Say which exception ends the program."""
        facts = {"type": error_type.__name__, "message": str(error)[:500], "out_of_memory": out_of_memory}
        self._line(b"X", facts)

    def mark_phase(self, name):
        """A phase of this name begins."""
        self.mark(b"P", b" " + _one_line(name))

    @contextlib.contextmanager
    def named_phase(self, name):
        """Name the phase inside; what was before it goes on after it."""
        before = self.phase
        self.mark_phase(name)
        try:
            yield
        finally:
            self.mark_phase(before)

    def end(self):
        """The last mark: the peak up to the end. It resets nothing, so that the kernel's own figure stays."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError, ValueError, IndexError):
            self._write(b"P %d %d exit\n" % (monotonic_ns(), self.high_water.read_status()))
        self.forget()

    def forget(self):
        """Close what is open and count from the beginning; also what a forked child does first with what it
        inherited."""
        close(self._descriptor)
        self.high_water.close()
        folder = self.folder
        self.__init__()
        self.folder = folder

    # ---- the file --------------------------------------------------------------------------------------------------

    def _open(self):
        with self._lock:
            if self._descriptor >= 0:
                return True
            if self.failed or not self.folder:
                return False
            try:
                self._begin_file()
            except (OSError, ValueError, IndexError):
                self._switch_off()
            return not self.failed

    def _begin_file(self):
        path = os.path.join(self.folder, f"marks-{os.getpid()}.txt")
        self._descriptor = open_high(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        head = {"format": "memfit-marks", "version": 1, "pid": os.getpid(), "python": platform.python_version()}
        self._write(b"H " + json.dumps(head).encode() + b"\n")
        peak_bytes = self.high_water.open()
        if self.high_water.failure is not None:
            facts = {"message": "no exact peaks per step: " + self.high_water.failure}
            self._write(b"N " + json.dumps(facts).encode() + b"\n")
        else:
            self._write(b"P %d %d data\n" % (monotonic_ns(), peak_bytes))
        _call_at_exit(self.end)

    def _line(self, letter, facts):
        if self._descriptor < 0 and not self._open():
            return
        try:
            self._write(letter + b" " + json.dumps(facts).encode() + b"\n")
        except OSError:
            self._switch_off()

    def _write(self, line):
        if os.write(self._descriptor, line) != len(line):
            raise OSError("no space left")

    def _switch_off(self):
        self.forget()
        self.failed = True


def _one_line(name):
    return " ".join(str(name).split()).encode("utf-8", "replace")[:200] or b"unnamed"


def _call_at_exit(function):
    """Run this when the process ends; children of multiprocessing's fork end without atexit but run its finalizers."""
    atexit.unregister(function)
    atexit.register(function)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, function, exitpriority=-1000)
