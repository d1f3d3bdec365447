"""A training program with a short real peak: the MLP, with one step of 8192 rows in the middle.

    python -m benchmarks.overhead.torch_peak_job ANSWER.json NUM_STEPS [MemTracker | torch.profiler]

It knows its own true peak. memfit's marks reset the kernel's high-water mark, so the program reads the mark itself
right before each of the moments at which that happens (start of forward, backward and update, end of update), and
keeps the largest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.overhead.torch_models import Training, mlp_batch
from benchmarks.overhead.torch_tools import INSIDE, MemTracker, Off, TorchProfiler

LARGE_ROWS = 8192


class OwnPeak:
    """The largest value the kernel's high-water mark ever had, and the largest a tracker of tensors ever said."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.tensor_peak_bytes: int | None = None

    def read(self, *_: object) -> None:
        """Look at the mark."""
        text = Path("/proc/self/status").read_text()
        self.peak_bytes = max(self.peak_bytes, int(text.partition("VmHWM:")[2].split(None, 1)[0]) * 1024)


def train(training: Training, tool: Off, num_steps: int, own: OwnPeak) -> None:
    """All steps, the large one in the middle."""
    training.optimizer.register_step_post_hook(own.read)  # an optimizer's own hooks run before global ones
    large = mlp_batch(LARGE_ROWS)
    for number in range(num_steps):
        inputs, labels = large if number == num_steps // 2 else training.batch
        tool.before()
        training.optimizer.zero_grad()
        own.read()
        loss = training.loss(training.model(inputs), labels)
        own.read()
        loss.backward()
        own.read()
        training.optimizer.step()
        tool.after()
        if isinstance(tool, MemTracker):  # it begins anew at every step
            own.tensor_peak_bytes = max(own.tensor_peak_bytes or 0, tool.peak_bytes())


def profiled_peak_bytes(tool: TorchProfiler, folder: Path) -> int:
    """The largest running total among the profiler's memory events."""
    trace = folder / "trace.json"
    tool.profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]")


def main() -> None:
    """Train, then write what the program knows of itself."""
    answer, num_steps = Path(sys.argv[1]), int(sys.argv[2])
    training, own = Training("mlp"), OwnPeak()
    tool = INSIDE[sys.argv[3] if len(sys.argv) > 3 else "off"](training, str(answer.parent))
    tool.start()
    train(training, tool, num_steps, own)
    tool.stop()
    own.read()
    true_peak_bytes = own.peak_bytes  # before the tool makes its report, which takes memory of its own
    if isinstance(tool, TorchProfiler):
        own.tensor_peak_bytes = profiled_peak_bytes(tool, answer.parent)
    answer.write_text(json.dumps({"true_peak_bytes": true_peak_bytes, "tensor_peak_bytes": own.tensor_peak_bytes}))


if __name__ == "__main__":
    main()
