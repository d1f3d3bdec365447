"""Made ledger of one traced step of a small transformer.

The tensors at the peak are computed from the spans of the timeline, so the two can be checked against each other.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from memfit.records.run_parts.ledger import HeapFacts, ImportCost, LedgerFacts, TensorShare
from memfit.records.timeline import Category, LiveSpan, Phase, PhaseMark, Timeline
from memfit.units import MIB

NUM_BLOCKS = 6
LAYERS: dict[str, tuple[float, float]] = {
    "embedding": (9.0, 3.0),
    **{
        f"blocks.{block}.{name}": size
        for block in range(NUM_BLOCKS)
        for name, size in {
            "attention.qkv": (0.75, 4.5), "attention.out": (0.25, 1.5), "norm": (0.01, 1.5),
            "mlp.up": (1.0, 6.0), "mlp.down": (1.0, 1.5),
        }.items()
    },
    "head": (2.0, 12.0),
}  # fmt: skip
"""Module path: MiB of parameters, MiB of activations."""


class _Log:
    """Builds spans event by event."""

    def __init__(self) -> None:
        self.spans: list[dict[str, object]] = []
        self.open: dict[tuple[str, str], int] = {}
        self.marks: list[PhaseMark] = []
        self.clock = 0
        self.phase: Phase = "setup"

    def enter(self, phase: Phase, step: int) -> None:
        self.phase = phase
        self.marks.append(PhaseMark(start=self.clock, step=step, phase=phase))

    def allocate(self, category: Category, module: str, num_mib: float, operator: str) -> None:
        self.open[category, module] = len(self.spans)
        self.spans.append(
            {
                "start": self.clock, "end": None, "num_bytes": int(num_mib * MIB), "category": category,
                "phase": self.phase, "module": module, "operator": operator, "line": "train.py:42",
            }
        )  # fmt: skip
        self.clock += 1

    def release(self, category: Category, module: str) -> None:
        self.spans[self.open.pop((category, module))]["end"] = self.clock
        self.clock += 1


def made_timeline(step: int = 20) -> Timeline:
    """The storages of one training step, from parameters to the end of the update."""
    log = _Log()
    log.enter("setup", step)
    for module, (weight, _) in LAYERS.items():
        log.allocate("parameter", module, weight, "aten::empty")
        log.allocate("optimizer state", module, 2 * weight, "aten::zeros_like")
    log.enter("data", step)
    log.allocate("input", "", 0.5, "aten::stack")
    log.enter("forward", step)
    for module, (_, activation) in LAYERS.items():
        log.allocate("activation", module, activation, "aten::linear")
    log.enter("backward", step)
    for module, (weight, activation) in reversed(LAYERS.items()):
        log.allocate("temporary", module, activation / 2, "aten::mm")
        log.allocate("gradient", module, weight, "aten::mm")
        log.release("activation", module)
        log.release("temporary", module)
    log.enter("update", step)
    for module in LAYERS:
        log.release("gradient", module)
    log.release("input", "")
    spans = tuple(msgspec.convert(span, LiveSpan) for span in log.spans)
    seconds = tuple(0.25 * event / max(log.clock, 1) for event in range(log.clock))
    return Timeline(spans=spans, num_events=log.clock, phases=tuple(log.marks), event_seconds=seconds)


def peak_event(timeline: Timeline) -> int:
    """The first event at which the most bytes are alive."""
    changes: Counter[int] = Counter()
    for span in timeline.spans:
        changes[span.start] += span.num_bytes
        if span.end is not None:
            changes[span.end] -= span.num_bytes
    alive, best, best_event = 0, -1, 0
    for event in range(timeline.num_events):
        alive += changes[event]
        if alive > best:
            best, best_event = alive, event
    return best_event


def alive_at(timeline: Timeline, event: int) -> list[LiveSpan]:
    """The spans that are alive at one event."""
    return [s for s in timeline.spans if s.start <= event and (s.end is None or s.end > event)]


def write_ledger(folder: Path, pid: int, traced: tuple[int, float, int], clock_start_ns: int) -> None:
    """Write ledger-PID.jsonl with one traced step."""
    step, end_seconds, resident_peak_bytes = traced
    timeline = made_timeline(step)
    spans = alive_at(timeline, peak_event(timeline))
    totals: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    for span in spans:
        totals[span.category, span.module, span.phase] += span.num_bytes
        counts[span.category, span.module, span.phase] += 1
    facts = LedgerFacts(
        pid=pid,
        step=step,
        time_ns=clock_start_ns + int(end_seconds * 1e9),
        device="cpu",
        tensor_peak_bytes=sum(totals.values()),
        peak_phase="backward",
        tensors=tuple(
            TensorShare(category=c, module=m, phase=p, num_bytes=size, num_tensors=counts[c, m, p])
            for (c, m, p), size in sorted(totals.items())
        ),
        resident_peak_bytes=resident_peak_bytes,
        startup_anonymous_bytes=5 * MIB,
        startup_file_bytes=6 * MIB,
        imports=(
            ImportCost(package="torch", anonymous_bytes=96 * MIB, file_bytes=62 * MIB),
            ImportCost(package="numpy", anonymous_bytes=9 * MIB, file_bytes=8 * MIB),
        ),
        heap=HeapFacts(
            python_arena_bytes=38 * MIB, python_used_bytes=36 * MIB, malloc_used_bytes=300 * MIB,
            malloc_free_bytes=21 * MIB,
        ),
        timeline=timeline,
    )  # fmt: skip
    (folder / f"ledger-{pid}.jsonl").write_bytes(msgspec.json.encode(facts) + b"\n")
