"""Starts the job as a shell would: own process group, own terminal, untouched signals.

A fork, because the terminal must be the job's before its first instruction: given to it a moment later, a fast
program would read in the background and be stopped, and a Ctrl-Z typed in that moment would stop memfit instead.
Standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence


def start_job(
    command: Sequence[str], environment: dict[str, str], terminal_fd: int | None, ignored_signals: Sequence[int]
) -> tuple[int, int]:
    """Start a command; returns (its pid, 0), or (its pid, the error number) when it could not be executed.

    `ignored_signals` are those memfit was started with (by nohup, or in the background of a script): the job inherits
    them.
    """
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(command, environment, terminal_fd, frozenset(ignored_signals), error_write)
    os.close(error_write)
    failure = os.read(error_read, 16)
    os.close(error_read)
    if failure:
        os.waitpid(pid, 0)
    return pid, int(failure or b"0")


def _become(
    command: Sequence[str],
    environment: dict[str, str],
    terminal_fd: int | None,
    ignored: frozenset[int],
    error_write: int,
) -> None:
    """In the child: become the command, or say why not. Never returns."""
    try:
        os.setpgid(0, 0)
        if terminal_fd is not None:
            os.tcsetpgrp(terminal_fd, os.getpid())
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is not None:
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        os.execvpe(command[0], tuple(command), environment)
    except OSError as error:
        os.write(error_write, str(error.errno or 1).encode())
    finally:
        os._exit(127)
