"""Watchdog process that ends a trial when the worker that started it is killed; standard library only.

    python -I -S watchdog.py FOLDER

It waits on its standard input. The worker writes a word and closes it when the trial has ended; an end without a
word means that the worker is gone, and then every process that carries the trial's folder in its environment, or
descends from one that does, is killed. It is started as a bare interpreter, so that it weighs next to nothing.
"""

import os
import signal
import sys
import time

MARK = b"MEMFIT_TRIAL_FOLDER="


def carriers(folder):
    """The processes of a trial."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if MARK + folder in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return found


def main():
    """Wait, and end the trial unless it is said to have ended."""
    folder = os.fsencode(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read():
        return
    deadline = time.monotonic() + 10
    while (found := carriers(folder)) and time.monotonic() < deadline:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.05)


if __name__ == "__main__":
    main()
