"""The script everybody writes: read the resident size of a process with psutil at a steady interval, keep the largest.

python psutil_sampler.py PID INTERVAL_SECONDS OUTPUT
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil


def main() -> None:
    """Sample until the process ends, then write the largest size seen, in bytes."""
    process, interval_seconds, output = psutil.Process(int(sys.argv[1])), float(sys.argv[2]), Path(sys.argv[3])
    largest_bytes = 0
    try:
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            largest_bytes = max(largest_bytes, process.memory_info().rss)
            time.sleep(interval_seconds)
    except psutil.NoSuchProcess:
        pass
    output.write_text(str(largest_bytes))


if __name__ == "__main__":
    main()
