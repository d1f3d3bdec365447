"""View of a ledger: bars that add up to the peak, and tensors by category and module."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from memfit.records.run import RunRecord
from memfit.records.run_parts.ledger import Ledger

_PLACES = {"shared": " (in shared memory)", "file": " (mapped from a file)"}
"""How the ledger names the lines of tensors that lie outside of the process's own heap."""

IMPORTS = "imports"
IMPORT_KINDS = ("interpreter", IMPORTS, "library files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One part of a peak; the parts below it add up to its tensors."""

    kind: str
    name: str
    num_bytes: int
    share: float
    source: str
    method: str
    measured_bytes: int | None = None
    """What was measured, where less than that was resident."""
    parts: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """One ledger, largest line first, the unexplained rest last."""

    process: int
    pid: int | None
    device: str
    step: int | None
    phase: str
    moment: str
    """What is explained, in words: 'step 37, backward'."""
    note: str
    peak_bytes: int
    explained_ratio: float
    unexplained_bytes: int
    untouched_bytes: int | None
    """Reserved by heap and tensors without taking a page; not part of the peak."""
    bars: tuple[Bar, ...]


def ledger_view(ledger: Ledger, run: RunRecord) -> LedgerView:
    """Turn one ledger into bars."""
    pid = next((process.pid for process in run.processes if process.index == ledger.process), None)
    parts = _tensor_parts(ledger)
    bars = [
        Bar(
            kind=line.kind,
            name=line.name,
            num_bytes=line.num_bytes,
            share=_share(line.num_bytes, ledger.peak_bytes),
            source=line.source,
            method=line.method,
            measured_bytes=line.measured_bytes,
            parts=parts.get(line.name, ()) if line.kind == "tensors" else (),
        )
        for line in ledger.lines
    ]
    bars = _imports_as_one(bars)
    bars.sort(key=lambda bar: (bar.kind == "unexplained", -bar.num_bytes))
    return LedgerView(
        process=ledger.process,
        pid=pid,
        device=ledger.device,
        step=ledger.step,
        phase=ledger.phase,
        moment=_moment(ledger),
        note=ledger.note,
        peak_bytes=ledger.peak_bytes,
        explained_ratio=ledger.explained_ratio,
        unexplained_bytes=ledger.unexplained_bytes,
        untouched_bytes=ledger.untouched_bytes,
        bars=tuple(bars),
    )


def _imports_as_one(bars: list[Bar]) -> list[Bar]:
    """What the interpreter and all packages take is one bar with its lines below it; it says little of the training."""
    parts = sorted((bar for bar in bars if bar.kind in IMPORT_KINDS), key=lambda bar: -bar.num_bytes)
    if len(parts) < 2:
        return bars
    size, share = sum(bar.num_bytes for bar in parts), sum(bar.share for bar in parts)
    whole = _bar(IMPORTS, "interpreter and libraries", size, 0, "the lines below it")
    return [replace(whole, share=share, parts=tuple(parts)), *(bar for bar in bars if bar.kind not in IMPORT_KINDS)]


def import_bytes(ledgers: tuple[LedgerView, ...]) -> int:
    """What the interpreter and its imports take of a host ledger; 0 when there is none, or more than one."""
    bars = [bar for ledger in ledgers if ledger.device == "host" for bar in ledger.bars if bar.kind == IMPORTS]
    return bars[0].num_bytes if len(bars) == 1 else 0


def _moment(ledger: Ledger) -> str:
    """Which moment the lines speak of."""
    if ledger.step is None:
        return "no traced step"
    if ledger.phase == "evaluation":
        return f"an evaluation pass before step {ledger.step}"
    return f"step {ledger.step}, {ledger.phase or 'traced'}"


def _share(num_bytes: int, whole_bytes: int) -> float:
    return num_bytes / whole_bytes if whole_bytes else 0.0


def _tensor_parts(ledger: Ledger) -> dict[str, tuple[Bar, ...]]:
    """By category: one bar per module, with the phases its tensors were born in below it."""
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    births: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for share in ledger.tensors:
        module = share.module or "(outside of modules)"
        line = share.category + _PLACES.get(share.backing, "")
        sizes[line][module] += share.num_bytes
        births[line, module][share.phase] += share.num_bytes
    result = {}
    for category, modules in sizes.items():
        result[category] = tuple(
            _bar("module", module, size, ledger.peak_bytes, _births(births[category, module]))
            for module, size in modules.most_common()
        )
    return result


def _births(phases: Counter[str]) -> str:
    return "born in " + ", ".join(phase for phase, _ in phases.most_common())


def _bar(kind: str, name: str, num_bytes: int, whole_bytes: int, method: str) -> Bar:
    share = _share(num_bytes, whole_bytes)
    return Bar(kind=kind, name=name, num_bytes=num_bytes, share=share, source="measured", method=method)
