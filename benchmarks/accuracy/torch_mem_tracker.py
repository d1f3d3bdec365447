"""What does PyTorch's own MemTracker say of a job, on the same fake CUDA tensors that memfit traces?

`torch.distributed._tools.mem_tracker` (torch 2.13) sums the storages that are alive, rounded to 512 bytes. It knows
neither workspaces nor what the allocator reserves. Where it fails on a job, the reason is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed._tools.mem_tracker import MemTracker

from memfit.job.description import JobDescription
from memfit.predict.child.messages import TraceRequest
from memfit.predict.devices.parse import parse_device
from memfit.predict.fake.choose_route import on_device
from memfit.predict.fake.patches.fake_mode import patched
from memfit.predict.fake.recording import Recording

DEVICE = "cuda:0"


def tracked_peak_bytes(build: Callable[[], Any], gpu: str = "cuda", num_steps: int = 2) -> int:
    """The peak of live bytes on the GPU over some steps, by MemTracker."""
    request = TraceRequest(
        job=JobDescription(kind="function", target="benchmark"), device="cuda", capability=parse_device(gpu).capability
    )
    recording = Recording()
    with on_device(request, recording), patched(recording.mode, recording.shadow), recording.mode, recording.shadow:
        training = build()
        tracker = MemTracker()
        tracker.track_external(training.model, training.optimizer)
        with tracker:
            for _ in range(num_steps):
                training.step()
                tracker.reset_mod_stats()  # or it refuses a second step
        peaks = {str(device): snapshot for device, snapshot in tracker.get_tracker_snapshot("peak").items()}
    return int(peaks[DEVICE]["Total"])
