"""How is the child with the phantom GPU started, and how does its reply (or its death) come back?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import msgspec

from memfit.errors import MemfitError, MissingExtra, PredictionFailed, UsageError
from memfit.predict.die_with_parent import die_with_the_parent
from memfit.predict.messages import Failure
from memfit.predict.phantom.messages import Answer, PhantomReply, PhantomRequest

OUTPUT_TAIL_CHARACTERS = 3000


def run_in_child(
    request: PhantomRequest, *, show_output: bool = False, most_seconds: float | None = None
) -> PhantomReply:
    """Run the request in a process of its own and return what it found."""
    with tempfile.TemporaryDirectory(prefix="memfit-phantom-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        request = msgspec.structs.replace(request, scratch_folder=str(folder / "scratch"))
        (folder / "request.json").write_bytes(msgspec.json.encode(request))
        reply_path = folder / "reply.msgpack"
        command = [
            sys.executable,
            "-m",
            "memfit.predict.phantom.child_main",
            str(folder / "request.json"),
            str(reply_path),
        ]
        with open(folder / "output.txt", "w+b") as output:
            code = _wait(command, None if show_output else output, most_seconds)
            output.seek(0)
            tail = output.read()[-OUTPUT_TAIL_CHARACTERS:].decode(errors="replace")
        if not reply_path.exists():
            raise _died(code, tail)
        answer = msgspec.msgpack.decode(reply_path.read_bytes(), type=Answer)
    if isinstance(answer, Failure):
        raise _error_of(answer, tail)
    return answer


def _wait(command: list[str], output: IO[bytes] | None, most_seconds: float | None) -> int:
    """Run to the end in a session of its own; nothing of it survives us."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PYTORCH_"))}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output or 2,
        stderr=output or 2,
        start_new_session=True,
        preexec_fn=die_with_the_parent,
        env=environment,
    )
    try:
        return process.wait(most_seconds)
    except subprocess.TimeoutExpired:
        raise PredictionFailed(
            "the job did not come to its steps in time", kind="time", found=f"stopped after {most_seconds:.0f} s",
            hint="--timeout",
        ) from None  # fmt: skip
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _died(code: int, tail: str) -> PredictionFailed:
    name = signal.Signals(-code).name if code < 0 and -code in signal.valid_signals() else f"exit code {code}"
    return PredictionFailed(
        "the process with the phantom GPU ended without an answer", kind="crash", found=name, traceback=tail,
        hint="the stack above is where it was; a kernel outside torch may have read device memory: --engine fake",
    )  # fmt: skip


def _error_of(failure: Failure, tail: str) -> MemfitError:
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
