"""The slow truth about a process tree: its proportional set size, read again and again while the job runs.

    python pss_reader.py PID OUTPUT

Reading costs milliseconds per process and holds the job up, and the tool that is being judged as well; so the reader
rests four times as long as it read, and at least 5 ms. A reading counts only if the same processes were alive before
and after it. The processes are not read at one instant, so a page that changes hands in between is counted twice or
not at all: the largest median of three readings in a row is taken for the peak.

Proportional size spreads a library's pages over every process of the machine that maps them, strangers too, so it falls
when another training starts. Of file pages the tree therefore holds at least what its largest holder maps.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

LEAST_REST_SECONDS, REST_RATIO = 0.005, 4.0


def members(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += members(int(child))
    return found


class Sizes(NamedTuple):
    """One process, in bytes."""

    resident: int
    proportional: int
    file_proportional: int
    file_resident: int


def read_sizes(pid: int) -> Sizes:
    """Resident and proportional size, and the part of each that is file pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    lines += Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return Sizes(*(int(fields[name].split()[0]) * 1024 for name in ("Rss", "Pss", "Pss_File", "RssFile")))


def tree_bytes(sizes: list[Sizes]) -> int:
    """What the tree holds: every page once."""
    files = max(sum(size.file_proportional for size in sizes), max(size.file_resident for size in sizes))
    return sum(size.proportional - size.file_proportional for size in sizes) + files


class Readings:
    """The sums of the tree, reading by reading."""

    def __init__(self) -> None:
        self.resident_bytes: list[int] = []
        self.proportional_bytes: list[int] = []

    def read(self, pid: int) -> None:
        """Read the whole tree once."""
        before = members(pid)
        sizes = [read_sizes(member) for member in before]
        if members(pid) == before:
            self.resident_bytes.append(sum(size.resident for size in sizes))
            self.proportional_bytes.append(tree_bytes(sizes))

    def facts(self) -> dict[str, int]:
        """The peaks."""
        return {
            "resident_bytes": largest_median(self.resident_bytes),
            "proportional_bytes": largest_median(self.proportional_bytes),
            "num_readings": len(self.resident_bytes),
        }


def largest_median(values: list[int]) -> int:
    """The largest median of three values in a row."""
    return max(sorted(values[i : i + 3])[1] for i in range(len(values) - 2))


def main() -> None:
    """Read until the process is gone; write the peaks."""
    pid, output, readings = int(sys.argv[1]), Path(sys.argv[2]), Readings()
    while True:
        began_seconds = time.monotonic()
        try:
            readings.read(pid)
        except (OSError, KeyError, IndexError):  # somebody left in the middle of the reading
            if not is_alive(pid):
                break
        time.sleep(max(LEAST_REST_SECONDS, REST_RATIO * (time.monotonic() - began_seconds)))
    output.write_text(json.dumps(readings.facts()))


def is_alive(pid: int) -> bool:
    """Whether the process still has memory."""
    try:
        return bool(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return False


if __name__ == "__main__":
    main()
