"""How is a prediction's child process started, and how does its reply (or its crash) come back?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from memfit.errors import MemfitError, MissingExtra, PredictionFailed, UsageError
from memfit.predict.messages import Failure, Reply, TraceReply, TraceRequest

OUTPUT_TAIL_CHARACTERS = 1500


def trace_in_child(
    request: TraceRequest, *, show_output: bool = False, most_seconds: float | None = None
) -> TraceReply:
    """Run the request in a process of its own and return what it found."""
    with _work_folder() as folder:
        request = msgspec.structs.replace(request, scratch_folder=str(folder / "scratch"))
        (folder / "scratch").mkdir()
        (folder / "request.json").write_bytes(msgspec.json.encode(request))
        reply_path = folder / "reply.msgpack"
        command = [sys.executable, "-m", "memfit.predict.torch_child", str(folder / "request.json"), str(reply_path)]
        with open(folder / "output.txt", "w+b") as output:
            code = _run(command, None if show_output else output, most_seconds)
            output.seek(0)
            tail = output.read()[-OUTPUT_TAIL_CHARACTERS:].decode(errors="replace")
        if not reply_path.exists():
            raise _crashed(code, tail)
        reply: Reply = msgspec.msgpack.decode(reply_path.read_bytes(), type=Reply)
    return reply_or_raise(reply, tail)


def reply_or_raise(reply: Reply, output_tail: str = "") -> TraceReply:
    """A reply, or the error that a failure stands for."""
    if isinstance(reply, Failure):
        raise _failed(reply, output_tail)
    return reply


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="memfit-predict-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _run(command: list[str], output: IO[bytes] | None, most_seconds: float | None) -> int:
    """Run to the end in a process group of its own; nothing of it survives us."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output or 2,
        stderr=output or 2,
        start_new_session=True,
    )
    try:
        return process.wait(most_seconds)
    except subprocess.TimeoutExpired:
        raise PredictionFailed(
            "the job did not come to its steps in time",
            kind="time",
            found=f"stopped after {most_seconds:.0f} s",
            hint="--timeout",
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _crashed(code: int, tail: str) -> PredictionFailed:
    name = signal.Signals(-code).name if code < 0 and -code in signal.valid_signals() else f"exit code {code}"
    if "No module named 'torch'" in tail:
        raise MissingExtra("a prediction needs torch", hint="pip install 'memfit[torch]'")
    return PredictionFailed(
        "the process that traced the job ended without an answer", kind="crash", found=name, traceback=tail,
        hint="--show-output shows what it printed",
    )  # fmt: skip


def _failed(failure: Failure, tail: str) -> MemfitError:
    if failure.kind == "usage":
        return UsageError(failure.what, found=failure.found, hint=failure.hint)
    if failure.kind == "missing":
        return MissingExtra(failure.what, found=failure.found, hint=failure.hint)
    printed = (
        f"--- the job's last output ---\n{tail.rstrip()}\n"
        if tail.strip() and failure.kind in ("script", "no step")
        else ""
    )
    return PredictionFailed(
        failure.what, kind=failure.kind, found=failure.found, hint=failure.hint, traceback=printed + failure.traceback
    )
