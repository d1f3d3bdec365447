"""Breakdown of the peak RSS of a run into named lines that add up to it, and what is left without a name.

The first ledger is that of the job: its lines add up to the headline. One process is explained from the inside
(`ledger_parts`), the others of its tree by their share of what is left. Further ledgers explain other processes that
traced a step, by their own peaks, and devices.

What is explained is one moment: when the process was largest between two operators of the traced step. Its distance to
the peak of that step, and of that to the peak of the run, have lines of their own, without a name for what they hold.

Share of each process in the peak of its process tree.

A page that several processes share is counted in the one that is explained from the inside (forked workers share their
parent's pages); the others get what is left of the headline, in proportion to what they had for themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memfit.explain.run.ledger_parts import (
    FIRM,
    SLACK,
    Claim,
    Pools,
    device_tensor_claims,
    lines_of,
    traced_claims,
    untouched_bytes,
    untraced_claims,
)
from memfit.records.run import GpuReading, ProcessRecord, RunRecord, SharedReading, TreeReading
from memfit.records.run_parts.ledger import Ledger, LedgerFacts, Moment
from memfit.units import format_bytes

_SAME_BYTES = 512 * 1024
"""Two readings of the kernel's batched counters this near to each other are the same."""


def explain_peak(run: RunRecord) -> tuple[Ledger, ...]:
    """The job's ledger, then one per other process that traced a step and one per device; empty when the run was
    measured without."""
    if not run.ledger_facts and run.header.settings.ledger_every is None:
        return ()
    written = {process.index: _written(run, process) for process in run.processes}
    traced = {index for index, facts in written.items() if "cpu" in facts and facts["cpu"].step}
    shares = split_headline(run, traced)
    ledgers = [] if shares is None else [_job_ledger(run, shares, written[shares.process].get("cpu"))]
    for process in run.processes:
        for device, facts in written[process.index].items():
            if device != "cpu":
                ledgers.append(_device_ledger(run, process, facts))
            elif process.index in traced and (shares is None or process.index != shares.process):
                peak_bytes = max(round(process.peak.value or 0), facts.resident_peak_bytes)
                ledgers.append(_job_ledger(run, Shares(process.index, peak_bytes, {}, False), facts))
    return tuple(ledgers)


def _written(run: RunRecord, process: ProcessRecord) -> dict[str, LedgerFacts]:
    """The most telling facts of one process on every device: those of its largest traced step, else of its end."""
    written: dict[str, LedgerFacts] = {}
    for facts in sorted(
        (f for f in run.ledger_facts if f.pid == process.pid), key=lambda f: (f.device != "cpu", f.device)
    ):
        known = written.get(facts.device)
        if known is None or _rank(facts) > _rank(known):
            written[facts.device] = facts
    return written


def _rank(facts: LedgerFacts) -> tuple[int, ...]:
    """The larger the process was when somebody looked, the more of the peak is explained."""
    moment = facts.moment
    seen_bytes = (
        moment.anonymous_bytes + moment.file_bytes + moment.shmem_bytes if moment else facts.resident_peak_bytes
    )
    return seen_bytes, facts.resident_peak_bytes, facts.tensor_peak_bytes, facts.step


# ---- the host ------------------------------------------------------------------------------------------------------


def _job_ledger(run: RunRecord, shares: Shares, facts: LedgerFacts | None) -> Ledger:
    """One process from the inside, and the others beside it."""
    pid_of = {process.index: process.pid for process in run.processes}
    method = "what it adds to the tree at the peak: the headline without the explained process, by unique set size"
    others = [Claim("worker", f"process {pid_of[index]}", size, method, FIRM) for index, size in shares.others.items()]
    moment = _moment(run, shares.process, facts) if facts is not None and facts.step else None
    if facts is not None and moment is not None:
        claims, note = _traced_lines(facts, moment, shares)
    else:
        claims, note = _untraced_lines(run, shares, facts)
    # One process's lines first fit into its own part: what it claims is never paid by the others.
    own = lines_of(claims, shares.own_bytes)
    beside = lines_of(others, sum(shares.others.values()))[:-1]
    *named, rest = own
    lines = sorted((*named, *beside, rest), key=lambda line: line.kind == "unexplained")
    return Ledger(
        process=shares.process,
        device="host",
        peak_bytes=shares.own_bytes + sum(shares.others.values()),
        step=facts.step if facts and facts.step else None,
        phase=moment.phase if moment else "",
        lines=tuple(lines),
        tensors=moment.tensors if moment else (),
        note=note,
        untouched_bytes=untouched_bytes(moment) if moment else None,
    )


def _moment(run: RunRecord, process: int, facts: LedgerFacts) -> Moment | None:
    """The look inside of the traced step; without one, its tensors and what the sampler read nearest the peak."""
    pools = pools_near_the_peak(run, process) if facts.moment is None else None
    if pools is None:
        return facts.moment
    return Moment(phase=facts.peak_phase, tensors=facts.tensors, **pools._asdict())


def _traced_lines(facts: LedgerFacts, moment: Moment, shares: Shares) -> tuple[list[Claim], str]:
    """Claims at the look inside of the traced step, and the two distances to the peak."""
    seen_bytes = moment.anonymous_bytes + moment.file_bytes + moment.shmem_bytes
    step_bytes = max(seen_bytes, facts.resident_peak_bytes or shares.own_bytes)
    claims, notes = traced_claims(facts, moment), []
    outside_bytes = 0 if shares.is_tree else shares.own_bytes - step_bytes
    if outside_bytes > _SAME_BYTES:
        # No number of a step: two runs are compared by names.
        name = "the peak of the run lay outside of the steps that were traced"
        claims.append(Claim("unexplained", name, outside_bytes, "kernel high-water marks of both", SLACK))
        notes.append(
            f"The peak lay outside of every traced step, the highest of which is step {facts.step}; "
            f"{format_bytes(outside_bytes)} of it are not explained."
        )
    inside_bytes = min(step_bytes, shares.own_bytes) - seen_bytes
    if inside_bytes > _SAME_BYTES:
        name = "inside an operator, higher than before and after it"
        method = "kernel high-water mark of the step, without the largest size between operators"
        claims.append(Claim("unexplained", name, inside_bytes, method, SLACK))
    if shares.is_tree and seen_bytes - shares.own_bytes > _SAME_BYTES:
        less = format_bytes(seen_bytes - shares.own_bytes)
        notes.append(f"When the tree was largest, this process was {less} smaller than in the traced step.")
    return claims, " ".join(notes)


def _untraced_lines(run: RunRecord, shares: Shares, facts: LedgerFacts | None) -> tuple[list[Claim], str]:
    """Claims on what the sampler read nearest the peak."""
    pools = pools_near_the_peak(run, shares.process)
    if pools is None:
        return [], "The process ended before it could be read."
    above_bytes = 0 if shares.is_tree else max(0, shares.own_bytes - pools.resident_bytes)
    note = "No training step was traced: memory is split by imports and by the kernel's counters only."
    return untraced_claims(facts, pools, above_bytes), note


# ---- devices -------------------------------------------------------------------------------------------------------


def _device_ledger(run: RunRecord, process: ProcessRecord, facts: LedgerFacts) -> Ledger:
    """The device's own number where there is one, else what its allocator holds, else the tensors alone."""
    tensors = device_tensor_claims(facts.tensors)
    tensor_bytes = sum(claim.num_bytes for claim in tensors)
    reserved_bytes = max(facts.allocator_reserved_bytes or 0, tensor_bytes)
    peak_bytes = max(_device_peak_bytes(run, process, facts.device) or 0, reserved_bytes)
    slack = Claim("allocator slack", "kept by the allocator", reserved_bytes - tensor_bytes, "memory_stats")
    context = Claim("device context", "context and libraries", peak_bytes - reserved_bytes, "NVML minus the allocator")
    return Ledger(
        process=process.index,
        device=facts.device,
        peak_bytes=peak_bytes,
        step=facts.step,
        phase=facts.peak_phase,
        lines=lines_of([*tensors, slack, context], peak_bytes),
        tensors=facts.tensors,
    )


def _device_peak_bytes(run: RunRecord, process: ProcessRecord, device: str) -> int | None:
    """The largest reading of the driver for this process on this device."""
    number = device.partition(":")[2]
    readings: list[GpuReading] = [g for g in run.gpus if str(g.device) == (number or "0")]
    sizes = [p.num_bytes for g in readings for p in g.processes if p.pid == process.pid and p.num_bytes is not None]
    return max(sizes, default=None)


class Shares(NamedTuple):
    """The headline split among processes; the parts add up to it."""

    process: int
    """The one that is explained from the inside."""
    own_bytes: int
    others: dict[int, int]
    """Process: its bytes, of those alive at the peak."""
    is_tree: bool
    """Whether the split is that of a moment: then the process need not be at its own peak."""


def split_headline(run: RunRecord, traced: set[int]) -> Shares | None:
    """The parts of the headline; None when it is not known. Prefers a process that traced a step."""
    if run.peak.value is None or not run.processes:
        return None
    headline_bytes = round(run.peak.value)
    largest = max(run.processes, key=lambda process: process.peak.value or 0)
    alone = len(run.processes) == 1 or not len(run.samples)
    if alone or round(largest.peak.value or 0) == headline_bytes:
        return Shares(largest.index, headline_bytes, {}, False)
    resident, unique = _alive_at_the_peak(run, headline_bytes)
    if not resident:
        return Shares(largest.index, headline_bytes, {}, False)
    process = max(resident, key=lambda index: (index in traced, resident[index], -index))
    weights = {index: unique.get(index, size) for index, size in resident.items() if index != process}
    own_bytes = min(resident[process], headline_bytes) if sum(weights.values()) else headline_bytes
    return Shares(process, own_bytes, _divided(headline_bytes - own_bytes, weights), True)


def _alive_at_the_peak(run: RunRecord, headline_bytes: int) -> tuple[dict[int, int], dict[int, int]]:
    """Resident size of every process at the peak, and what each had for itself at the nearest page walk."""
    walk = max(run.tree_readings, key=lambda reading: reading.tree_bytes, default=None)
    if walk is not None and walk.tree_bytes >= headline_bytes:
        return {p.process: p.resident_bytes for p in walk.processes}, {
            p.process: p.unique_bytes for p in walk.processes
        }
    at_seconds = float(run.tree.time_seconds[int(run.tree.tree_bytes.argmax())])
    rows = run.samples.time_seconds == at_seconds
    found = zip(run.samples.process[rows].tolist(), run.samples.resident_bytes[rows].tolist(), strict=True)
    resident = {int(index): int(size) for index, size in found}
    return resident, {i: part.unique_bytes for i in resident if (part := _nearest(run.tree_readings, i, at_seconds))}


def _nearest(readings: tuple[TreeReading, ...], process: int, at_seconds: float) -> SharedReading | None:
    seen = [(abs(r.time_seconds - at_seconds), p) for r in readings for p in r.processes if p.process == process]
    return min(seen, key=lambda pair: pair[0], default=(0.0, None))[1]


def _divided(num_bytes: int, weights: dict[int, int]) -> dict[int, int]:
    """Whole bytes in proportion to the weights; they add up."""
    whole, parts, given, seen = sum(weights.values()), {}, 0, 0
    for index in sorted(weights):
        seen += weights[index]
        until = num_bytes * seen // whole if whole else 0
        parts[index], given = until - given, until
    return parts


def pools_near_the_peak(run: RunRecord, process: int) -> Pools | None:
    """The kernel's three counters of one process at its largest sample; None when it was never read."""
    record = next(p for p in run.processes if p.index == process)
    rows = np.flatnonzero(run.samples.process == process)
    if not len(rows):
        known = (record.anonymous_bytes, record.file_bytes, record.shmem_bytes)
        return None if None in known else Pools(*(size or 0 for size in known))
    row = rows[run.samples.resident_bytes[rows].argmax()]
    resident_bytes = int(run.samples.resident_bytes[row])
    shared_bytes = min(int(run.samples.shared_bytes[row]), resident_bytes)
    shmem_bytes = min(record.shmem_bytes or 0, shared_bytes)
    return Pools(resident_bytes - shared_bytes, shared_bytes - shmem_bytes, shmem_bytes)
