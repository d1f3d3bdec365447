"""Breakdown of the peak RSS of a run into named lines that add up to it, and what is left without a name.

The first ledger is that of the job: its lines add up to the headline. One process is explained from the inside
(`ledger_parts`), the others of its tree by what they add to it at the peak (`ledger_share`). Further ledgers explain
other processes that traced a step, by their own peaks, and devices.

What is explained is one moment: when the process was largest between two operators of the traced step. Its distance to
the peak of that step, and of that to the peak of the run, have lines of their own, without a name for what they hold.
"""

from __future__ import annotations

from memfit.explain.run.ledger_parts import device_tensor_claims, traced_claims, untouched_bytes, untraced_claims
from memfit.explain.run.ledger_share import Shares, pools_near_the_peak, split_headline
from memfit.explain.run.ledger_sum import FIRM, SLACK, Claim, lines_of
from memfit.records.ledger import Ledger, LedgerFacts, Moment
from memfit.records.run import GpuReading, ProcessRecord, RunRecord
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
        name = f"the peak of the run lay outside of step {facts.step}, the highest that was traced"
        claims.append(Claim("unexplained", name, outside_bytes, "kernel high-water marks of both", SLACK))
        notes.append(
            f"The peak lay outside of every traced step; {format_bytes(outside_bytes)} of it are not explained."
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
    note = "No training step was traced: memory is split by imports and by the kernel's counters only."
    return untraced_claims(facts, pools), note


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
