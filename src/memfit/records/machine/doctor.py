"""Report of `memfit doctor`: what can be measured here, and which instruction sets of torch work."""

from __future__ import annotations

from typing import Literal

import msgspec

from memfit.records.run import Environment

FAULTS = ("SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGTRAP", "SIGABRT")
"""What an instruction can end a process by; SIGKILL and SIGTERM come from somebody else."""


class ProductCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The products of one type, as they were tried in a child."""

    type_name: str
    """'float32', 'bfloat16' or 'float16', as torch calls it."""
    works: bool
    found: str
    """'linear, batched, convolution, attention', or where and how it ended: 'SIGILL in linear'."""
    signal: str = ""
    """The name of the signal that ended the child; empty where none did."""


class WorkingInstructions(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried, and the environment under which all of it works."""

    checks: tuple[ProductCheck, ...] = ()
    cure: dict[str, str] = {}
    """Variables under which no product ends by a signal; empty where none does, or where nothing helped."""
    reason: str = ""
    """Why nothing was tried."""

    @property
    def deadly(self) -> tuple[ProductCheck, ...]:
        """The types whose products end the process."""
        return tuple(check for check in self.checks if check.signal)

    @property
    def cure_text(self) -> str:
        """'ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16'; empty without a cure."""
        return " ".join(f"{name}={value}" for name, value in self.cure.items())

    @property
    def sentence(self) -> str:
        """What is wrong and what helps, for a person; empty where nothing is wrong."""
        if not self.deadly:
            return ""
        ends = " and ".join(f"{check.type_name} products end by {check.signal}" for check in self.deadly)
        helps = f"with {self.cure_text} they work" if self.cure else "no lower instruction set that was tried helps"
        return f"{ends} on this processor; {helps}"


# What is known of a machine's ability to measure: one row for each thing memfit would like to read.

Answer = Literal["yes", "partly", "no"]
GROUPS = ("memory", "processes", "GPU and energy", "machine", "software")


class MachineCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried."""

    name: str
    """What it gives, in the words of a user: 'exact peak of each step'."""
    group: str
    answer: Answer
    found: str
    """What was seen when it was tried."""
    hint: str = ""
    """What to try where the answer is not yes."""
    cost_seconds: float | None = None
    """What one reading took here; None where nothing was timed."""


class MachineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was tried on one machine."""

    format: str = "memfit-doctor"
    format_version: int = 1
    environment: Environment
    checks: tuple[MachineCheck, ...]

    def check(self, name: str) -> MachineCheck:
        """The row of that name."""
        return next(check for check in self.checks if check.name == name)
