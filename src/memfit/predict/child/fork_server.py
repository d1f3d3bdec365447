"""A process that keeps torch loaded and forks for every request, so that a sweep or a study imports torch once."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys

import msgspec

from memfit.predict.child.bytecode import bytecode_environment
from memfit.predict.child.die_with_parent import ending_with_this_process
from memfit.predict.child.messages import TraceReply, TraceRequest
from memfit.predict.child.parent import end_process, read_reply, too_late, work_folder, write_request

FORK_SERVER = [sys.executable, "-m", "memfit.predict.fake.child_main"]


class ForkServer:
    """One process that has torch loaded and answers request after request, each in a forked copy of itself."""

    def __init__(self, most_seconds: float | None = None) -> None:
        self._most_seconds = most_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            end_process(self._process)

    def trace(self, request: TraceRequest) -> TraceReply:
        """As `trace_in_child`, without waiting for the imports."""
        with work_folder() as folder:
            request_path, reply_path = write_request(folder, request)
            line = msgspec.json.encode([request_path, reply_path, str(folder / "output.txt")])
            code = self._ask(line + b"\n")
            return read_reply(folder, code)

    def _ask(self, line: bytes) -> int:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self._most_seconds)
        if not ready:
            end_process(process)
            self._process = None
            raise too_late(self._most_seconds)
        return int(process.stdout.readline() or process.wait())

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                FORK_SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=ending_with_this_process(),
                env={**os.environ, **bytecode_environment()},
            )  # fmt: skip
        return self._process
