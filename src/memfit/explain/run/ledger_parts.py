"""Claims of one process on the kernel's three pools of memory: files, shared memory, anonymous.

    files          what each import mapped, what was read in later, tensors mapped from a file
    shared memory  tensors of workers, and the rest of it
    anonymous      interpreter + imports + growth of Python's and the C library's heap + tensors + allocator slack

The kernel says how large each pool was at one moment: when the process was largest within the traced step. The claims
on a pool are bounded by it. Memory that an import allocated and that was free at the end of it is slack, not cost;
memory that was given back later makes the growth of a heap negative, and is taken off the imports as well.

Lines that add up: what was measured about parts of a whole is fitted into the whole, and the rest is what is left.

Parts and whole are read by different means. The whole is resident memory, counted by the kernel. Some parts are virtual
(a free block of the heap whose pages were never written), some are older than the whole (an import whose memory was
given back since). So the parts may claim more than there is. Then the softest claims give way first, each line keeps
what it had claimed beside what is left of it, and what is left over in the end can never be below zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memfit.records.run_parts.ledger import HeapFacts, LedgerFacts, LedgerKind, LedgerLine, Moment, TensorShare
from memfit.records.timeline import CATEGORIES
from memfit.units import format_bytes

_SMALL_IMPORT_BYTES = 1024 * 1024
_NO_HEAP = HeapFacts()
_PLACES = {"shared": " (in shared memory)", "file": " (mapped from a file)"}
_COMING_AND_GOING = {"activation", "temporary", "gradient", "input"} & set(CATEGORIES)


class Pools(NamedTuple):
    """Resident bytes of one process at one moment, as the kernel counts them."""

    anonymous_bytes: int
    file_bytes: int
    shmem_bytes: int

    @property
    def resident_bytes(self) -> int:
        """All three."""
        return self.anonymous_bytes + self.file_bytes + self.shmem_bytes


def traced_claims(facts: LedgerFacts, moment: Moment) -> list[Claim]:
    """The claims of a process that traced a step, each pool bounded by what the kernel saw at that moment."""
    tensors = moment.tensors
    files = bounded([*_tensor_claims(tensors, "file"), *_file_claims(facts)], moment.file_bytes)
    shared = bounded(_tensor_claims(tensors, "shared"), moment.shmem_bytes)
    python_bytes, native_bytes = _heap_growth(facts, moment)
    given_back_bytes = max(0, -(python_bytes or 0)) + max(0, -(native_bytes or 0))
    anonymous = [*_import_claims(facts, given_back_bytes), *_heap_claims(python_bytes, native_bytes)]
    anonymous = bounded(
        [*anonymous, *_slack_claims(facts, moment), *_tensor_claims(tensors, "")], moment.anonymous_bytes
    )
    return [
        *_filled_up(files, shared, Pools(moment.anonymous_bytes, moment.file_bytes, moment.shmem_bytes)),
        *anonymous,
    ]


def untraced_claims(facts: LedgerFacts | None, pools: Pools, above_bytes: int) -> list[Claim]:
    """The claims of a process of whose tensors nothing is known; `facts` were written at its end, if at all.

    Its peak lay `above_bytes` above the pools. That was made after the imports if the pools already hold such data.
    """
    files = bounded(_file_claims(facts) if facts else [], pools.file_bytes)
    anonymous: list[Claim] = []
    if facts is not None:
        heap, before = facts.heap or _NO_HEAP, facts.startup_heap or _NO_HEAP
        python_bytes = _growth(heap.python_arena_bytes, before, facts.imports_heap or _NO_HEAP, "python_arena_bytes")
        anonymous = [*_import_claims(facts, max(0, -(python_bytes or 0))), *_heap_claims(python_bytes, None)]
    anonymous = bounded(anonymous, pools.anonymous_bytes)
    left_bytes = pools.anonymous_bytes - sum(claim.num_bytes for claim in anonymous)
    name = "made after the imports: arrays, objects, buffers" if facts else "arrays, objects, buffers"
    own = Claim("program data", name, left_bytes, "anonymous pages near the peak, without the other lines", SHORT_LIVED)
    short = Claim(
        "program data",
        "made and given back between two looks",
        above_bytes if left_bytes > 0 else 0,
        "kernel high-water mark, without the largest sample",
        SHORT_LIVED,
    )
    return [*_filled_up(files, [], pools), *anonymous, own, short]


def _filled_up(files: list[Claim], shared: list[Claim], pools: Pools) -> list[Claim]:
    """What is left of two pools has a name as well: pages read in later, and shared memory that is no tensor."""
    later_bytes = pools.file_bytes - sum(claim.num_bytes for claim in files)
    other_bytes = pools.shmem_bytes - sum(claim.num_bytes for claim in shared)
    later = Claim("library files", "used later, small packages", later_bytes, "kernel counter RssFile")
    other = Claim("shared memory", "without tensors", other_bytes, "kernel counter RssShmem")
    return [*files, later, *shared, other]


def _file_claims(facts: LedgerFacts) -> list[Claim]:
    imported = [cost for cost in facts.imports if cost.file_bytes >= _SMALL_IMPORT_BYTES]
    return [
        *(Claim("library files", c.package, c.file_bytes, "file pages its import added", IMPORTED) for c in imported),
        Claim("library files", "interpreter", facts.startup_file_bytes, "file pages at start-up"),
    ]


def _import_claims(facts: LedgerFacts, given_back_bytes: int) -> list[Claim]:
    """The interpreter, every package of at least 1 MiB, and the small ones together."""
    method = "anonymous memory its import added, nested imports apart"
    freed_bytes = max(0, (facts.imports_heap or _NO_HEAP).malloc_free_bytes or 0)
    packages = sorted(facts.imports, key=lambda cost: -cost.anonymous_bytes)
    large = [cost for cost in packages if cost.anonymous_bytes >= _SMALL_IMPORT_BYTES]
    small_bytes = sum(cost.anonymous_bytes for cost in packages[len(large) :])
    claims = [Claim("imports", cost.package, cost.anonymous_bytes, method, IMPORTED) for cost in large]
    claims.append(Claim("imports", f"{len(packages) - len(large)} small packages", small_bytes, method, IMPORTED))
    claims = [claim for claim in claims if claim.num_bytes > 0]
    claims = _less(claims, freed_bytes, "without what was free at its end")
    claims = _less(claims, given_back_bytes, "without what was given back since")
    return [Claim("interpreter", "Python", facts.startup_anonymous_bytes, "anonymous memory at start-up"), *claims]


def _less(claims: list[Claim], num_bytes: int, why: str) -> list[Claim]:
    """Take bytes off the largest claims; the method says so."""
    left_bytes, result = num_bytes, list(claims)
    for index in sorted(range(len(claims)), key=lambda i: -claims[i].num_bytes):
        taken_bytes = min(left_bytes, result[index].num_bytes)
        if taken_bytes > 0:
            claim = result[index]
            result[index] = claim._replace(num_bytes=claim.num_bytes - taken_bytes, method=f"{claim.method}, {why}")
            left_bytes -= taken_bytes
    return result


def _growth(now_bytes: int | None, startup: HeapFacts, imports: HeapFacts, name: str) -> int | None:
    """What a heap grew by outside of start-up and imports; None when it was not read."""
    return None if now_bytes is None else now_bytes - (getattr(startup, name) or 0) - (getattr(imports, name) or 0)


def _heap_growth(facts: LedgerFacts, moment: Moment) -> tuple[int | None, int | None]:
    """Growth of Python's heap, and of the C library's without tensors."""
    startup, imports, heap = facts.startup_heap or _NO_HEAP, facts.imports_heap or _NO_HEAP, facts.heap or _NO_HEAP
    python_bytes = _growth(heap.python_arena_bytes, startup, imports, "python_arena_bytes")
    native_bytes = _growth(moment.malloc_used_bytes, startup, imports, "malloc_used_bytes")
    if native_bytes is not None:
        native_bytes -= sum(share.num_bytes for share in moment.tensors if share.backing == "")
    return python_bytes, native_bytes


def _heap_claims(python_bytes: int | None, native_bytes: int | None) -> list[Claim]:
    return [
        Claim("python heap", "grown after imports", python_bytes or 0, "arenas of Python's allocator", GROWN),
        Claim("native heap", "libraries, after their import", native_bytes or 0, "mallinfo2 near the peak", GROWN),
    ]


def _slack_claims(facts: LedgerFacts, moment: Moment) -> list[Claim]:
    """Free memory of the C library whose pages are in memory."""
    slack_bytes = (moment.malloc_free_bytes or 0) - ((facts.startup_heap or _NO_HEAP).malloc_free_bytes or 0)
    method = "mallinfo2 near the peak"
    if moment.untouched_heap_bytes is not None:
        slack_bytes -= moment.untouched_heap_bytes
        method += ", without pages that are not in memory (mincore)"
    return [Claim("allocator slack", "kept free by malloc", slack_bytes, method, SLACK)]


def _tensor_claims(tensors: tuple[TensorShare, ...], backing: str) -> list[Claim]:
    """Tensor bytes by category, without pages that were never written."""
    sums: dict[str, list[int]] = {}
    for share in tensors:
        if share.backing == backing:
            row = sums.setdefault(share.category, [0, 0])
            row[0] += share.num_bytes
            row[1] += min(share.untouched_bytes, share.num_bytes)
    return [
        Claim(
            "tensors", category + _PLACES.get(backing, ""), size, "every storage alive at that moment",
            SHORT_LIVED if category in _COMING_AND_GOING else TENSOR,
        ).without(untouched)
        for category, (size, untouched) in sorted(sums.items(), key=lambda item: -item[1][0])
    ]  # fmt: skip


def untouched_bytes(moment: Moment) -> int | None:
    """Memory that is reserved and takes no page: in the heap, and in tensors."""
    in_tensors = sum(min(share.untouched_bytes, share.num_bytes) for share in moment.tensors if share.backing == "")
    return None if moment.untouched_heap_bytes is None else moment.untouched_heap_bytes + in_tensors


def device_tensor_claims(tensors: tuple[TensorShare, ...]) -> list[Claim]:
    """Tensors of a device, where every byte is memory."""
    sums: dict[str, int] = {}
    for share in tensors:
        name = share.category + _PLACES.get(share.backing, "")
        sums[name] = sums.get(name, 0) + share.num_bytes
    method = "every storage alive at that moment"
    return [Claim("tensors", name, size, method, FIRM) for name, size in sorted(sums.items(), key=lambda i: -i[1])]


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
