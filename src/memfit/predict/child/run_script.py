"""Runs a user's script in a child, and describes how it ended.

Both engines ask here. No torch: the phantom GPU's child must not load what fake tensors need.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable
from types import TracebackType
from unittest.mock import patch

from memfit.predict.child.messages import Failure
from memfit.predict.sandbox.scratch_files import ProcessRefused
from memfit.version import PACKAGE_FOLDER

_PACKAGE = os.path.join(PACKAGE_FOLDER, "")


UNREACHABLE = (
    "URLError", "ConnectionError", "gaierror", "OfflineModeIsEnabled", "LocalEntryNotFoundError",
    "Max retries exceeded", "couldn't connect to", "We couldn't connect", "ConnectTimeout", "ProxyError",
    "Name or service not known", "Temporary failure in name resolution", "Couldn't reach", "ConnectError",
    "Network is unreachable",
)  # fmt: skip
"""Words of errors that mean there is no way to the network."""
BY_BACKWARDS = "no optimizer of torch makes a step: one is counted at each backward"


class EnoughSteps(BaseException):
    """The script has made the steps that were asked for."""


class NeverStepped(Exception):
    """The script ended without an optimizer step; says what to try, if that is known."""


class ScriptLeft(Exception):
    """The script left by itself with an exit code."""

    hint = ""
    """What to try, if that is known."""


def run_as_main(path: str, arguments: tuple[str, ...], is_done: Callable[[], bool]) -> bool:
    """Run a script as `python script.py arguments` would; True where EnoughSteps ended it before its own end."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with patch.object(sys, "argv", [path, *arguments]), patch.object(sys, "path", [folder, *sys.path]):
            runpy.run_path(path, run_name="__main__")
    except EnoughSteps:
        return True
    except SystemExit as leaving:
        if leaving.code not in (None, 0) and not is_done():
            raise ScriptLeft(str(leaving.code)) from leaving
    return False


def script_failure(error: BaseException) -> Failure | None:
    """What only a script can do wrong; None for everything else."""
    if isinstance(error, NeverStepped):
        return Failure(
            kind="no step", what="the script ended without an optimizer step or a backward",
            found="no call of optimizer.step() or backward()",
            hint=str(error) or "check its arguments behind `--`; a step function can be predicted as FILE:function",
        )  # fmt: skip
    if isinstance(error, ScriptLeft):
        return Failure(
            kind="script", what="the script left by itself before its steps were made", found=f"exit code {error}",
            hint=error.hint or "its last output is above; its arguments stand behind `--`",
        )  # fmt: skip
    refused = error if isinstance(error, ProcessRefused) else error.__cause__ or error.__context__
    if isinstance(refused, ProcessRefused):
        return Failure(
            kind="processes", what="the script starts processes of its own", found=str(refused),
            hint="predict what one of its processes does: a script or function that trains in one process",
        )  # fmt: skip
    return None


MORE_GPUS = re.compile(
    r"(at least|more than|require\w*|need\w*|sufficient|enough)\b.{0,30}\b(gpus|cuda devices)\b", re.IGNORECASE
)
"""Words of a script that wants more GPUs than it sees."""
WANTS_A_GPU = ("not compiled with CUDA", "not linked with support for cuda", "compiled without CUDA")
"""What torch says to a script that moves a tensor to a GPU on a machine, or in a prediction, without one."""


def hint_for(error: BaseException) -> str:
    """What to try when a script lacks something that is no value: a rank, a package, a file, a network."""
    text = f"{type(error).__name__} {error}"
    if any(f"'{name}'" in text for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return "torchrun sets this for each rank: --ranks 8 predicts the first of 8"
    if isinstance(error, ModuleNotFoundError):
        name = error.name or "what the message names"
        return f"install {name}, or leave that import out; the script needs it where it is predicted"
    if any(word in text for word in UNREACHABLE):
        return "nothing can be downloaded here: run it once where it can, to fill the cache, or give local files"
    if isinstance(error, AssertionError | ValueError | RuntimeError | SystemExit) and MORE_GPUS.search(text):
        return "a script sees a GPU for each rank: --ranks 4 predicts the first of 4"
    if any(word in text for word in WANTS_A_GPU):
        return "the script asks for a GPU: --device cuda:a100-40gb, or another name, predicts it on one"
    if isinstance(error, FileNotFoundError):
        return "give it the file, or arguments behind `--` that name one that exists"
    return ""


def own_part(error: BaseException) -> TracebackType | None:
    """The traceback from the user's first frame on."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None and _is_ours(step.tb_frame.f_code.co_filename):
        step = step.tb_next
    return step


def _is_ours(filename: str) -> bool:
    """Whether a file belongs to memfit or to the interpreter's own start."""
    return filename.startswith((_PACKAGE, "<frozen"))
