"""Does the phantom GPU do what real GPUs were recorded doing? Event by event, against published snapshots.

    python -m benchmarks.accuracy.phantom_snapshots [FOLDER]

FOLDER holds wedsonlin_medium_LENGTH_KIND.pickle.xz; without it, the real measurements beside this repository are
used. Needs a CUDA build of torch. The snapshots hold one step after five others; events are compared in order.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.snapshot.reader import read_snapshot
from memfit.records.cuda.snapshot import DeviceSnapshot
from memfit.records.prediction import Prediction
from memfit.records.timeline import Timeline
from memfit.testing.engines import on_phantom

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth" / "cuda_snapshots"
LOOP = Path(__file__).with_name("phantom_course.py")
STEPS = 6
MIXED = {("training", 512), ("training", 1024), ("inference", 512)}
"""Which of them were recorded under autocast."""

Event = tuple[bool, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One snapshot against the phantom."""

    name: str
    num_real: int
    num_phantom: int
    num_equal: int
    first_difference: int | None
    peak_real_bytes: int
    peak_phantom_bytes: int
    reserved_real_bytes: int
    reserved_phantom_bytes: int

    @property
    def is_identical(self) -> bool:
        """Whether all events are the same."""
        return self.num_real == self.num_phantom == self.num_equal


def compare(path: Path, device: str = "cuda:a100-40gb") -> Row:
    """Run the job of one snapshot on the phantom."""
    kind, length = _named(path)
    precision = "bf16" if (kind, length) in MIXED else "fp32"
    function = "train" if kind == "training" else "infer"
    job = describe_job(f"{LOOP}:{function}", {"length": length, "precision": precision})
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder) / "phantom.pickle"
        prediction = on_phantom(job, parse_device(device), num_steps=STEPS, snapshot_path=str(left))
        end_bytes = _allocated(read_snapshot(left).devices[0])
    return _row(path, prediction, end_bytes)


def _named(path: Path) -> tuple[str, int]:
    found = re.fullmatch(r"wedsonlin_medium_(\d+)_(training|inference)\.pickle.*", path.name)
    assert found is not None, path.name
    return found[2], int(found[1])


def _row(path: Path, prediction: Prediction, end_bytes: int) -> Row:
    real = read_snapshot(path).devices[0]
    real_events = [
        (event.action == "alloc", event.num_bytes)
        for event in real.events
        if event.action in ("alloc", "free_completed")
    ]
    assert prediction.timeline is not None
    phantom_events = last_step(prediction.timeline, STEPS)
    real_end = _allocated(real)
    pairs = list(zip(real_events, phantom_events, strict=False))
    reserved = prediction.level("reserved")
    assert reserved is not None
    return Row(
        name=path.name.split(".")[0],
        num_real=len(real_events),
        num_phantom=len(phantom_events),
        num_equal=sum(a == b for a, b in pairs),
        first_difference=next((index for index, (a, b) in enumerate(pairs) if a != b), None),
        peak_real_bytes=_peak_before(real_events, real_end),
        peak_phantom_bytes=_peak_before(phantom_events, end_bytes),
        reserved_real_bytes=sum(segment.num_bytes for segment in real.segments),
        reserved_phantom_bytes=int(reserved.value or 0),
    )


def last_step(timeline: Timeline, step: int) -> list[Event]:
    """Allocations and releases of one step in order."""
    start = next(mark.start for mark in timeline.phases if mark.step == step)
    events: dict[int, Event] = {}
    for span in timeline.spans:
        if span.start >= start:
            events[span.start] = (True, span.num_bytes)
        if span.end is not None and span.end >= start:
            events[span.end] = (False, span.num_bytes)
    return [events[index] for index in sorted(events)]


def rounded(num_bytes: int) -> int:
    """A block is a multiple of 512 bytes."""
    return max(512, -(-num_bytes // 512) * 512)


def _allocated(device: DeviceSnapshot) -> int:
    return sum(block.num_bytes for segment in device.segments for block in segment.blocks if block.state == "allocated")


def _peak_before(events: list[Event], end_bytes: int) -> int:
    """The largest number of bytes alive, walking back from the end."""
    live = peak = end_bytes
    for is_alloc, num_bytes in reversed(events):
        live += -rounded(num_bytes) if is_alloc else rounded(num_bytes)
        peak = max(peak, live)
    return peak


def main() -> int:
    """Print the table; 1 when some event differs."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TRUTH
    paths = sorted(folder.glob("wedsonlin_medium_*"))
    if not paths:
        print(f"no snapshots in {folder}")
        return 2
    rows = [compare(path) for path in paths]
    for row in rows:
        print(
            f"{row.name:36} events {row.num_equal}/{row.num_real} ({row.num_phantom} on the phantom)  "
            f"peak {row.peak_phantom_bytes / row.peak_real_bytes - 1:+.4%}  "
            f"reserved {row.reserved_phantom_bytes / row.reserved_real_bytes - 1:+.3%}  "
            f"first difference {row.first_difference}"
        )
    return 0 if all(row.is_identical for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
