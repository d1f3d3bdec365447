"""Job control of the terminal as a shell does it, so that interactive programs, Ctrl-C and Ctrl-Z work."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terminal:
    """The controlling terminal, of which this process had the foreground."""

    descriptor: int
    own_group: int

    @classmethod
    def of_this_process(cls) -> Terminal | None:
        """The terminal on standard input, output or error, if this process is in its foreground."""
        for descriptor in (0, 2, 1):
            with contextlib.suppress(OSError):
                if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp():
                    return cls(descriptor, os.getpgrp())
        return None

    def give_to(self, group: int) -> None:
        """Put another process group in the foreground, if we are in it (after `bg` we are not)."""
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self.descriptor) == self.own_group:
                os.tcsetpgrp(self.descriptor, group)

    def take_back(self) -> None:
        """Return to the foreground; the caller ignores SIGTTOU meanwhile."""
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self.descriptor, self.own_group)
