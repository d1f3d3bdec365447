"""Opens files in the user's program under high descriptor numbers, so that none of its own numbers change.

Their numbers are moved far up: low numbers stay as they would be without memfit, and a program that closes
everything it inherited and opens its own files does not get one of these numbers again, so a mark can never land in
a user's file.
"""

import contextlib
import fcntl
import os

_LOWEST = 400


def open_high(path, flags):
    """Open a file under a high number, closed on exec."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    except OSError:
        return descriptor  # the program may open only a few files; a low number is better than none
    os.close(descriptor)
    return high


def close(descriptor):
    """Close a descriptor that may be absent (-1) or already closed by the program."""
    if descriptor >= 0:
        with contextlib.suppress(OSError):
            os.close(descriptor)
