"""Where did the operating system's number go, line by line, and what is left without a name?

A resident size is the sum of file pages, shared pages and anonymous pages. File and shared pages are counted by the
kernel. Anonymous pages are put together from the inside:

    interpreter + imports       what was resident before the program began, and what each import added
    + python heap, native heap  what Python's and the C library's heap grew by outside of imports, without tensors
    + tensors                   exactly, by category
    + allocator slack           free memory that the C library keeps

An import that frees memory again leaves slack, not cost, so that growth of slack inside of imports is taken off the
largest import. Everything else is as it was at one moment: when the process was largest within the traced step,
which is not always when its tensors were (slack left by freed tensors counts as well). Whatever does not add up
stays in the last line, with its sign.
"""

from __future__ import annotations

from memfit.records.ledger import (
    HeapFacts,
    ImportCost,
    Ledger,
    LedgerFacts,
    LedgerKind,
    LedgerLine,
    Moment,
    TensorShare,
)
from memfit.records.run import GpuReading, MapsReading, ProcessRecord, RunRecord

_SMALL_IMPORT_BYTES = 1024 * 1024
_SAME_BYTES = 512 * 1024
"""Two readings of the kernel's batched counters this near to each other are the same."""
_NO_HEAP = HeapFacts()


def explain_peak(run: RunRecord) -> tuple[Ledger, ...]:
    """One ledger per process that traced a step, and one per device it used; empty when nothing was traced."""
    ledgers = []
    for process in run.processes:
        facts = [f for f in run.ledger_facts if f.pid == process.pid]
        for device in sorted({f.device for f in facts}, key=lambda name: (name != "cpu", name)):
            best = _telling([f for f in facts if f.device == device])
            ledgers.append(_host_ledger(run, process, best) if device == "cpu" else _device_ledger(run, process, best))
    return tuple(ledgers)


def _telling(facts: list[LedgerFacts]) -> LedgerFacts:
    """The traced step nearest the peak: the highest resident one, then the highest in tensors, then the latest."""
    return max(facts, key=lambda f: (f.resident_peak_bytes, f.tensor_peak_bytes, f.step))


# ---- the host ------------------------------------------------------------------------------------------------------


def _host_ledger(run: RunRecord, process: ProcessRecord, facts: LedgerFacts) -> Ledger:
    step_bytes = facts.resident_peak_bytes or round(process.peak.value or 0)
    own_bytes = max(round(process.peak.value or 0), step_bytes)
    workers = _worker_lines(run, process)
    tensors = facts.moment.tensors if facts.moment else facts.tensors
    lines = [*_file_lines(run, process, facts), *_import_lines(facts), *_heap_lines(facts), *_tensor_lines(tensors)]
    lines = [line for line in lines if line.num_bytes > 0]
    lines += _unexplained_lines(own_bytes, step_bytes, facts, sum(line.num_bytes for line in lines))
    rest = lines.pop()
    return Ledger(
        process=process.index,
        device="host",
        peak_bytes=own_bytes + sum(line.num_bytes for line in workers),
        step=facts.step,
        phase=facts.moment.phase if facts.moment else facts.peak_phase,
        lines=(*lines, *workers, rest),
        tensors=tensors,
    )


def _unexplained_lines(own_bytes: int, step_bytes: int, facts: LedgerFacts, named_bytes: int) -> list[LedgerLine]:
    """The part of the peak outside of the traced step, when there is one, and the rest."""
    lines = []
    if own_bytes - step_bytes <= _SAME_BYTES:
        step_bytes = own_bytes
    if own_bytes > step_bytes:
        name = f"the peak of the run lay outside of step {facts.step}, the highest that was traced"
        lines.append(_line("unexplained", name, own_bytes - step_bytes, "kernel high-water marks of both"))
    return [*lines, _line("unexplained", "rest", step_bytes - named_bytes, "what the lines above leave")]


def _line(kind: LedgerKind, name: str, num_bytes: int, method: str) -> LedgerLine:
    return LedgerLine(kind=kind, name=name, num_bytes=num_bytes, method=method)


def _file_lines(run: RunRecord, process: ProcessRecord, facts: LedgerFacts) -> list[LedgerLine]:
    """Pages of mapped files by the package that mapped them, and shared memory; tensors lying there are in neither."""
    moment = facts.moment or _moment_from_maps(run, process)
    if moment is None:
        return []
    mapped, shared = _backed_bytes(moment.tensors, "file"), _backed_bytes(moment.tensors, "shared")
    imported = {cost.package: cost.file_bytes for cost in facts.imports if cost.file_bytes >= _SMALL_IMPORT_BYTES}
    lines = [_line("library files", name, size, "file pages its import added") for name, size in imported.items()]
    others = moment.file_bytes - mapped - facts.startup_file_bytes - sum(imported.values())
    lines.append(_line("library files", "interpreter", facts.startup_file_bytes, "file pages at start-up"))
    lines.append(_line("library files", "used later, small packages", others, "kernel counter RssFile"))
    lines.append(_line("shared memory", "without tensors", moment.shmem_bytes - shared, "kernel counter RssShmem"))
    return lines


def _moment_from_maps(run: RunRecord, process: ProcessRecord) -> Moment | None:
    """The sampler's reading of the process's map, for facts without a look from inside."""
    own: list[MapsReading] = [reading for reading in run.maps if reading.process == process.index]
    if not own:
        return None
    last = own[-1]
    anonymous_bytes = last.heap_bytes + last.anonymous_bytes + last.stack_bytes + last.library_data_bytes
    return Moment(
        phase="",
        tensors=(),
        anonymous_bytes=anonymous_bytes,
        file_bytes=last.library_file_bytes,
        shmem_bytes=last.shmem_bytes,
    )


def _import_lines(facts: LedgerFacts) -> list[LedgerLine]:
    """The interpreter, every package of at least 1 MiB, and the small ones together."""
    method = "anonymous memory its import added, nested imports apart"
    freed_bytes = max(0, (facts.imports_heap or _NO_HEAP).malloc_free_bytes or 0)
    packages = sorted(facts.imports, key=lambda cost: -cost.anonymous_bytes)
    large = [cost for cost in packages if cost.anonymous_bytes >= _SMALL_IMPORT_BYTES]
    small_bytes = sum(cost.anonymous_bytes for cost in packages[len(large) :])
    lines = [_line("interpreter", "Python", facts.startup_anonymous_bytes, "anonymous memory at start-up")]
    for rank, cost in enumerate(large):
        lines.append(_line("imports", cost.package, _net_bytes(cost, freed_bytes if rank == 0 else 0), method))
    lines.append(_line("imports", f"{len(packages) - len(large)} small packages", small_bytes, method))
    return lines


def _net_bytes(cost: ImportCost, freed_bytes: int) -> int:
    return max(0, cost.anonymous_bytes - freed_bytes)


def _heap_lines(facts: LedgerFacts) -> list[LedgerLine]:
    """Growth of both heaps outside of imports, and what the C library keeps free."""
    startup, imports, heap, moment = (
        facts.startup_heap or _NO_HEAP, facts.imports_heap or _NO_HEAP, facts.heap or _NO_HEAP, facts.moment,
    )  # fmt: skip
    lines = []
    if heap.python_arena_bytes is not None:
        grown = heap.python_arena_bytes - (startup.python_arena_bytes or 0) - (imports.python_arena_bytes or 0)
        lines.append(_line("python heap", "grown after imports", grown, "arenas of Python's allocator"))
    if moment is None or moment.malloc_used_bytes is None:
        return lines
    before = (startup.malloc_used_bytes or 0) + (imports.malloc_used_bytes or 0)
    native = moment.malloc_used_bytes - _backed_bytes(moment.tensors, "") - before
    slack = (moment.malloc_free_bytes or 0) - (startup.malloc_free_bytes or 0)
    lines.append(_line("native heap", "libraries, after their import", native, "mallinfo2 near the peak"))
    lines.append(_line("allocator slack", "kept free by malloc", slack, "mallinfo2 near the peak"))
    return lines


def _backed_bytes(tensors: tuple[TensorShare, ...], backing: str) -> int:
    return sum(share.num_bytes for share in tensors if share.backing == backing)


def _tensor_lines(tensors: tuple[TensorShare, ...]) -> list[LedgerLine]:
    """Tensor bytes by category and by what lies behind them."""
    sums: dict[str, int] = {}
    for share in tensors:
        place = {"shared": " (in shared memory)", "file": " (mapped from a file)"}.get(share.backing, "")
        sums[share.category + place] = sums.get(share.category + place, 0) + share.num_bytes
    method = "every storage alive at that moment"
    return [_line("tensors", name, size, method) for name, size in sorted(sums.items(), key=lambda item: -item[1])]


def _worker_lines(run: RunRecord, process: ProcessRecord) -> list[LedgerLine]:
    """One line per other process, under the root process only; pages it shares are counted by their share."""
    if process.index != 0:
        return []
    last: dict[int, int] = {}
    for reading in run.tree_readings:
        last.update({part.process: part.share_bytes for part in reading.processes})
    method = "proportional set size at its last reading"
    others = [other for other in run.processes if other.index != 0 and other.index in last]
    return [_line("worker", f"process {other.pid}", last[other.index], method) for other in others]


# ---- devices -------------------------------------------------------------------------------------------------------


def _device_ledger(run: RunRecord, process: ProcessRecord, facts: LedgerFacts) -> Ledger:
    """The device's own number where there is one, else what its allocator holds, else the tensors alone."""
    tensors = _tensor_lines(facts.tensors)
    tensor_bytes = sum(line.num_bytes for line in tensors)
    reserved_bytes = max(facts.allocator_reserved_bytes or 0, tensor_bytes)
    peak_bytes = max(_device_peak_bytes(run, process, facts.device) or 0, reserved_bytes)
    slack = _line("allocator slack", "kept by the allocator", reserved_bytes - tensor_bytes, "memory_stats")
    context = _line("device context", "context and libraries", peak_bytes - reserved_bytes, "NVML minus the allocator")
    lines = [line for line in (*tensors, slack, context) if line.num_bytes > 0]
    return Ledger(
        process=process.index,
        device=facts.device,
        peak_bytes=peak_bytes,
        step=facts.step,
        phase=facts.peak_phase,
        lines=(*lines, _line("unexplained", "rest", peak_bytes - sum(line.num_bytes for line in lines), "")),
        tensors=facts.tensors,
    )


def _device_peak_bytes(run: RunRecord, process: ProcessRecord, device: str) -> int | None:
    """The largest reading of the driver for this process on this device."""
    number = device.partition(":")[2]
    readings: list[GpuReading] = [g for g in run.gpus if str(g.device) == (number or "0")]
    sizes = [p.num_bytes for g in readings for p in g.processes if p.pid == process.pid and p.num_bytes is not None]
    return max(sizes, default=None)
