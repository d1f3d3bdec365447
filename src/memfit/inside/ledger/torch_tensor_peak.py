"""Peak of tensor memory inside of a `with` block, and which tensors make it up; exact, the same on every machine."""

from collections import namedtuple

import torch.optim.optimizer as torch_optimizer

from . import live_set
from .torch_trace import HOST, StepTrace

MAX_BIRTHS = 1000000

TensorPeak = namedtuple("TensorPeak", "peak_bytes phase shares is_partial")
"""The peak in bytes, the phase it lay in, and rows of category, module, birth phase and bytes, the largest first."""


class TensorWatch:
    """Counts every tensor storage made or used inside of the block, through any number of steps."""

    def __init__(self):
        self._trace = StepTrace(1, [], max_births=MAX_BIRTHS)
        self._handles = []

    def __enter__(self):
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._update_begins),
            torch_optimizer.register_optimizer_step_post_hook(self._update_ended),
        ]
        self._trace.open()
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()
        self._trace.close()

    def peak(self, device=HOST):
        """The highest point of one device; callable once the block is left."""
        storages, events = self._trace.understand()
        found = live_set.find_peak(events, storages, device)
        rows = live_set.shares(found.alive, storages)
        phase = live_set.phase_at(events, found.peak_index, storages)
        return TensorPeak(found.peak_bytes, phase, rows, self._trace.tracer.is_full)

    def _update_begins(self, optimizer, _args, _kwargs):
        self._trace.update_begins(optimizer, None)

    def _update_ended(self, _optimizer, _args, _kwargs):
        self._trace.tracer.phase_outside = "forward"
