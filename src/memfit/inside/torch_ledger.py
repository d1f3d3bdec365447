"""Which steps are traced, and what is written about each of them?

The second step is the first that looks like all others (the first one creates the optimizer's state); after it
every k-th is traced. With n optimizers taking turns, n steps in a row are traced each time. The update is the same
long list of small operators at every step, so it is traced once per optimizer and laid behind the following traced
steps from memory; the facts say so.
"""

import functools
import os
import time
import weakref

import torch

from . import replay
from .heaps import Heaps
from .torch_trace import HOST, Trace
from .torch_tracer import is_compiled

MAX_TIMELINES = 8


def _careful(method):
    """An error of the ledger becomes a note; it never reaches the program."""

    @functools.wraps(method)
    def call(self, *args):
        try:
            return method(self, *args)
        except Exception as error:
            self._give_up(error)
            return None

    return call


class TorchLedger:
    """Traces single steps of this process; nothing it does may reach the program, not even its errors."""

    def __init__(self, ledger):
        self._ledger = ledger
        self._optimizers = weakref.WeakKeyDictionary()
        self._updates = weakref.WeakKeyDictionary()
        """Optimizer: the storages of its update, once traced."""
        self._shapes = weakref.WeakKeyDictionary()
        """Optimizer: what the last step that was written looked like."""
        self._highest_resident_bytes = 0
        self._largest_input = 0
        self._num_timelines = 0
        self._trace = None
        self._lingering = []
        """Traces that ended in another thread than they began in."""
        self._told = set()

    @_careful
    def forward_begins(self, module, inputs):
        """Open a trace when this step is due; says whether this step is traced."""
        self._lingering = [trace for trace in self._lingering if not trace.abandon()]
        if self._trace is None and self._is_due(self._ledger.marks.step, inputs):
            self._open(module)
        elif self._trace is not None:
            self._trace.tracer.phase_outside = "forward"
        return self._trace is not None

    def backward_begins(self):
        """Operators that no autograd node asks for belong to the backward pass from here."""
        if self._trace is not None:
            self._trace.tracer.phase_outside = "backward"

    def backward_ended(self):
        """What follows is another forward pass, until the update begins."""
        if self._trace is not None:
            self._trace.tracer.phase_outside = "forward"

    @_careful
    def update_begins(self, optimizer):
        """Learn the optimizer; gradients are whatever its parameters hold now."""
        self._optimizers.setdefault(optimizer, len(self._optimizers))
        if self._trace is not None:
            self._trace.update_begins(optimizer, self._updates.get(optimizer))

    @_careful
    def update_goes_on(self, optimizer):
        """A closure's backward pass ended inside of the update, and perhaps not the last: everything is traced."""
        if self._trace is not None:
            self._trace.update_begins(optimizer, None)

    @_careful
    def step_ended(self, optimizer):
        """Close the trace, think, and write."""
        if self._trace is not None:
            self._trace.close()
            self._think(self._trace, optimizer)
            self.abandon()

    @_careful
    def abandon(self):
        """Let go of the trace that is open; one that cannot be left in this thread lingers until its own comes by."""
        trace, self._trace = self._trace, None
        if trace is not None and not trace.abandon():
            self._lingering.append(trace)

    def forked(self):
        """A child that was forked in the middle of a traced step traces nothing of it."""
        self.abandon()

    def _is_due(self, step, inputs):
        num_optimizers = len(self._optimizers)
        if not num_optimizers:
            return False
        due = 2 <= step < 2 + num_optimizers or step % (self._ledger.every * num_optimizers) < num_optimizers
        input_size = sum(tensor.numel() for tensor in inputs if isinstance(tensor, torch.Tensor))
        if due or (self._largest_input and input_size > 1.1 * self._largest_input):
            self._largest_input = max(self._largest_input, input_size)
            return True
        return False

    def _open(self, module):
        if torch._C._len_torch_dispatch_stack():
            self._tell("another dispatch mode is active, so no step is traced for the ledger")
        elif is_compiled(module):
            self._tell("the model is compiled; compiled code hides its tensors, so no step is traced for the ledger")
        else:
            self._trace = Trace(self._ledger.marks.step, list(self._optimizers), self._ledger.resident.read)
            self._trace.open(module)

    def _give_up(self, error):
        self.abandon()
        self._tell(f"a step could not be traced for the ledger: {type(error).__name__}: {error}")

    def _tell(self, message):
        if message not in self._told and len(self._told) < 5:
            self._told.add(message)
            self._ledger.marks.note(message)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _think(self, trace, optimizer):
        """Understand and write this step, unless it is the same as before and the process was no larger."""
        resident_peak_bytes = self._ledger.marks.step_peak_bytes
        is_new = trace.shape() != self._shapes.get(optimizer)
        if not is_new and resident_peak_bytes <= self._highest_resident_bytes:
            return
        self._highest_resident_bytes = max(self._highest_resident_bytes, resident_peak_bytes)
        self._shapes[optimizer] = trace.shape()
        storages, events = trace.understand()
        if trace.update_was_traced and trace.update_is_steady(storages):
            self._updates[optimizer] = trace.update_template(storages)
            self._shapes.pop(optimizer)
        self._write(trace, storages, events, resident_peak_bytes)

    def _write(self, trace, storages, events, resident_peak_bytes):
        for device in [HOST, *sorted({s.device for s in storages} - {HOST, "meta"})]:
            found = replay.find_peak(events, storages, device)
            phase = replay.phase_at(events, found.peak_index, storages)
            is_maximum = self._ledger.is_new_maximum(device, found.peak_bytes, resident_peak_bytes)
            facts = {
                "pid": os.getpid(),
                "step": trace.step,
                "time_ns": time.monotonic_ns(),
                "device": device,
                "tensor_peak_bytes": found.peak_bytes,
                "peak_phase": phase,
                "tensors": replay.shares(found.alive, storages),
                "resident_peak_bytes": resident_peak_bytes,
                "update_is_reused": not trace.update_was_traced,
                "is_partial": trace.tracer.is_full,
            }
            facts.update(self._host_facts(trace, storages) if device == HOST else _device_facts(device))
            if is_maximum and device == HOST and self._num_timelines < MAX_TIMELINES:
                self._num_timelines += 1
                facts["timeline"] = replay.timeline(events, storages, trace.step)
            self._ledger.write(facts, is_maximum)

    def _host_facts(self, trace, storages):
        facts = self._ledger.process_facts()
        facts["heap"] = Heaps().facts()
        facts["moment"] = trace.moment(storages)
        return facts


def _device_facts(device):
    """What the caching allocator of a device holds (never run on the machine this was written on)."""
    kind = torch.device(device).type
    read = getattr(getattr(torch, kind, None), "memory_stats", None)
    stats = read(device) if read else {}
    return {
        "allocator_reserved_bytes": stats.get("reserved_bytes.all.peak"),
        "allocator_allocated_bytes": stats.get("allocated_bytes.all.peak"),
    }
