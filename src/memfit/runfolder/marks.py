"""Reader of marks-PID.txt: what the job's own Python process wrote about its steps.

A text file of short lines, appended with one `write` each, so that every line but the last is whole after any kill:

    H {"format": "memfit-marks", "version": 1, "pid": 4711, "python": "3.11.7"}    first line; of a process that trains
                     together with others also "rank" and "world_size"
    F NS PEAK        a forward pass began; PEAK is the high-water mark (bytes) of the phase that ended here
    B NS PEAK        a backward pass began
    U NS PEAK OPT    optimizer number OPT began its update; again behind each backward pass of a closure that it calls
    S NS PEAK OPT    it ended: one optimizer step is complete, and the next one's data phase begins; behind a light step
                     stand the times of F, B and U (0 for none), and PEAK is that of the whole step
    G NS PEAK K OPT  a group of K short steps of optimizer OPT is complete; PEAK is that of all of them together, and
                     of what followed them where the next line has PEAK 0; more pairs K OPT with several optimizers
    V NS PEAK        an evaluation pass (forward without gradients) began
    P NS PEAK NAME   a phase named by the user began; 'data' right after the first line, where PEAK is that of the
                     program until then; 'exit' when the program ended in good order
    X {...}          an exception ended the program: {"type": ..., "message": ..., "out_of_memory": bool}
    N {...}          a note for the reader: {"message": ...}

NS is the monotonic clock in nanoseconds. PEAK is 0 when the mark could not be reset (then peaks are not exact, and an
N line says so).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from memfit.records.files.only_text import decode_lenient
from memfit.records.files.ranges import MOST_BYTES
from memfit.records.run_parts.steps import SEVERAL_OPTIMIZERS, Steps, no_steps
from memfit.regular_file import read_regular

MOST_NS = 1 << 62
"""The monotonic clock never comes this far."""

_PHASE_OF_LETTER = {"F": "forward", "B": "backward", "U": "update", "S": "data", "V": "evaluation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarksFile:
    """One marks file, read."""

    pid: int
    steps: Steps
    peak_bytes: int | None
    """The largest exact peak any line carries: max(old, new) over all resets."""
    last_step: int
    last_phase: str
    """The phase the program was in when it ended, or the file was cut off."""
    exited: bool
    """Whether the program read its high-water mark for the last time on its way out."""
    exception: dict[str, Any] | None
    notes: tuple[str, ...]
    rank: int | None
    """Among the processes that train together; None for a training of its own."""
    named_phases: tuple[tuple[float, str, int | None], ...]
    """(seconds, name, exact peak in bytes) of phases named by the user or evaluation passes."""


@dataclass(slots=True)
class _Row:
    """The step being read."""

    begin_ns: int
    times: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarksText:
    """One marks file as it lies in the run folder."""

    name: str
    content: bytes

    @property
    def writer(self) -> str:
        """The process that wrote it, by its name: its number, in another PID namespace also that."""
        return self.name.removesuffix(".txt").partition("-")[2]


def read_marks(path: Path, *, process: int, clock_start_ns: int) -> MarksFile | None:
    """Read one marks file."""
    text = MarksText(name=path.name, content=read_regular(path))
    return parse_marks(text, process=process, clock_start_ns=clock_start_ns)


def parse_marks(text: MarksText, *, process: int, clock_start_ns: int) -> MarksFile | None:
    """Understand one marks file; a torn last line is dropped, None when not even the first line is whole."""
    raw = text.content
    lines = raw[: raw.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
    if not lines or not lines[0].startswith("H "):
        return None
    head = _json(lines[0][2:])
    pid = head.get("pid")
    return _Reader(process, clock_start_ns).read(pid if isinstance(pid, int) else 0, _rank(head), lines[1:])


def _rank(head: dict[str, object]) -> int | None:
    rank, size = head.get("rank"), head.get("world_size")
    return rank if isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size < 1 << 31 and size > 1 else None


def _json(text: str) -> dict[str, object]:
    try:
        value = decode_lenient(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _within(text: str, most: int) -> int:
    """A whole number from 0 to `most`."""
    number = int(text[:30])
    if not 0 <= number <= most:
        raise ValueError(f"{number} is out of range")
    return number


class _Reader:
    """Walks the lines of one file once."""

    def __init__(self, process: int, clock_start_ns: int) -> None:
        self.process = process
        self.clock_start_ns = clock_start_ns
        self.rows: list[tuple[float, ...]] = []
        self.num_steps = 0
        self.phase = "setup"
        self.peak_bytes: int | None = None
        self.exited = False
        self.exception: dict[str, Any] | None = None
        self.notes: list[str] = []
        self.named: list[tuple[float, str, int | None]] = []
        self.row = _Row(begin_ns=0)

    def read(self, pid: int, rank: int | None, lines: list[str]) -> MarksFile:
        for line in lines:
            self._line(line)
        return MarksFile(
            pid=pid,
            rank=rank,
            steps=self._steps(),
            peak_bytes=self.peak_bytes,
            last_step=self.num_steps,
            last_phase=self.phase,
            exited=self.exited,
            exception=self.exception,
            notes=tuple(self.notes),
            named_phases=tuple(self.named),
        )

    def _line(self, line: str) -> None:
        letter, _, rest = line.partition(" ")
        if letter == "X":
            self.exception = _json(rest)
            self.phase = str(self.exception.get("phase") or self.phase)
        elif letter == "N":
            self.notes.append(str(_json(rest).get("message", rest)))
        elif letter in _PHASE_OF_LETTER or letter in ("P", "G"):
            parts = rest.split(" ", 2)
            try:
                time_ns, peak_bytes = _within(parts[0], MOST_NS), _within(parts[1], MOST_BYTES)
            except (ValueError, IndexError):
                self.notes.append(f"a line of the marks file could not be read: {line[:60]!r}")
                return
            if letter == "G":
                self._group(time_ns, peak_bytes, parts[2] if len(parts) > 2 else "")
                return
            self._mark(letter, time_ns, peak_bytes, parts[2] if len(parts) > 2 else "")

    def _mark(self, letter: str, time_ns: int, peak_bytes: int, extra: str) -> None:
        if peak_bytes:
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
        times = extra.split()[1:4] if letter == "S" else []
        if len(times) == 3:
            self._light_step(times, peak_bytes)
        elif peak_bytes and self.phase != "setup":
            self._peak_of_the_phase(peak_bytes)
        if letter == "P" and extra == "exit":
            self.exited = True
            return
        self.exited = False
        if self.row.begin_ns == 0:
            self.row.begin_ns = time_ns
        self.phase = (extra or "unnamed") if letter == "P" else _PHASE_OF_LETTER[letter]
        if letter in "PV":
            self.named.append((self._seconds(time_ns), self.phase, None))
        elif letter == "S":
            number = extra.split()[:1]
            self._end_step(time_ns, int(number[0][:9]) if number and number[0].isdecimal() else 0)
        elif letter == "U":
            self.row.times["update"] = time_ns
        else:
            self.row.times.setdefault(self.phase, time_ns)

    def _peak_of_the_phase(self, peak_bytes: int) -> None:
        """The phase that ended here had this peak; an evaluation lies between two steps and belongs to neither."""
        if self.named and self.named[-1][1] == self.phase:
            seconds, name, before_bytes = self.named[-1]
            self.named[-1] = (seconds, name, max(before_bytes or 0, peak_bytes))
        if self.phase != "evaluation":
            self.row.peaks[self.phase] = max(self.row.peaks.get(self.phase, 0), peak_bytes)

    def _light_step(self, times: list[str], peak_bytes: int) -> None:
        """The phases of a light step: when they began, and one peak for all of them."""
        for name, text in zip(("forward", "backward", "update"), times, strict=True):
            if text.isdecimal() and 0 < int(text[:20]) <= MOST_NS:
                self.row.times[name] = int(text)
        if peak_bytes:
            self.row.peaks["whole step"] = peak_bytes

    def _group(self, time_ns: int, peak_bytes: int, pairs: str) -> None:
        """Steps that were counted, with one peak for all of them."""
        numbers = [int(text) if text.isdecimal() and len(text) < 10 else -1 for text in pairs.split()]
        counts, optimizers = numbers[::2], numbers[1::2]
        if not counts or len(counts) != len(optimizers) or min(counts) < 1 or min(optimizers) < 0:
            self.notes.append(f"a group of steps in the marks file could not be read: {pairs[:60]!r}")
            return
        if peak_bytes:
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
            self.row.peaks["whole step"] = peak_bytes
        self.row.begin_ns = self.row.begin_ns or time_ns
        self.exited, self.phase = False, "data"
        self._end_step(time_ns, optimizers[0] if len(optimizers) == 1 else SEVERAL_OPTIMIZERS, sum(counts))

    def _end_step(self, time_ns: int, optimizer: int, num_steps: int = 1) -> None:
        row, nan = self.row, float("nan")
        times = [
            self._seconds(row.times[name]) if name in row.times else nan for name in ("forward", "backward", "update")
        ]
        peaks = [float(row.peaks.get(name, nan)) for name in ("data", "forward", "backward", "update")]
        peak_bytes = float(max(row.peaks.values(), default=nan))
        begin = self._seconds(row.begin_ns)
        self.num_steps += num_steps
        self.rows.append(
            (self.num_steps, num_steps, optimizer, begin, *times, self._seconds(time_ns), peak_bytes, *peaks)
        )
        self.row = _Row(begin_ns=time_ns)

    def _seconds(self, time_ns: int) -> float:
        return (time_ns - self.clock_start_ns) / 1e9

    def _steps(self) -> Steps:
        if not self.rows:
            return no_steps()
        table = np.array(self.rows, dtype=np.float64).T
        return Steps(
            process=np.full(len(self.rows), self.process, dtype=np.int64),
            step=table[0].astype(np.int64),
            group_size=table[1].astype(np.int64),
            optimizer=table[2].astype(np.int64),
            begin_seconds=table[3],
            forward_seconds=table[4],
            backward_seconds=table[5],
            update_seconds=table[6],
            end_seconds=table[7],
            peak_bytes=table[8],
            data_peak_bytes=table[9],
            forward_peak_bytes=table[10],
            backward_peak_bytes=table[11],
            update_peak_bytes=table[12],
        )
