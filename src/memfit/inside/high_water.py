"""High-water mark of resident memory (VmHWM) of this process, with a reset between readings.

The kernel keeps a high-water mark per process, and writing 5 to `clear_refs` lowers it to the present size: read,
then reset, and every stretch of the program gets an exact peak of its own for about 2 us. `getrusage` reads the
same mark ten times faster than `/proc/self/status`, but it never falls below the size of the program this process
was started from; where that shows, the slow file answers.
"""

import os
from resource import RUSAGE_SELF, getrusage

from .descriptors import close, open_high

_SAME_BYTES = 64 * 1024
"""Two readings of the kernel's batched counters this near to each other are the same."""


class HighWater:
    """The kernel's high-water mark of this process; open files belong to the process that opened them."""

    def __init__(self):
        self.failure = None
        """Why the mark cannot be reset; None when it can."""
        self._clear = self._status = -1
        self._floor_bytes = 0

    def open(self):
        """Open the counters, read the mark, reset it for the first time; returns the peak of the process until now."""
        self._status = open_high("/proc/self/status", os.O_RDONLY)
        peak_bytes = self.read_status()
        try:
            self._clear = open_high("/proc/self/clear_refs", os.O_WRONLY)
            os.write(self._clear, b"5")
        except OSError as error:
            self.failure = f"/proc/self/clear_refs cannot be written ({error.strerror})"
            return peak_bytes
        quick_bytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
        if quick_bytes > self.read_status() + _SAME_BYTES:
            self._floor_bytes = quick_bytes
        return peak_bytes

    def read_and_reset(self):
        """The peak since the last call, or 0 when the mark cannot be reset."""
        if self._clear < 0:
            return 0
        peak_bytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
        if peak_bytes <= self._floor_bytes:
            peak_bytes = self.read_status()
        os.write(self._clear, b"5")
        return peak_bytes

    def read_status(self):
        """The mark as /proc/self/status has it, in bytes."""
        text = os.pread(self._status, 8192, 0)
        return int(text.partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024

    def close(self):
        """Close the counters of this process, or those inherited by a fork."""
        close(self._clear)
        close(self._status)
        self.__init__()
