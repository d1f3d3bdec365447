"""Marks of steps and phases that a running program writes, at microseconds each, and that survive its kill.

One file per process, `marks-PID.txt`, made at the first mark (a Python that never trains leaves none). Marks are whole
lines on an append-only descriptor, so a kill can tear only the last. Any error of the disk switches marking off for
good, in silence: the job goes first. The lines are described where they are read, in `runfolder/marks.py`.

A mark takes 5 us in a loop and 40 us between two kernels that have emptied the caches, and it is unknown what it takes
on the next machine. So every mark is timed, and what it cost must be saved up, at a thousandth of the time, before
the next of its kind. A step is *full* (a line and a peak of its own for every phase) when that is affordable, which is
always when steps are long, and *light* otherwise: one reading at its end, and nothing about its phases. Where even
that reading is too dear for each step, light steps form a *group*: they are counted, and the one reading at the end of
the last is the exact peak of all of them. Readings wait for at most 50 ms before they are written, but a new maximum is
written at once.
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

PHASE_SHARE = READING_SHARE = 0.001
"""What the marks of full steps, and the readings at the ends of light ones, may take of the time."""
UNSEEN = 2
"""What a job loses by a mark, over what the clock sees inside of it: calls, and caches that have to be filled again."""
LONG_STEP_NS = 100_000_000
"""Steps as long as this are always full, whatever a mark seems to cost on a busy machine."""
LONGEST_PAUSE_NS = 1_000_000_000
"""A full step comes at least this often,"""
LONGEST_GROUP_NS = 250_000_000
"""and a group ends with the first step that ends after this time, whatever the clock says."""
ALWAYS_FULL_STEPS = 3
NEAR_THE_LIMIT = 0.8
"""Above this share of the guard's limit every step is full, so that the guard can name the phase."""
WAIT_NS = 50_000_000
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
        self.is_light = False
        """Whether the running step is only measured as a whole."""
        self.is_grouping = False
        """Whether the running step is so short that it will be one of a group."""
        self._can_group = True
        self._counted = {}
        """The steps of the running group that have ended, by the number of their optimizer."""
        self._ended_ns = self._read_ns = 0
        """When the last step ended, and when one ended with a reading."""
        self.quick = [0, 0, 0]
        """Steps that a counter outside has seen and that are not counted here yet, when the last of them ended, and
        until when it may go on: when what the last reading cost is saved up."""
        self._quick_number = b""
        self._waiting = []
        """(nanoseconds, peak in bytes, steps by the number of their optimizer) of groups that are not written yet."""
        self._written_ns = 0
        self._highest_bytes = 0
        self._spent_ns = 0
        """What the marks of the running full step have taken, and what the last mark took."""
        self._mark_ns = 10_000
        self._full_again_ns = 0
        """When what the last full step cost is saved up."""

    @property
    def highest_bytes(self):
        """The highest peak of any stretch so far."""
        return self._highest_bytes

    def start(self, folder):
        """Marks go to this folder from now on; nothing is written before the first."""
        self.quick[2] = 0  # whoever still counts in it asks us at the next step
        self.__init__()
        self.folder = folder
        limit = os.environ.get("MEMFIT_LIMIT_BYTES", "")
        self.limit_bytes = int(limit) if limit.isdigit() else 0
        self._can_group = not self.limit_bytes  # a guard names the step

    def end_groups(self):
        """From now on every step has a peak of its own."""
        self._can_group = self.is_grouping = False
        self.quick[2] = 0

    def phase_begins(self, letter, extra=b""):
        """A phase of the step begins; a light step does not tell them apart."""
        if not self.is_light:
            self.mark(letter, extra)

    def complete_step(self, number):
        """The step is complete, and the next one begins."""
        if self.is_light:
            self.light_step_ended(number)
        else:
            self.step_ended(number)
            self.next_step()

    def step_ended(self, number):
        """A full step is complete: its exact peak."""
        self.mark(b"S", number)

    def next_step(self):
        """Count the full step that just ended; its peak is forgotten here, not in the file."""
        now_ns = monotonic_ns()
        self._full_again_ns = now_ns + min(int(UNSEEN * self._spent_ns / PHASE_SHARE), LONGEST_PAUSE_NS)
        self._spent_ns = 0
        length_ns = self._save_up(now_ns, self._mark_ns, 1)
        self._choose_next(now_ns, self.step_peak_bytes, length_ns)
        self.step += 1
        self.step_peak_bytes = 0

    def light_step_ended(self, number):
        """Both for a light step, in as few calls as can be: here the caches are cold, and each of them counts."""
        now_ns = self._ended_ns = monotonic_ns()
        counted = self._counted
        counted[number] = counted.get(number, 0) + 1
        self.step += 1
        if now_ns < self.quick[2]:
            return
        self._take_quick()
        try:
            peak_bytes = self.high_water.read_and_reset()
            self._end_group(peak_bytes)
            if peak_bytes > self._highest_bytes or now_ns - self._written_ns > WAIT_NS:
                self._write_now(b"", now_ns, peak_bytes)
        except (OSError, ValueError, IndexError):
            self._switch_off()
            return
        length_ns = self._save_up(now_ns, monotonic_ns() - now_ns, sum(counted.values()))
        self._choose_next(now_ns, peak_bytes, length_ns)

    def count_quickly(self, number):
        """From now on steps may also be counted in `quick`, all of the optimizer with this number."""
        self._take_quick()
        self._quick_number = number

    def _take_quick(self):
        """Count what a counter outside has seen."""
        num_steps, ended_ns, _ = self.quick
        if num_steps:
            self.quick[0] = 0
            self._counted[self._quick_number] = self._counted.get(self._quick_number, 0) + num_steps
            self._ended_ns = max(ended_ns, self._ended_ns)
            self.step += num_steps

    def _end_group(self, peak_bytes):
        """The steps that were counted have this peak together; True when there were any."""
        self._take_quick()
        if not self._counted:
            return False
        self._waiting.append((self._ended_ns, peak_bytes, self._counted))
        self._counted = {}
        return True

    def _save_up(self, now_ns, cost_ns, num_steps):
        """What a reading cost must be saved up before the next one; returns how long a step was."""
        length_ns = (now_ns - self._read_ns) // num_steps
        self._read_ns = self._ended_ns = now_ns
        if self._can_group:
            pause_ns = min(int(UNSEEN * cost_ns / READING_SHARE), LONGEST_GROUP_NS)
            self.quick[2] = now_ns + pause_ns
            self.is_grouping = 2 * length_ns < pause_ns
        return length_ns

    def _choose_next(self, now_ns, peak_bytes, length_ns):
        """Full or light: what a full step costs must be saved up before the next one."""
        is_near = self.limit_bytes and peak_bytes > NEAR_THE_LIMIT * self.limit_bytes
        is_saved_up = now_ns >= self._full_again_ns or length_ns >= LONG_STEP_NS
        self.is_light = self.step >= ALWAYS_FULL_STEPS and not is_saved_up and not is_near

    def mark(self, letter, extra=b""):
        """Write one mark and begin a new stretch of the high-water mark; an open group ends here with its peak."""
        if self._descriptor < 0 and not self._open():
            return
        now_ns = monotonic_ns()
        try:
            peak_bytes = self.high_water.read_and_reset()
            own_bytes = 0 if self._end_group(peak_bytes) else peak_bytes
            self._write_now(b"%s %d %d%s\n" % (letter, now_ns, own_bytes, extra), now_ns, peak_bytes)
        except (OSError, ValueError, IndexError):
            self._switch_off()
            return
        if own_bytes > self.step_peak_bytes:
            self.step_peak_bytes = own_bytes
        if letter in b"VP":  # what follows must be distinguished from it: this step is marked in full
            self.is_light = self.is_grouping = False
            self.quick[2] = 0
        self.phase = _PHASE_OF_LETTER.get(letter) or extra.decode("utf-8", "replace").strip()
        self._mark_ns = monotonic_ns() - now_ns
        self._spent_ns += self._mark_ns

    def _write_now(self, line, now_ns, peak_bytes):
        self._write(self._take_waiting() + line)
        self._highest_bytes = max(self._highest_bytes, peak_bytes)
        self._written_ns = now_ns

    def _take_waiting(self):
        """The lines of the groups that wait; one step is a group too."""
        groups, self._waiting = self._waiting, []
        return b"".join([_group_line(*group) for group in groups])

    def note(self, message):
        """Leave a sentence for the reader of the record."""
        self._line(b"N", {"message": message})

    def exception(self, error_type, error, out_of_memory, phase=None):
        """Say which exception ends the program, and in which phase; a light step has to be marked."""
        facts = {"type": error_type.__name__, "message": str(error)[:500], "out_of_memory": out_of_memory}
        facts["phase"] = (self.is_light and phase) or self.phase
        self._take_quick()
        if self._counted:
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._end_group(self.high_water.read_and_reset())
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
            peak_bytes = self.high_water.read_status()
            self._end_group(peak_bytes)
            self._write(self._take_waiting() + b"P %d %d exit\n" % (monotonic_ns(), peak_bytes))
        self.forget()

    def forget(self):
        """Close what is open and count from the beginning; also what a forked child does first with what it
        inherited."""
        close(self._descriptor)
        self.high_water.close()
        self.quick[2] = 0
        folder, limit_bytes, can_group = self.folder, self.limit_bytes, self._can_group
        self.__init__()
        self.folder, self.limit_bytes, self._can_group = folder, limit_bytes, can_group

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
        path = os.path.join(self.folder, "marks-" + own_name() + ".txt")
        self._descriptor = open_high(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        head = {"format": "memfit-marks", "version": 1, "pid": os.getpid(), "python": platform.python_version()}
        head.update(_rank())
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
            self._write(self._take_waiting() + letter + b" " + json.dumps(facts).encode() + b"\n")
        except OSError:
            self._switch_off()

    def _write(self, line):
        if os.write(self._descriptor, line) != len(line):
            raise OSError("no space left")

    def _switch_off(self):
        self.forget()
        self.failed = True


def _group_line(ended_ns, peak_bytes, counted):
    """One light step, or a group of them."""
    if len(counted) == 1 and 1 in counted.values():
        return b"S %d %d%s 0 0 0\n" % (ended_ns, peak_bytes, *counted)
    return b"G %d %d%s\n" % (ended_ns, peak_bytes, b"".join([b" %d%s" % (k, number) for number, k in counted.items()]))


def own_name():
    """What the files of this process are called: its number, and its PID namespace where that is not memfit's, for
    there the same number may be somebody else's."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = None
    outer = os.environ.get("MEMFIT_PID_NAMESPACE")
    if namespace is None or not outer or namespace == outer:
        return str(os.getpid())
    return f"{os.getpid()}-{namespace[5:-1]}"


def _rank():
    """Which rank of how many this process is, where torch or its launcher has said so."""
    group = sys.modules.get("torch.distributed")
    try:
        if group is not None and group.is_available() and group.is_initialized():
            return {"rank": group.get_rank(), "world_size": group.get_world_size()}
        return {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    except (KeyError, ValueError, RuntimeError, AttributeError):
        return {}


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
