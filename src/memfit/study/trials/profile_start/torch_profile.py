"""torch.profiler schedule of a trial: which steps are traced, and where the trace goes.

Two steps are skipped (the first allocates, the second repeats), one warms the profiler up, three are recorded. A
training with fewer steps leaves what was recorded of it when it ends. Read in torch 2.13.
"""

import atexit
import os

import torch

SKIPPED, WARM_UP, RECORDED = 1, 1, 3


class StepProfile:
    """The profiler of this process; it begins with the first optimizer step: a worker process never takes one."""

    def __init__(self, folder):
        self.folder = folder
        self.profiler = None
        self.num_steps = 0
        self.is_over = False

    def after_step(self, *_):
        """One optimizer step is done."""
        if self.is_over:
            return
        try:
            self.num_steps += 1
            if self.profiler is None:
                self._begin()
            else:
                self.profiler.step()
            if self.num_steps > SKIPPED + WARM_UP + RECORDED:
                self.end()
        except Exception:
            self.end()

    def _begin(self):
        os.makedirs(self.folder, exist_ok=True)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=SKIPPED, warmup=WARM_UP, active=RECORDED, repeat=1),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(self.folder),
            profile_memory=True,
            record_shapes=True,
        )
        self.profiler.start()
        atexit.register(self.end)

    def end(self):
        """Write the trace; the hook stays, because torch is just going through its hooks, and does nothing."""
        self.is_over = True
        profiler, self.profiler = self.profiler, None
        if profiler is not None:
            profiler.stop()


def hook(folder):
    """Have every optimizer step of this process heard."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(StepProfile(folder).after_step)
