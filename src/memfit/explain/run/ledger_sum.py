"""Lines that add up: what was measured about parts of a whole is fitted into the whole, and the rest is what is left.

Parts and whole are read by different means. The whole is resident memory, counted by the kernel. Some parts are virtual
(a free block of the heap whose pages were never written), some are older than the whole (an import whose memory was
given back since). So the parts may claim more than there is. Then the softest claims give way first, each line keeps
what it had claimed beside what is left of it, and what is left over in the end can never be below zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memfit.records.ledger import LedgerKind, LedgerLine
from memfit.units import format_bytes

FIRM, TENSOR, IMPORTED, GROWN, SHORT_LIVED, SLACK = range(6)
"""How soft a claim is; the softest give way first. Slack: free heap, resident or not. Short-lived: tensors that come
and go within a step. Grown: virtual size of heaps. Imported: resident once, perhaps given back. Tensor: exact, if
touched. Firm: counted by the kernel at that moment."""


class Claim(NamedTuple):
    """A part of the whole, as it was measured."""

    kind: LedgerKind
    name: str
    num_bytes: int
    method: str
    softness: int = FIRM
    measured_bytes: int | None = None
    """Its size before it was bounded."""

    def without(self, num_bytes: int) -> Claim:
        """The same claim on fewer bytes; what was measured stays."""
        if num_bytes <= 0:
            return self
        before = self.num_bytes if self.measured_bytes is None else self.measured_bytes
        return self._replace(num_bytes=self.num_bytes - num_bytes, measured_bytes=before)


def bounded(claims: Iterable[Claim], whole_bytes: int) -> list[Claim]:
    """The claims with at most `whole_bytes` together, in the same order; empty ones are left out."""
    kept = [claim for claim in claims if claim.num_bytes > 0]
    excess_bytes = sum(claim.num_bytes for claim in kept) - max(0, whole_bytes)
    for index in sorted(range(len(kept)), key=lambda i: (-kept[i].softness, -kept[i].num_bytes)):
        if excess_bytes <= 0:
            break
        taken_bytes = min(excess_bytes, kept[index].num_bytes)
        kept[index] = kept[index].without(taken_bytes)
        excess_bytes -= taken_bytes
    return [claim for claim in kept if claim.num_bytes > 0]


def lines_of(claims: Iterable[Claim], whole_bytes: int, unknown: str = "rest") -> tuple[LedgerLine, ...]:
    """Lines that add up to `whole_bytes`, all at least zero; the last one is what carries no name."""
    kept = bounded(claims, whole_bytes)
    rest_bytes = whole_bytes - sum(claim.num_bytes for claim in kept)
    rest = LedgerLine(kind="unexplained", name=unknown, num_bytes=rest_bytes, method="what the lines above leave")
    unexplained = [claim for claim in kept if claim.kind == "unexplained"]
    named = [claim for claim in kept if claim.kind != "unexplained"]
    return (*(_line(claim) for claim in (*named, *unexplained)), rest)


def _line(claim: Claim) -> LedgerLine:
    method, before_bytes = claim.method, claim.measured_bytes
    if before_bytes is not None:
        method += f"; {format_bytes(before_bytes)} were measured, of which this was resident at the peak"
    return LedgerLine(
        kind=claim.kind, name=claim.name, num_bytes=claim.num_bytes, method=method, measured_bytes=before_bytes
    )
