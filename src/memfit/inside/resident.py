"""Resident bytes of this process right now: anonymous, from files, shared."""

import os

from .descriptors import close, open_high

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PARTS = ((b"RssAnon:", "anonymous_bytes"), (b"RssFile:", "file_bytes"), (b"RssShmem:", "shmem_bytes"))


class Resident:
    """Reads the kernel's counters of this process through one open file (1.6 us)."""

    def __init__(self):
        self._statm = open_high("/proc/self/statm", os.O_RDONLY)

    def read(self):
        """(anonymous bytes, file and shared bytes)."""
        fields = os.pread(self._statm, 128, 0).split(None, 3)
        shared = int(fields[2])
        return (int(fields[1]) - shared) * _PAGE_BYTES, shared * _PAGE_BYTES

    def reopen(self):
        """In a forked child: the inherited file speaks of the parent."""
        self.close()
        self.__init__()

    def close(self):
        """Close the file."""
        close(self._statm)


def read_parts():
    """Anonymous, file and shared bytes by name, from /proc/self/status (15 us)."""
    with open("/proc/self/status", "rb") as stream:
        text = stream.read()
    return {name: int(text.partition(word)[2].split(None, 1)[0]) * 1024 for word, name in _PARTS}
