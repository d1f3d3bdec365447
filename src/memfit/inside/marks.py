"""How does a running program leave marks that survive its sudden death, for a few microseconds each?

One file per process, `marks-PID.txt`, made at the first mark (a Python that never trains leaves none). Marks are whole
lines on an append-only descriptor, so a kill can tear only the last. Any error of the disk switches marking off for
good, in silence: the job goes first. The lines are described where they are read, in `records/marks_file.py`.

A mark takes 5 us in a loop and 20 us between two kernels that have emptied the caches. So a step is *full* (a line and
a peak of its own for every phase) only as often as that fits into a small share of the time, which is always when steps
are long, and *light* otherwise: the phases leave their times, the step its exact peak, in one line. Lines of light
steps wait for at most 20 ms, but a new maximum is written at once.
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

PHASE_SHARE = 0.0015
"""What the marks of phases may take of the time, besides the one mark of each step."""
ALWAYS_FULL_STEPS = 3
NEAR_THE_LIMIT = 0.8
"""Above this share of the guard's limit every step is full, so that the guard can name the phase."""
WAIT_NS = 20_000_000
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
        self.limit_bytes = 0
        """The limit of memfit's guard; 0 without one."""
        self._descriptor = -1
        self._lock = threading.Lock()
        self._waiting = b""
        self._written_ns = 0
        self._highest_bytes = 0
        self._is_light = False
        self._light_times = {}
        self._mark_ns = 10_000
        self._budget_ns = 0
        self._step_began_ns = 0

    def start(self, folder):
        """Marks go to this folder from now on; nothing is written before the first."""
        self.__init__()
        self.folder = folder
        limit = os.environ.get("MEMFIT_LIMIT_BYTES", "")
        self.limit_bytes = int(limit) if limit.isdigit() else 0

    def phase_begins(self, letter, extra=b""):
        """A phase of the step begins: a mark in a full step, only a time in a light one."""
        if not self._is_light:
            self.mark(letter, extra)
            return
        self._light_times.setdefault(letter, monotonic_ns())
        self.phase = _PHASE_OF_LETTER[letter]

    def step_ended(self, number):
        """The step is complete: its exact peak, and what the next one will be."""
        if self._is_light:
            times = self._light_times
            number += b" %d %d %d" % (times.get(b"F", 0), times.get(b"B", 0), times.get(b"U", 0))
            self._light_times = {}
        self.mark(b"S", number, may_wait=self._is_light)

    def _choose_next(self, now_ns):
        """Full or light: spend the share of the time on phases, as soon as it is saved up."""
        cost_ns = 3 * self._mark_ns
        earned_ns = (now_ns - self._step_began_ns) * PHASE_SHARE if self._step_began_ns else cost_ns
        self._step_began_ns = now_ns
        self._budget_ns = min(self._budget_ns + earned_ns, 2 * cost_ns)
        is_near = self.limit_bytes and self.step_peak_bytes > NEAR_THE_LIMIT * self.limit_bytes
        self._is_light = self._budget_ns < cost_ns and self.step >= ALWAYS_FULL_STEPS and not is_near
        if not self._is_light:
            self._budget_ns -= cost_ns

    def mark(self, letter, extra=b"", may_wait=False):
        """Write one mark and begin a new stretch of the high-water mark."""
        if self._descriptor < 0 and not self._open():
            return
        now_ns = monotonic_ns()
        try:
            peak_bytes = self.high_water.read_and_reset()
            self._append(b"%s %d %d%s\n" % (letter, now_ns, peak_bytes, extra), now_ns, peak_bytes, may_wait)
        except (OSError, ValueError, IndexError):
            self._switch_off()
            return
        if peak_bytes > self.step_peak_bytes:
            self.step_peak_bytes = peak_bytes
        if letter in b"VP":  # what follows must be told apart from it: this step is marked in full
            self._is_light, self._light_times = False, {}
        self.phase = _PHASE_OF_LETTER.get(letter) or extra.decode("utf-8", "replace").strip()
        self._mark_ns += (monotonic_ns() - now_ns - self._mark_ns) // 8

    def _append(self, line, now_ns, peak_bytes, may_wait):
        """Write the line, or let it wait a little; a new maximum never waits."""
        self._waiting += line
        if may_wait and peak_bytes <= self._highest_bytes and now_ns - self._written_ns < WAIT_NS:
            return
        lines, self._waiting = self._waiting, b""
        self._highest_bytes = max(self._highest_bytes, peak_bytes)
        self._written_ns = now_ns
        self._write(lines)

    def next_step(self):
        """Count the step that just ended; its peak is forgotten here, not in the file."""
        self._choose_next(monotonic_ns())
        self.step += 1
        self.step_peak_bytes = 0

    def note(self, message):
        """Leave a sentence for the reader of the record."""
        self._line(b"N", {"message": message})

    def exception(self, error_type, error, out_of_memory):
        """Say which exception ends the program."""
        facts = {"type": error_type.__name__, "message": str(error)[:500], "out_of_memory": out_of_memory}
        facts["phase"] = self.phase
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
            self._write(self._waiting + b"P %d %d exit\n" % (monotonic_ns(), self.high_water.read_status()))
        self.forget()

    def forget(self):
        """Close what is open and count from the beginning; also what a forked child does first with what it
        inherited."""
        close(self._descriptor)
        self.high_water.close()
        folder, limit_bytes = self.folder, self.limit_bytes
        self.__init__()
        self.folder, self.limit_bytes = folder, limit_bytes

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
            lines, self._waiting = self._waiting, b""
            self._write(lines + letter + b" " + json.dumps(facts).encode() + b"\n")
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
