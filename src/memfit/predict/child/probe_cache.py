"""Probes that other predictions of the same job have made already: what each distinct call took, and the bare process.

Many predictions of one job (a grid, a sweep) call the same operators with the same shapes. The first one probes them;
the reply carries what was found, and later requests bring it along, so that most of them need no probe process.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class KnownCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one call took when it was run for real, or why it was not run."""

    inside_bytes: int = 0
    output_bytes: tuple[int, ...] = ()
    touched_bytes: tuple[int, ...] = ()
    filled_bytes: int = 0
    skipped: str = ""


class BareProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has imported what the job imports, and the speed of this machine."""

    baseline_bytes: int
    not_imported: tuple[str, ...]
    flops_per_second: float | None
    bytes_per_second: float | None


class KnownProbes(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known so far; `threads` is the number that it holds for."""

    num_threads: int = 0
    calls: dict[str, KnownCall] = {}
    bare: dict[str, BareProcess] = {}
    """By the modules that were imported."""

    def of(self, num_threads: int) -> KnownProbes:
        """What is known for another number of threads: calls take other amounts with it."""
        return self if self.num_threads == num_threads else KnownProbes(num_threads=num_threads)

    def joined(self, others: KnownProbes) -> KnownProbes:
        """This and what another prediction has found."""
        if others.num_threads != self.num_threads and self.num_threads:
            return self
        return KnownProbes(
            num_threads=others.num_threads, calls={**self.calls, **others.calls}, bare={**self.bare, **others.bare}
        )


def unknown_calls(texts: Mapping[int, str], known: KnownProbes) -> dict[int, str]:
    """The calls that nothing is known of yet."""
    return {number: text for number, text in texts.items() if text not in known.calls}
