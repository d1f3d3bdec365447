"""Layout of a run folder on disk: names, versions, binary samples; standard library only.

The sampler process writes by this file and `records.files` reads by it, so neither can drift from the other.

    run.json          who, what, when, settings, environment; written once, before the job starts
    samples.bin       fixed-size records at the full rate (SAMPLE below); a torn tail is cut off
    events.jsonl      everything slower, one JSON object a line; a torn last line is dropped
    marks-PID.txt     steps and phases, written by the job's own Python process
    ledger-PID.jsonl  what the tensors of a traced step were, written by the job's own Python process
"""

from __future__ import annotations

import struct

FORMAT_NAME = "memfit-run"
FORMAT_VERSION = 1

HEADER_FILE = "run.json"
SAMPLES_FILE = "samples.bin"
EVENTS_FILE = "events.jsonl"
MARKS_PREFIX = "marks-"
LEDGER_PREFIX = "ledger-"

SAMPLE = struct.Struct("<QIHHQQ")
"""time_us since the run began, late_us, process index, flags, resident_bytes, shared_bytes (file and shmem)."""

SAMPLE_FIELDS = ("time_us", "late_us", "process", "flags", "resident_bytes", "shared_bytes")

FLAG_FAILED = 1
"""The counters of this process could not be read at this tick; the byte fields mean nothing."""
