"""What every part of the benchmark is told."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.overhead.quiet import Quiet


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The size of the benchmark, its seed, and its patience with a busy machine."""

    quick: bool
    seed: int
    quiet: Quiet
    minutes: float = 0.0
    """For how long a part that takes turns may go on until its intervals are narrow; one pass is always run."""

    def seconds(self, *, quick: float, full: float) -> float:
        """How long a part may take."""
        return quick if self.quick else full

    def count(self, *, quick: int, full: int) -> int:
        """How often something is repeated."""
        return quick if self.quick else full
