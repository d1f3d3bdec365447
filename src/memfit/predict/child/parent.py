"""Starts the child process of a prediction, and returns its reply or the reason of its crash."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypedDict

import msgspec

from memfit.errors import MemfitError, MissingExtra, PredictionFailed, UsageError
from memfit.predict.child.bytecode import bytecode_environment, keep_spooled
from memfit.predict.child.die_with_parent import ending_with_this_process
from memfit.predict.child.messages import Failure, Reply, TraceReply, TraceRequest
from memfit.predict.child.progress import DEFAULT_SECONDS, Teller, last_report


class _Alone(TypedDict):
    stdin: int
    start_new_session: bool
    preexec_fn: Callable[[], None]


OUTPUT_TAIL_CHARACTERS = 1500
CHILD = [sys.executable, "-m", "memfit.predict.fake.trace_main"]


def _alone() -> _Alone:
    """How a child is started: in a process group of its own, without input, and it ends when we do."""
    return {"stdin": subprocess.DEVNULL, "start_new_session": True, "preexec_fn": ending_with_this_process()}


def trace_in_child(request: TraceRequest, *, tell: Callable[[str], None] | None = None) -> TraceReply:
    """Run the request in a process of its own and return what it found."""
    with work_folder() as folder:
        request_path, reply_path = write_request(folder, request)
        options, teller = request.options, Teller(folder, tell)
        limit = DEFAULT_SECONDS if options.most_seconds is None else options.most_seconds
        with open(folder / "output.txt", "w+b") as output, saying_where_it_was(folder):
            command, shown = [*CHILD, request_path, reply_path], None if options.show_output else output
            variables = {**os.environ, **bytecode_environment(), **request.environment}
            process = subprocess.Popen(command, stdout=shown or 2, stderr=shown or 2, env=variables, **_alone())
            code = wait_to_the_end(process, limit, teller)
        return read_reply(folder, code)


def write_request(folder: Path, request: TraceRequest) -> tuple[str, str]:
    """Write the request down; the names of its file and of the reply's."""
    (folder / "scratch").mkdir()
    request = msgspec.structs.replace(
        request, scratch_folder=str(folder / "scratch"), writable_folder=str(folder.resolve())
    )
    (folder / "request.json").write_bytes(msgspec.json.encode(request))
    return str(folder / "request.json"), str(folder / "reply.msgpack")


def read_reply(folder: Path, code: int) -> TraceReply:
    """What the child wrote, or the error that it, or its end, stands for."""
    output = folder / "output.txt"
    tail = output.read_bytes()[-OUTPUT_TAIL_CHARACTERS:].decode(errors="replace") if output.exists() else ""
    if not (folder / "reply.msgpack").exists():
        raise _crashed(code, tail)
    reply: Reply = msgspec.msgpack.decode((folder / "reply.msgpack").read_bytes(), type=Reply)
    return reply_or_raise(reply, tail)


def reply_or_raise(reply: Reply, output_tail: str = "") -> TraceReply:
    """A reply, or the error that a failure stands for."""
    if isinstance(reply, Failure):
        raise error_of(reply, output_tail)
    return reply


@contextlib.contextmanager
def saying_where_it_was(folder: Path) -> Iterator[None]:
    """A prediction that took too long says where the job was."""
    try:
        yield
    except PredictionFailed as error:
        where = last_report(folder)
        if error.kind != "time" or not where:
            raise
        found = f"{error.found}, at {where}"
        raise PredictionFailed(error.what, kind="time", found=found, hint=error.hint) from None


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for request, reply and scratch files of one child; compiled files are kept of it."""
    with tempfile.TemporaryDirectory(prefix="memfit-predict-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            keep_spooled(Path(name))


def run_to_the_end(
    command: list[str],
    output: IO[bytes] | None,
    most_seconds: float | None,
    environment: Mapping[str, str] | None = None,
    teller: Teller | None = None,
) -> int:
    """Run in a process group of its own and return the exit code; nothing of it survives us."""
    process = subprocess.Popen(command, stdout=output or 2, stderr=output or 2, env=environment, **_alone())
    return wait_to_the_end(process, most_seconds, teller)


def wait_to_the_end(process: subprocess.Popen[bytes], most_seconds: float | None, teller: Teller | None) -> int:
    """The exit code of a child; whatever happens here, nothing of it survives."""
    try:
        return process.wait(most_seconds) if teller is None else teller.wait(process, most_seconds)
    except subprocess.TimeoutExpired:
        raise too_late(most_seconds) from None
    finally:
        end_process(process)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    process.wait()


def too_late(most_seconds: float | None) -> PredictionFailed:
    """The error of a child that did not end in time."""
    return PredictionFailed(
        "the job did not come to its steps in time",
        kind="time",
        found=f"stopped after {most_seconds or 0:.0f} s",
        hint="--timeout",
    )


def name_of_end(code: int) -> str:
    """'SIGSEGV', or 'exit code 7'."""
    return signal_of_end(code) or f"exit code {code}"


def signal_of_end(code: int) -> str:
    """'SIGSEGV' for the code of a process that a signal ended; empty for any other."""
    return signal.Signals(-code).name if code < 0 and -code in signal.valid_signals() else ""


def _crashed(code: int, tail: str) -> PredictionFailed:
    if "No module named 'torch'" in tail:
        raise MissingExtra("a prediction needs torch", hint="pip install 'memfit[torch]'")
    return PredictionFailed(
        "the process that traced the job ended without an answer", kind="crash", found=name_of_end(code),
        signal=signal_of_end(code), traceback=tail,
        hint="--show-output shows what it printed",
    )  # fmt: skip


def error_of(failure: Failure, tail: str) -> MemfitError:
    """The error that a child's failure stands for, with the job's last output where that says more."""
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
        failure.what, kind=failure.kind, found=failure.found, hint=failure.hint, signal=failure.signal,
        needs_rank=failure.needs_rank, mail=failure.mail,
        traceback=printed + failure.traceback,
    )  # fmt: skip
