"""Ledger of this process, apart from torch: reads resident parts, heaps and import costs, and writes them."""

import atexit
import json
import os
import time

from ..descriptors import close, open_high
from ..marks import own_name
from ..resident import Resident, read_parts
from .heaps import Heaps
from .import_costs import ImportCosts

MAX_LINES = 200
"""After this many traced steps only a new maximum is written: a long run has a bounded file."""


class LedgerFile:
    """Import costs and heaps from the start of the process, and ledger-PID.jsonl."""

    def __init__(self, marks, every):
        self.marks = marks
        self.every = every
        self.startup = read_parts()
        """Resident before the ledger itself did anything: the bare interpreter."""
        self.startup_heaps = Heaps()
        self.resident = Resident()
        self.imports = ImportCosts(self.resident)
        self._num_lines = 0
        self._high_bytes = {}
        self._pid = os.getpid()

    def start(self):
        """Begin to count imports."""
        self.imports.start()
        atexit.register(self.process_ended)

    def stop(self):
        """Count no more."""
        atexit.unregister(self.process_ended)
        self.process_ended()
        self.imports.stop()
        self.resident.close()

    def process_ended(self):
        """Write what is known without any step; of a forked child that would be its parent's story."""
        if os.getpid() != self._pid:
            return
        facts = {
            "pid": self._pid, "step": 0, "time_ns": time.monotonic_ns(), "device": "cpu", "tensor_peak_bytes": 0,
            "peak_phase": "", "tensors": [], "resident_peak_bytes": 0,
        }  # fmt: skip
        self.write({**facts, **self.process_facts()}, True)

    def forked(self):
        """In a forked child: own counters, own file."""
        self.resident.reopen()
        self._num_lines = 0
        self._high_bytes = {}

    def is_new_maximum(self, device, tensor_peak_bytes, resident_peak_bytes):
        """Whether one of the two peaks of this device was never as high."""
        tensors, resident = self._high_bytes.get(device, (0, 0))
        self._high_bytes[device] = (max(tensors, tensor_peak_bytes), max(resident, resident_peak_bytes))
        return tensor_peak_bytes > tensors or resident_peak_bytes > resident

    def write(self, facts, is_maximum):
        """Append one line of facts about a traced step; a full disk is silently the end of the ledger."""
        if self._num_lines >= MAX_LINES and not is_maximum:
            return
        self._num_lines += 1
        data = json.dumps(facts, separators=(",", ":")).encode() + b"\n"
        descriptor = -1
        try:
            path = os.path.join(self.marks.folder, "ledger-" + own_name() + ".jsonl")
            descriptor = open_high(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, data)
        except OSError:
            pass
        close(descriptor)

    def process_facts(self):
        """What every line of facts says about the process as a whole."""
        return {
            "startup_anonymous_bytes": self.startup["anonymous_bytes"],
            "startup_file_bytes": self.startup["file_bytes"],
            "startup_heap": self.startup_heaps.facts(),
            "imports": self.imports.facts(),
            "imports_heap": self.imports.heap_growth,
            "heap": Heaps().facts(),
        }
