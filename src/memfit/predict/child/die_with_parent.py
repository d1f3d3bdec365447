"""Asks the kernel to end a child when its parent is killed (PR_SET_PDEATHSIG).

Standard library only. Ask in the child right after the fork (`subprocess`'s `preexec_fn`): the wish survives an exec,
and waiting until the child has loaded torch would leave seconds in which it is not heard. The kernel watches the thread
that started the child, not its process: callers wait for their child in the thread that started it.
"""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1

try:  # looked up before any fork: the child of a process with threads may do little
    _prctl = ctypes.CDLL(None, use_errno=True).prctl
except (OSError, AttributeError):
    _prctl = None


def die_with_the_parent() -> None:
    """Have this process killed when its parent ends; nothing happens where the system has no such thing."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
