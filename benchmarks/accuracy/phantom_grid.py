"""Where do the two engines of `memfit predict` differ first? The phantom GPU as the oracle of the fake tensors.

    python -m benchmarks.accuracy.phantom_grid [--fake-python PYTHON] [--only TEXT] [--device cuda:a100-40gb]

Run with a CUDA build of torch. Fake tensors need a torch that does not look for a driver: `--fake-python` names an
interpreter with a CPU build and memfit (default: this one). For every job of the grid, allocations and releases of
the last step are laid beside each other in order, rounded to the allocator's 512 bytes; the first that differs is named
with the operator that the fake engine saw there and the module and line that the phantom saw.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memfit.errors import MemfitError
from memfit.job.description import describe_job
from memfit.predict.devices import parse_device
from memfit.predict.phantom.engine import predict_on_phantom
from memfit.records.prediction import Prediction
from memfit.records.timeline import Span, Timeline
from memfit.units import MIB

STEPS = 2
ATTENTION = f"{Path(__file__).with_name('phantom_grid_job.py')}:attend"
MODELS: dict[str, dict[str, list[str]]] = {
    "mlp": {"optimizer": ["sgd", "adam", "adamw", "rmsprop"], "precision": ["fp32", "bf16"]},
    "gpt": {"optimizer": ["adamw", "sgd"], "precision": ["fp32", "bf16"]},
    ATTENTION: {"attention": ["flash", "efficient", "math", "eager"], "precision": ["bf16"], "optimizer": ["adamw"]},
    "gan": {"optimizer": ["adam"]},
    "cnn": {"optimizer": ["adam", "sgd"], "precision": ["fp32", "bf16"]},
    "resnet18": {"optimizer": ["sgd"], "precision": ["fp32"]},
}
"""Workloads and the settings that are crossed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One allocation or release."""

    is_alloc: bool
    num_bytes: int
    span: Span

    @property
    def key(self) -> tuple[bool, int]:
        """What two engines must agree on."""
        return self.is_alloc, max(512, -(-self.num_bytes // 512) * 512)

    def __str__(self) -> str:
        """As a person reads it."""
        by = ", ".join(part for part in (self.span.operator, self.span.module, self.span.line, self.span.phase) if part)
        return f"{'alloc' if self.is_alloc else 'free'} {self.num_bytes} ({by})"


def grid() -> Iterator[tuple[str, dict[str, str]]]:
    """Every job: a workload and its settings."""
    for model, axes in MODELS.items():
        for values in itertools.product(*axes.values()):
            yield model, dict(zip(axes, values, strict=True))


def events_of(timeline: Timeline, step: int) -> list[Event]:
    """Allocations and releases of one step on the GPU, in order."""
    start = next((mark.start for mark in timeline.phases if mark.step == step), 0)
    found: dict[int, Event] = {}
    for span in timeline.spans:
        if not span.device.startswith("cuda") or not span.num_bytes:
            continue  # nothing is allocated for an empty tensor
        if span.start >= start:
            found[span.start] = Event(is_alloc=True, num_bytes=span.num_bytes, span=span)
        if span.end is not None and span.end >= start:
            found[span.end] = Event(is_alloc=False, num_bytes=span.num_bytes, span=span)
    return _settled([found[index] for index in sorted(found)])


def _settled(events: list[Event]) -> list[Event]:
    """Releases in a row by size: autocast empties its cache in the order of addresses, which means nothing."""
    settled: list[Event] = []
    for is_alloc, together in itertools.groupby(events, key=lambda event: event.is_alloc):
        run = list(together)
        settled += run if is_alloc else sorted(run, key=lambda event: event.num_bytes)
    return settled


def first_difference(fake: list[Event], phantom: list[Event]) -> tuple[int, Event | None, Event | None] | None:
    """Where the two lists part, or None."""
    for index, (left, right) in enumerate(itertools.zip_longest(fake, phantom)):
        if left is None or right is None or left.key != right.key:
            return index, left, right
    return None


def predict_fake(python: str, model: str, settings: dict[str, str], device: str) -> Prediction:
    """The fake engine's record, from an interpreter of its own."""
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = [python, "-m", "memfit", "predict", model, *given, "--device", device, "--engine", "fake", "--json"]
    done = subprocess.run([*command, "--steps", str(STEPS)], capture_output=True, text=True, check=False, timeout=600)
    if not done.stdout.startswith("{"):
        raise MemfitError("the fake engine has no answer", found=(done.stderr.strip().splitlines() or ["nothing"])[-1])
    return msgspec.json.decode(done.stdout, type=Prediction)


def line_of(python: str, model: str, settings: dict[str, str], device: str) -> tuple[bool, str]:
    """Whether the engines agree on one job, and the words for it."""
    name = " ".join([model.rpartition(":")[2], *settings.values()])
    try:
        phantom = predict_on_phantom(describe_job(model, dict(settings)), parse_device(device), num_steps=STEPS)
        fake = predict_fake(python, model, settings, device)
    except MemfitError as error:
        return False, f"{name:28} not compared: {error.what}; {error.found}"[:220]
    assert fake.timeline is not None
    assert phantom.timeline is not None
    sides = events_of(fake.timeline, STEPS), events_of(phantom.timeline, STEPS)
    peaks = [int((side.level("allocated") or side.levels[0].figure).value or 0) for side in (fake, phantom)]
    head = (
        f"{name:28} allocated {peaks[0] / MIB:9.2f} fake {peaks[1] / MIB:9.2f} phantom ({peaks[0] / peaks[1] - 1:+.3%})"
    )
    parted = first_difference(*sides)
    if parted is None:
        return True, f"{head}  all {len(sides[1])} events agree"
    index, left, right = parted
    return False, f"{head}  differ at event {index} of {len(sides[1])}:\n    fake    {left}\n    phantom {right}"


def main() -> int:
    """Print one line per job; 1 when some differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake-python", default=sys.executable)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cuda:a100-40gb")
    asked = parser.parse_args()
    agreed, total = 0, 0
    for model, settings in grid():
        if asked.only not in " ".join([model, *settings.values()]):
            continue
        agrees, text = line_of(asked.fake_python, model, settings, asked.device)
        agreed, total = agreed + agrees, total + 1
        print(text, flush=True)
    print(f"{agreed} of {total} jobs agree in every event of the last step")
    return 0 if agreed == total else 1


if __name__ == "__main__":
    sys.exit(main())
