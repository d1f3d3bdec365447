"""Starts the child with the phantom GPU, and returns its reply or the reason of its death."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from memfit.errors import PredictionFailed
from memfit.predict.child.bytecode import bytecode_environment, keep_spooled
from memfit.predict.child.messages import Failure
from memfit.predict.child.parent import error_of, name_of_end, run_to_the_end, saying_where_it_was, signal_of_end
from memfit.predict.child.progress import DEFAULT_SECONDS, Teller
from memfit.predict.phantom.messages import Answer, PhantomReply, PhantomRequest

OUTPUT_TAIL_CHARACTERS = 3000
NOT_THE_JOB = ("<frozen", "site-packages", f"{os.sep}memfit{os.sep}predict{os.sep}", os.path.dirname(os.__file__))


def run_in_child(
    request: PhantomRequest,
    *,
    environment: Mapping[str, str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> PhantomReply:
    """Run the request in a process of its own, with `environment` beside ours, and return what it found."""
    with tempfile.TemporaryDirectory(prefix="memfit-phantom-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        snapshot_path = request.snapshot_path  # the child can write into its own folder alone
        request = msgspec.structs.replace(
            request, scratch_folder=str(folder / "scratch"), report_folder=name,
            snapshot_path=str(folder / "snapshot.pickle") if snapshot_path else "",
        )  # fmt: skip
        (folder / "request.json").write_bytes(msgspec.json.encode(request))
        reply_path = folder / "reply.msgpack"
        command = [
            sys.executable,
            "-m",
            "memfit.predict.phantom.in_child.child_main",
            str(folder / "request.json"),
            str(reply_path),
        ]
        with open(folder / "output.txt", "w+b") as output:
            variables = {**_environment(), **bytecode_environment(), **(environment or {})}
            options, teller = request.options, Teller(folder, tell)
            limit = DEFAULT_SECONDS if options.most_seconds is None else options.most_seconds
            with saying_where_it_was(folder):
                code = run_to_the_end(command, None if options.show_output else output, limit, variables, teller)
            keep_spooled(folder)
            output.seek(0)
            tail = output.read()[-OUTPUT_TAIL_CHARACTERS:].decode(errors="replace")
        if not reply_path.exists():
            raise _died(code, tail)
        answer = msgspec.msgpack.decode(reply_path.read_bytes(), type=Answer)
        if snapshot_path and os.path.exists(request.snapshot_path):
            shutil.copyfile(request.snapshot_path, snapshot_path)
    if isinstance(answer, Failure):
        raise error_of(answer, tail)
    return answer


def _environment() -> dict[str, str]:
    """Ours without what would steer CUDA: the phantom GPU is described by the request alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PYTORCH_"))}


def _died(code: int, tail: str) -> PredictionFailed:
    return PredictionFailed(
        "the process with the phantom GPU ended without an answer", kind="crash",
        found=name_of_end(code) + last_line(tail), signal=signal_of_end(code), traceback=tail,
        hint="the stack above is where it was; a kernel outside torch may have read device memory: --engine fake",
    )  # fmt: skip


def last_line(tail: str) -> str:
    """' at train.py:12': the innermost line of the job's own in the stack that a dying interpreter leaves."""
    for path, number in re.findall(r'^  File "([^"]+)", line (\d+)', tail, re.MULTILINE):
        if not any(part in path for part in NOT_THE_JOB):
            return f" at {os.path.basename(path)}:{number}"
    return ""
