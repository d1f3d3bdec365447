"""Chooses the steps whose tensors are traced, and writes what was seen of each.

The second step is the first that looks like all others (the first one creates the optimizer's state); after it
every k-th is traced. With n optimizers taking turns, n steps in a row are traced each time. Out of turn are traced
  - a step whose input is larger than that of any traced one: it is likely to be the peak;
  - the step after the process was larger than in any traced one: steps repeat, so that is the peak once more;
  - the first evaluation pass, one with a larger input, and one after the process was larger than ever.
The update is the same long list of small operators at every step, so it is traced once per optimizer and laid behind
the following traced steps from memory; the facts say so.
"""

import functools
import os
import sys
import time
import weakref

import torch

from . import live_set
from .torch_trace import HOST, HeapWalks, StepTrace
from .torch_tracer import is_compiled

MAX_TIMELINES = 8
LARGER_INPUT = 1.02
"""An input this much larger than any traced one is traced; with inputs that grow by and by, not every one is."""
LARGER_PROCESS, LEAST_LARGER_BYTES = 1.005, 1 << 20
"""A process this much larger than in any traced step is worth another."""


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
        self._peaking = weakref.WeakSet()
        """Optimizers whose update may hold the peak: it is traced every time."""
        self._shapes = weakref.WeakKeyDictionary()
        """Optimizer: what the last step that was written looked like."""
        self._highest_resident_bytes = 0
        self._tried_bytes = {}
        """The size of the process for which a step (True) or an evaluation pass (False) was last traced out of turn."""
        self._num_wanted = 0
        self._largest_input = {}
        """Numbers in the largest traced input, of steps (True) and of evaluation passes (False)."""
        self._num_timelines = 0
        self._walks = HeapWalks()
        self._trace = None
        self._is_fresh = False
        """Whether the forward pass of the traced step is not marked yet."""
        self._is_evaluation = False
        """Whether what is traced is an evaluation pass."""
        self._lingering = []
        """Traces that ended in another thread than they began in."""
        self._noted = set()

    @_careful
    def forward_begins(self, module, inputs):
        """Open a trace when this step is due; says whether this step is traced."""
        self._lingering = [trace for trace in self._lingering if not trace.abandon()]
        if self._trace is None and self._is_due(self._ledger.marks.step, _num_numbers(inputs)):
            self._open(module)
            self._is_fresh = self._trace is not None
        elif self._trace is not None:
            self._trace.tracer.phase_outside = "forward"
        return self._trace is not None

    def forward_marked(self):
        """The forward pass is marked: what the process took before it, in an evaluation perhaps, is not this step's."""
        if self._is_fresh:
            self._is_fresh = False
            self._ledger.marks.step_peak_bytes = 0

    @_careful
    def evaluation_begins(self, module, inputs):
        """Open a trace for one evaluation pass, unless a step is being traced; says whether this one is."""
        if self._trace is None and self._is_larger(False, _num_numbers(inputs), due=self._wants_the_maximum(False)):
            self._open(module)
            self._is_evaluation = self._trace is not None
        return self._is_evaluation

    @_careful
    def evaluation_ended(self):
        """Close and write the trace of an evaluation pass."""
        trace = self._trace
        if trace is not None and self._is_evaluation:
            resident_peak_bytes = self._ledger.marks.high_water.read_status()
            trace.close()
            if resident_peak_bytes > self._highest_resident_bytes:
                self._highest_resident_bytes = resident_peak_bytes
                trace.note_untouched()
                storages, events = trace.understand()
                self._write(trace, storages, events, resident_peak_bytes, "evaluation")
            self.abandon()

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
            is_peaking = optimizer in self._peaking
            self._trace.update_begins(optimizer, None if is_peaking else self._updates.get(optimizer))

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
        """Drop the trace that is open; one that cannot be left in this thread lingers until its own comes by."""
        trace, self._trace = self._trace, None
        self._is_evaluation = False
        if trace is not None and not trace.abandon():
            self._lingering.append(trace)

    def forked(self):
        """A child that was forked in the middle of a traced step traces nothing of it."""
        self.abandon()

    def _is_due(self, step, input_size):
        num_optimizers = len(self._optimizers)
        if not num_optimizers:
            return False
        if self._wants_the_maximum(True):
            self._num_wanted = num_optimizers
        due = 2 <= step < 2 + num_optimizers or step % (self._ledger.every * num_optimizers) < num_optimizers
        larger = self._is_larger(True, input_size, due=due)
        if self._num_wanted and not due and not larger:
            self._num_wanted -= 1
            return True
        return due or larger

    def _is_larger(self, trains, input_size, due=False):
        """Whether an input is larger than any traced one of its kind; for a step, once one was traced."""
        known = self._largest_input.get(trains)
        if due or (not trains if known is None else input_size > LARGER_INPUT * known):
            self._largest_input[trains] = max(known or 0, input_size)
            return True
        return False

    def _wants_the_maximum(self, trains):
        """Whether the process was larger than in anything that was traced; said once for each such size."""
        highest_bytes = self._ledger.marks.highest_bytes
        known_bytes = max(self._highest_resident_bytes, self._tried_bytes.get(trains, 0))
        if not self._largest_input or not _is_beyond(highest_bytes, known_bytes):
            return False
        self._tried_bytes[trains] = highest_bytes
        return True

    def _open(self, module):
        if torch._C._len_torch_dispatch_stack():
            self._tell("another dispatch mode is active, so no step is traced for the ledger")
        elif is_compiled(module):
            self._tell("the model is compiled; compiled code hides its tensors, so no step is traced for the ledger")
        else:
            step, optimizers = self._ledger.marks.step, list(self._optimizers)
            self._trace = StepTrace(step, optimizers, self._ledger.resident.read, walks=self._walks)
            self._trace.open(module)

    def _give_up(self, error):
        self.abandon()
        self._tell(f"a step could not be traced for the ledger: {type(error).__name__}: {error}")

    def _tell(self, message):
        if message not in self._noted and len(self._noted) < 5:
            self._noted.add(message)
            self._ledger.marks.note(message)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _think(self, trace, optimizer):
        """Understand and write this step, unless it is the same as before and the process was no larger."""
        resident_peak_bytes = self._ledger.marks.step_peak_bytes
        is_new = trace.shape() != self._shapes.get(optimizer)
        if not is_new and resident_peak_bytes <= self._highest_resident_bytes:
            return
        if trace.update_was_traced or not _is_beyond(resident_peak_bytes, trace.seen_bytes):
            self._highest_resident_bytes = max(self._highest_resident_bytes, resident_peak_bytes)
        else:  # not read while the process was largest
            self._peaking.add(optimizer)
            self._num_wanted = len(self._optimizers)
        self._shapes[optimizer] = trace.shape()
        trace.note_untouched()
        storages, events = trace.understand()
        if trace.update_was_traced and trace.update_is_steady(storages):
            self._updates[optimizer] = trace.update_template(storages)
            self._shapes.pop(optimizer)
        self._write(trace, storages, events, resident_peak_bytes)

    def _write(self, trace, storages, events, resident_peak_bytes, phase_of_all=None):
        for device in [HOST, *sorted({s.device for s in storages} - {HOST, "meta"})]:
            found = live_set.find_peak(events, storages, device)
            phase = phase_of_all or live_set.phase_at(events, found.peak_index, storages)
            is_maximum = self._ledger.is_new_maximum(device, found.peak_bytes, resident_peak_bytes)
            facts = {
                "pid": os.getpid(),
                "step": trace.step,
                "time_ns": time.monotonic_ns(),
                "device": device,
                "tensor_peak_bytes": found.peak_bytes,
                "peak_phase": phase,
                "tensors": live_set.shares(found.alive, storages, trace.untouched),
                "resident_peak_bytes": resident_peak_bytes,
                "update_is_reused": not trace.update_was_traced,
                "is_partial": trace.tracer.is_full,
            }
            facts.update(self._host_facts(trace, storages, phase_of_all) if device == HOST else _device_facts(device))
            if is_maximum and device == HOST and self._num_timelines < MAX_TIMELINES:
                self._num_timelines += 1
                facts["timeline"] = live_set.timeline(events, storages, trace.step)
            self._ledger.write(facts, is_maximum)

    def _host_facts(self, trace, storages, phase_of_all):
        facts = self._ledger.process_facts()
        moment = trace.moment(storages)
        if moment is not None and phase_of_all:
            moment["phase"] = phase_of_all
        facts["moment"] = moment
        return facts


def _is_beyond(num_bytes, known_bytes):
    """Whether a process of this size was larger than what is known."""
    return num_bytes > LARGER_PROCESS * known_bytes + LEAST_LARGER_BYTES


def _num_numbers(inputs):
    """Numbers in the tensors that a module is called with, by position or by name."""
    frame, keywords = sys._getframe(1), None
    for _ in range(8):  # a global hook is not handed the arguments with names; they stand in the frame of the call
        frame = frame.f_back
        if frame is None or keywords is not None:
            break
        if frame.f_code.co_name in ("inner", "_call_impl"):
            keywords = frame.f_locals.get("kwargs")
    values = [*inputs, *(keywords.values() if isinstance(keywords, dict) else ())]
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))


def _device_facts(device):
    """What the caching allocator of a device holds (never run on the machine this was written on)."""
    kind = torch.device(device).type
    read = getattr(getattr(torch, kind, None), "memory_stats", None)
    stats = read(device) if read else {}
    return {
        "allocator_reserved_bytes": stats.get("reserved_bytes.all.peak"),
        "allocator_allocated_bytes": stats.get("allocated_bytes.all.peak"),
    }
