"""Steps found in any log of allocations by tensors of odd sizes that a marked training makes and drops. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from memfit.predict.gpu_rules.cublas import CUBLAS_WORKSPACE
from memfit.records.optimizer_bytes import StepBytes
from memfit.records.timeline import Timeline

MARK_BYTES = {"built": 7001, "begin": 7601, "update": 8201, "end": 8801}
"""Of a tensor made and dropped at this moment; no other tensor of such a training has an odd size."""
MARK_OF_BYTES = {num_bytes: name for name, num_bytes in MARK_BYTES.items()}


def changes_of(timeline: Timeline, device: str) -> list[int]:
    """The change in live bytes of one device at every event, without cuBLAS's workspace, which is no optimizer's."""
    changes = [0] * (timeline.num_events + 1)
    for span in timeline.spans:
        if span.device == device and span.operator != CUBLAS_WORKSPACE:
            changes[span.start] += span.num_bytes
            if span.end is not None:
                changes[span.end] -= span.num_bytes
    return changes


def read_steps(changes: Iterable[int]) -> tuple[int, tuple[StepBytes, ...]]:
    """Live bytes where the optimizer was about to be made, and those of every step after it."""
    live = base = begin = peak = 0
    update_begin: int | None = None
    update_peak: int | None = None
    steps: list[StepBytes] = []
    for change in changes:
        match MARK_OF_BYTES.get(abs(change)) if change > 0 else None:
            case "built":
                base = live
            case "begin":
                begin = peak = live
                update_begin = update_peak = None
            case "update":
                update_begin = update_peak = live
            case "end":
                found = StepBytes(
                    begin_bytes=begin, peak_bytes=peak, update_begin_bytes=update_begin,
                    update_peak_bytes=update_peak, end_bytes=live,
                )  # fmt: skip
                steps.append(found)
            case _:
                live += 0 if abs(change) in MARK_OF_BYTES else change
                peak = max(peak, live)
                update_peak = None if update_peak is None else max(update_peak, live)
    return base, tuple(steps)
