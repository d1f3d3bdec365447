"""Does the simulated CUDA allocator do what real ones were recorded doing? One row for each real snapshot.

    python -m benchmarks.accuracy.snapshots [FOLDER]

FOLDER holds files of `torch.cuda.memory._dump_snapshot`; without it, the real measurements beside this repository are
used.
"""

from __future__ import annotations

import sys
from pathlib import Path

from memfit.predict.allocator.settings import parse_allocator_settings
from memfit.predict.snapshot.reader import read_snapshot
from memfit.predict.snapshot.report import best_forward
from memfit.records.cuda.snapshot import Agreement

TRUTH = Path(__file__).resolve().parents[3] / "shared" / "truth" / "cuda_snapshots"


def agreement_with(path: Path) -> tuple[int, Agreement]:
    """Events of the first device, and how far its replay agrees."""
    snapshot = read_snapshot(path)
    device = snapshot.devices[0]
    return len(device.events), best_forward(device, parse_allocator_settings(snapshot.settings or ""))[1]


def main() -> int:
    """Print the table; 1 when a new segment or the final reserved bytes differ."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TRUTH
    paths = sorted(folder.glob("*.pickle*"))
    if not paths:
        print(f"no snapshots in {folder}: give a folder of files written by torch.cuda.memory._dump_snapshot")
        return 2
    print(f"{'snapshot':44}{'events':>8}{'placements equal':>20}{'segments equal':>18}  reserved equal")
    rows = [(path, *agreement_with(path)) for path in paths]
    for path, num_events, found in rows:
        places = f"{found.num_same_place}/{found.num_allocations}"
        segments = f"{found.num_same_segments}/{found.num_segments}"
        print(f"{path.name.split('.')[0]:44}{num_events:>8}{places:>20}{segments:>18}  {found.same_reserved}")
    total = [sum(getattr(row[2], name) for row in rows) for name in ("num_same_place", "num_allocations")]
    print(f"{total[0]} of {total[1]} placements at the recorded address")
    wrong = any(row[2].num_same_segments != row[2].num_segments or not row[2].same_reserved for row in rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
