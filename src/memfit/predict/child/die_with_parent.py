"""Asks the kernel to end a child when its parent is killed (PR_SET_PDEATHSIG).

Standard library only. Ask in the child right after the fork (`subprocess`'s `preexec_fn`): the wish survives an exec,
and waiting until the child has loaded torch would leave seconds in which it is not heard. The kernel watches the thread
that started the child, not its process: callers wait for their child in the thread that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from functools import partial

PR_SET_PDEATHSIG = 1

try:  # looked up before any fork: the child of a process with threads may do little
    _prctl = ctypes.CDLL(None, use_errno=True).prctl
except (OSError, AttributeError):
    _prctl = None


def ending_with_this_process() -> Callable[[], None]:
    """What a child calls right after the fork to be killed when this process ends; asked for before the fork.

    Nothing happens where the system has no such thing.
    """
    return partial(_die_with, os.getpid())


def _die_with(parent_pid: int) -> None:
    if _prctl is None:
        return
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # killed between the fork and the call above: its signal has passed
        os.kill(os.getpid(), signal.SIGKILL)
