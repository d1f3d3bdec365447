"""What do the whole runs say: error of the peak, memory added to the job, share of the peak that has a name?"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.overhead.report import Finding, Part, mebibytes

PLAIN, MEMFIT, MEMFIT_LEDGER = "nothing (control)", "memfit", "memfit --ledger"
SAME_BYTES = 512 * 1024
"""The kernel counts pages in batches per thread: two of its counters this near to each other are equal."""
MOST_ADDED_BYTES = 5 * 1024 * 1024
LEAST_NAMED_SHARE = 0.95
METHOD = (
    "The same MLP as a program of its own, one step in the middle with 8192 rows: a short, real peak. Every tool "
    "runs the whole program through its own command line ({num_rounds} rounds, shuffled); the truth is the "
    "kernel's high-water mark of that very process. 'Added' is the true peak with the tool minus the true peak "
    "without, in the same round, glibc's mmap threshold pinned for all because unpinned runs differ by 7 % among "
    "themselves. Nothing can be wrong in the control; its 'added' is its spread."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One whole run under one tool."""

    true_bytes: int
    reported_bytes: float | None
    named_share: float | None


def judge(runs: dict[str, list[Run]]) -> Part:
    """The table and what it means."""
    rows = [_row(name, own, runs[PLAIN]) for name, own in runs.items()]
    return Part(
        name="whole_runs",
        title="The peak, and what is in it",
        method=METHOD.format(num_rounds=len(runs[PLAIN])),
        columns=("tool", "reported - true, median (worst)", "of the true peak", "added to the job", "peak explained"),
        rows=rows,
        findings=[_peak_finding(runs), _added_finding(runs), _named_finding(runs)],
        raw=dict(runs),
    )  # fmt: skip


def errors_bytes(runs: list[Run]) -> list[float]:
    """Reported minus true peak of every run."""
    return [run.reported_bytes - run.true_bytes for run in runs if run.reported_bytes is not None]


def added_bytes(runs: list[Run], plain: list[Run]) -> list[float]:
    """True peak with the tool minus without, round by round; for the control, its distance from its own median."""
    if runs is plain:
        middle = median(run.true_bytes for run in plain)
        return [run.true_bytes - middle for run in plain]
    return [run.true_bytes - other.true_bytes for run, other in zip(runs, plain, strict=True)]


def _row(name: str, runs: list[Run], plain: list[Run]) -> tuple[str, ...]:
    errors, added = errors_bytes(runs), added_bytes(runs, plain)
    share = median(run.true_bytes for run in runs) / median(run.true_bytes for run in plain)
    worst = max(added, key=abs)
    factor = "" if runs is plain else f", {share:.2f}x"
    return (
        name,
        _signed(median(errors)) + f" ({_signed(max(errors, key=abs))}) MiB" if errors else "",
        f"{_worst_percent(runs):.2f} % off at worst" if errors else "",
        f"{_signed(median(added))} ({_signed(worst)}) MiB{factor}",
        _named_text(runs),
    )


def _signed(num_bytes: float) -> str:
    return f"{mebibytes(num_bytes):+.1f}"


def _worst_percent(runs: list[Run]) -> float:
    return max(100 * abs(run.reported_bytes - run.true_bytes) / run.true_bytes for run in runs if run.reported_bytes)


def _named_text(runs: list[Run]) -> str:
    shares = [run.named_share for run in runs if run.named_share is not None]
    return f"{100 * min(shares):.1f}-{100 * max(shares):.1f} %" if shares else ""


# ---- what was promised ---------------------------------------------------------------------------------------------


def _peers(runs: dict[str, list[Run]], names: tuple[str, ...], text) -> str:
    return ", ".join(f"{name.split(',')[0].split(' (')[0]} {text(runs[name])}" for name in names)


def _peak_finding(runs: dict[str, list[Run]]) -> Finding:
    names = ("psutil, own process, 10 ms", "mprof, 100 ms", "psrecord, default", "memray (heap)")
    worst_bytes = max(map(abs, errors_bytes(runs[MEMFIT]) + errors_bytes(runs[MEMFIT_LEDGER])))
    return Finding(
        what="error of the peak, one process, worst run",
        peers=_peers(runs, names, lambda own: f"{_worst_percent(own):.1f} %"),
        memfit=f"{worst_bytes / 1024:.0f} KiB",
        target=f"0 (within the kernel's {SAME_BYTES // 1024} KiB)",
        verdict="reached" if worst_bytes <= SAME_BYTES else "missed",
    )


def _added_finding(runs: dict[str, list[Run]]) -> Finding:
    names = ("memray (heap)", "MemTracker (tensors)", "torch.profiler (tensors)")
    added, spread = added_bytes(runs[MEMFIT], runs[PLAIN]), max(map(abs, added_bytes(runs[PLAIN], runs[PLAIN])))
    high, low = max(added), min(added)
    unclear = f"cannot tell (control is ±{mebibytes(spread):.1f} MiB)"
    return Finding(
        what="memory added to the job",
        peers=_peers(runs, names, lambda own: f"{_signed(median(added_bytes(own, runs[PLAIN])))} MiB"),
        memfit=f"{_signed(median(added))} MiB ({_signed(low)} to {_signed(high)})",
        target="<= 5 MiB",
        verdict="reached" if high <= MOST_ADDED_BYTES else "missed" if low > MOST_ADDED_BYTES else unclear,
    )


def _named_finding(runs: dict[str, list[Run]]) -> Finding:
    names = ("memray (heap)", "MemTracker (tensors)", "torch.profiler (tensors)")
    least = min(run.named_share or 0.0 for run in runs[MEMFIT_LEDGER])
    return Finding(
        what="share of the peak explained",
        peers=_peers(runs, names, _named_text),
        memfit=_named_text(runs[MEMFIT_LEDGER]),
        target=">= 95 %",
        verdict="reached" if least >= LEAST_NAMED_SHARE else "missed",
    )
