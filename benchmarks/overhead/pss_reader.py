"""The slow truth about a process tree: its proportional set size, read again and again while the job runs.

    python pss_reader.py PID OUTPUT

Reading costs milliseconds per process and holds the job up, and the tool that is being judged as well; so the reader
rests four times as long as it read, and at least 5 ms. A reading counts only if the same processes were alive before
and after it. The processes are not read at one instant, so a page that changes hands in between is counted twice or
not at all: the largest median of three readings in a row is taken for the peak.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

LEAST_REST_SECONDS, REST_RATIO = 0.005, 4.0


def members(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += members(int(child))
    return found


def rollup_bytes(pid: int) -> tuple[int, int]:
    """Resident and proportional size."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Rss"].split()[0]) * 1024, int(fields["Pss"].split()[0]) * 1024


class Readings:
    """The sums of the tree, reading by reading."""

    def __init__(self) -> None:
        self.resident_bytes: list[int] = []
        self.proportional_bytes: list[int] = []

    def read(self, pid: int) -> None:
        """Read the whole tree once."""
        before = members(pid)
        sizes = [rollup_bytes(member) for member in before]
        if members(pid) == before:
            self.resident_bytes.append(sum(size[0] for size in sizes))
            self.proportional_bytes.append(sum(size[1] for size in sizes))

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
