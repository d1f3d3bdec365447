"""Writer of run folders while the job runs; a kill at any moment leaves a readable one.

Standard library only: the sampler process writes through this. Samples are appended as fixed-size records and events as
whole lines, both with plain `write` calls on append-only files: the kernel holds every finished call, whatever dies.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from memfit.records.files import layout
from memfit.records.files.only_text import only_text

if TYPE_CHECKING:
    from pathlib import Path  # not loaded: the sampler's own size is the floor of what a job's high-water mark can show


class RunWriter:
    """Appends to a run folder; a full disk stops the writing, never the caller."""

    def __init__(self, folder: str | Path) -> None:
        self.failure: OSError | None = None
        """The first error of the disk; after it nothing more is written."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._samples = os.open(os.path.join(folder, layout.SAMPLES_FILE), flags, 0o644)
        self._events = os.open(os.path.join(folder, layout.EVENTS_FILE), flags, 0o644)
        self._pending = bytearray()

    def sample(
        self, time_us: int, late_us: int, process: int, flags: int, resident_bytes: int, shared_bytes: int
    ) -> None:
        """Keep one sample until the next flush."""
        self._pending += layout.SAMPLE.pack(
            time_us, min(late_us, 0xFFFFFFFF), process, flags, resident_bytes, shared_bytes
        )

    def event(self, kind: str, time_us: int, **facts: object) -> None:
        """Append one event line at once."""
        line = json.dumps({"kind": kind, "time_us": time_us, **facts}, separators=(",", ":")) + "\n"
        self._append(self._events, line.encode())

    def flush(self) -> None:
        """Append the kept samples."""
        if self._pending:
            self._append(self._samples, bytes(self._pending))
            self._pending.clear()

    def close(self) -> None:
        """Flush and close both files."""
        self.flush()
        os.close(self._samples)
        os.close(self._events)

    def _append(self, descriptor: int, data: bytes) -> None:
        if self.failure is not None:
            return
        try:
            written = os.write(descriptor, data)
            if written != len(data):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(28, "No space left on device")
        except OSError as error:
            self.failure = error


def write_header(folder: str | Path, header: dict[str, object]) -> None:
    """Write run.json whole or not at all; bytes of a command or a path that are no text stand there as U+FFFD."""
    target = os.path.join(folder, layout.HEADER_FILE)
    draft = f"{target}.part"
    with open(draft, "w", encoding="utf-8") as stream:
        facts = {"format": layout.FORMAT_NAME, "format_version": layout.FORMAT_VERSION, **header}
        json.dump(only_text(facts), stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(draft, target)
