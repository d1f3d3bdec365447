"""Follows the marks files while they grow: the step and phase of the job; standard library only."""

from __future__ import annotations

import os

from memfit.records.files import layout

_PHASES = {b"F": "forward", b"B": "backward", b"U": "update", b"S": "data", b"V": "evaluation"}
LOOK_US = 200_000
_HOLE = bytes(4096)
"""Zeros that were never written: the file was made larger by something else, and is followed no further."""


class _Follower:
    """One growing marks file."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.rest = b""
        self.has_hole = False
        self.num_steps = 0
        self.phase = ""
        self.peak_bytes = 0

    def catch_up(self) -> None:
        """Read what was added since the last time."""
        while not self.has_hole and (chunk := os.read(self.descriptor, 1 << 20)):
            text, hole, _ = chunk.partition(_HOLE)
            self.has_hole = bool(hole)
            lines = (self.rest + text).split(b"\n")
            self.rest = lines.pop()
            for line in lines:
                self._line(line)

    def _line(self, line: bytes) -> None:
        letter, _, rest = line.partition(b" ")
        if letter not in _PHASES and letter not in (b"P", b"G"):
            return
        fields = rest.split(b" ", 2)
        if len(fields) > 1 and fields[1].isdigit():
            self.peak_bytes = max(self.peak_bytes, int(fields[1]))
        if letter == b"G":
            counts = fields[2].split()[::2] if len(fields) > 2 else []
            self.num_steps += sum(int(count) for count in counts if count.isdigit())
            self.phase = "data"
            return
        self.num_steps += letter == b"S"
        self.phase = _PHASES.get(letter) or (fields[2].decode("utf-8", "replace") if len(fields) > 2 else "")


class MarksWatcher:
    """The steps of the whole job: those of the process that has made most."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._followers: dict[str, _Follower] = {}
        self._next_look_us = 0
        self._last: tuple[int, int] = (0, 0)
        self.steps_per_second: float | None = None

    @property
    def peak_bytes(self) -> int:
        """The largest exact peak any process has marked."""
        return max((f.peak_bytes for f in self._followers.values()), default=0)

    def where(self, now_us: int) -> tuple[int | None, str]:
        """(step being worked on, phase); (None, '') when no process marks steps."""
        if now_us >= self._next_look_us:
            self._next_look_us = now_us + LOOK_US
            self._find()
        for follower in self._followers.values():
            follower.catch_up()
        busiest = max(self._followers.values(), key=lambda f: f.num_steps, default=None)
        if busiest is None:
            return None, ""
        self._rate(now_us, busiest.num_steps)
        return busiest.num_steps + 1, busiest.phase

    def _find(self) -> None:
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(layout.MARKS_PREFIX) and name not in self._followers and os.path.isfile(path):
                self._followers[name] = _Follower(path)

    def _rate(self, now_us: int, num_steps: int) -> None:
        then_us, then_steps = self._last
        if now_us - then_us >= 1_000_000:
            self.steps_per_second = (num_steps - then_steps) / ((now_us - then_us) / 1e6) if then_us else None
            self._last = (now_us, num_steps)
