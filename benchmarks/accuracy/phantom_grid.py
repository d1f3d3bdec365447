"""Where do the two engines of `memfit predict` differ first? The phantom GPU as the oracle of the fake tensors.

    python -m benchmarks.accuracy.phantom_grid [--fake-python PYTHON] [--only TEXT] [--keep FOLDER]

Run with a CUDA build of torch. Fake tensors need a torch that does not look for a driver: `--fake-python` names an
interpreter with a CPU build and memfit (default: this one). For every job of the grid, allocations and releases of
the last step are laid beside each other in order, rounded to the allocator's 512 bytes; the first that differs is named
with the operator that the fake engine saw there and the module and line that the phantom saw. Where a job has
convolutions, storages that live for one call of cuDNN (its workspaces, which only cuDNN knows) are set aside on the
phantom's side, and counted. `--keep` leaves the phantom's answers in a folder, to be used again. `--write FILE` leaves
the events of some jobs that agree for tests/predict/test_phantom_events.py, which needs no CUDA build.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.accuracy.grid_events import Event, events_of, first_difference, fleeting, peak_of, rounded, signed
from benchmarks.accuracy.grid_fake_side import Failed
from benchmarks.accuracy.grid_jobs import RECORDED, GridJob, grid
from memfit.errors import MemfitError
from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.engine import predict_on_phantom
from memfit.records.prediction import Prediction
from memfit.units import MIB

STEPS = 2
Verdict = Literal["equal", "equal beside workspaces", "equal peak", "differ", "not compared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One job on both engines."""

    name: str
    verdict: Verdict
    text: str
    phantom_events: tuple[int, ...] = ()
    """Rounded bytes, releases negative."""


class FakeSide:
    """The other interpreter, which answers one job after the other."""

    def __init__(self, python: str) -> None:
        command = [python, "-m", "benchmarks.accuracy.grid_fake_side"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def predict(self, job: GridJob) -> Prediction:
        """The fake engine's record."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer or answer.startswith(b'{"failed":"'):
            found = msgspec.json.decode(answer, type=Failed).failed if answer else "it ended"
            raise MemfitError("the fake engine has no answer", found=found)
        return msgspec.json.decode(answer, type=Prediction)

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def phantom_of(job: GridJob, keep: Path | None) -> Prediction:
    """The phantom's record, from the folder where it was kept."""
    path = keep / f"{hashlib.sha256(job.name.encode()).hexdigest()[:16]}.json" if keep else None
    if path is not None and path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Prediction)
    described = describe_job(job.model, dict(job.settings))
    prediction = predict_on_phantom(described, parse_device(job.device), num_steps=STEPS)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(prediction))
    return prediction


def compare(job: GridJob, fake: Prediction, phantom: Prediction) -> Compared:
    """Lay the last step of one job beside itself."""
    assert fake.timeline is not None
    assert phantom.timeline is not None
    own = events_of(fake.timeline, STEPS)
    workspaces = fleeting(phantom.timeline, STEPS) if any(a.kind == "cudnn" for a in phantom.assumptions) else []
    seen = {event.key[1] for event in own}
    workspaces = [span for span in workspaces if rounded(span.num_bytes) not in seen]
    other = events_of(phantom.timeline, STEPS, workspaces)
    peaks = [int(side.levels[1].figure.value or 0) for side in (fake, phantom)]
    head = f"allocated {peaks[0] / MIB:9.2f} fake {peaks[1] / MIB:9.2f} phantom ({peaks[0] / peaks[1] - 1:+.3%})"
    if workspaces:
        largest = max(span.num_bytes for span in workspaces)
        head += f", {len(workspaces)} workspaces up to {largest / MIB:.1f} MiB set aside"
    return _judged(job.name, head, own, other, bool(workspaces))


def _judged(name: str, head: str, own: list[Event], other: list[Event], aside: bool) -> Compared:
    parted = first_difference(own, other)
    if parted is None:
        verdict: Verdict = "equal beside workspaces" if aside else "equal"
        text = f"{head}  all {len(other)} events agree"
        return Compared(name=name, verdict=verdict, text=text, phantom_events=tuple(signed(other)))
    index, left, right = parted
    verdict = "equal peak" if peak_of(own) == peak_of(other) else "differ"
    text = f"{head}  {verdict}, differ at event {index} of {len(other)}:\n    fake    {left}\n    phantom {right}"
    return Compared(name=name, verdict=verdict, text=text)


def compared(job: GridJob, side: FakeSide, keep: Path | None) -> Compared:
    """Both engines on one job."""
    try:
        return compare(job, side.predict(job), phantom_of(job, keep))
    except MemfitError as error:
        return Compared(name=job.name, verdict="not compared", text=f"not compared: {error.what}; {error.found}"[:200])


def main() -> int:
    """Print one line per job; 1 when some differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake-python", default=sys.executable)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    side = FakeSide(asked.fake_python)
    counts: dict[str, int] = {}
    written: dict[str, tuple[int, ...]] = {}
    for job in grid():
        if asked.only in job.name:
            row = compared(job, side, asked.keep)
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
            print(f"{row.name:44} {row.text}", flush=True)
            if row.name in RECORDED and row.phantom_events:
                written[row.name] = row.phantom_events
    side.close()
    if asked.write:
        asked.write.write_bytes(gzip.compress(msgspec.json.encode(written), mtime=0))
    print(f"{sum(counts.values())} jobs: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 0 if set(counts) <= {"equal", "equal beside workspaces"} else 1


if __name__ == "__main__":
    sys.exit(main())
