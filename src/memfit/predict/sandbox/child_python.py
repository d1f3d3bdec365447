"""A child Python that a script starts (`subprocess.run([sys.executable, "prepare.py"])`), run in this process.

It sees and leaves files in the scratch folder like the script itself. What it prints goes to files first; a program
that prints these and ends with its exit code stands for it, so that pipes, `check=True` and time limits are those of
`subprocess`. Launchers of trainings and installers of packages are not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from unittest.mock import patch

from memfit.predict.sandbox.scratch_files import PathName, ProcessRefused

ALONE = ("-u", "-B", "-O", "-OO", "-s", "-S", "-E", "-I", "-q")
WITH_WORD = ("-W", "-X")
"""Options of the interpreter that change nothing here; those that have a word behind them."""
NOT_RUN = (
    "pip", "ensurepip", "venv", "torch", "accelerate", "deepspeed", "lightning", "memfit",
    "http", "tensorboard", "visdom", "mlflow", "jupyter", "notebook", "streamlit",
)  # fmt: skip
"""Installers, launchers, and servers, which never end."""
PRINTS = 'cat "$1"; cat "$2" >&2; exit "$3"'


AFTERWARDS = "a child Python that trains, after a training of its own"


class ChildTrains(ProcessRefused):
    """The training is that of a child: a launcher is predicted by what it launches."""


def refuse_if_it_trained(backwards_before: int, backwards: int) -> None:
    """A child has ended: one that trained is not for this prediction."""
    if backwards != backwards_before:
        raise ChildTrains("a child Python that trains") if not backwards_before else ProcessRefused(AFTERWARDS)


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """What a child Python is asked to run."""

    kind: str
    """'script', 'module' or 'code'."""
    what: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndedPython:
    """What a child Python left."""

    out: str
    err: str
    code: int
    failed: str
    """The error that ended it; empty where none did."""


def python_command(command: PathName | Iterable[PathName], in_shell: bool) -> PythonCommand | None:
    """The command, where it is one for this Python; None for any other."""
    if isinstance(command, (str, bytes)):
        text = os.fsdecode(command)
        if not in_shell or any(sign in text for sign in "|;&<>$`()\n*?"):
            return None
        words = shlex.split(text)
    elif isinstance(command, os.PathLike):
        return None
    else:
        words = [os.fsdecode(word) for word in command]
        if in_shell:  # a shell takes the first word of a list alone
            return None
    return _asked(words[1:]) if words and _is_this_python(words[0]) else None


def _is_this_python(word: str) -> bool:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return word == sys.executable or word in ("python", "python3", f"python{version}")


def _asked(words: list[str]) -> PythonCommand | None:
    while words and (words[0] in ALONE or words[0] in WITH_WORD):
        words = words[2 if words[0] in WITH_WORD else 1 :]
    if len(words) > 1 and words[0] == "-m":
        is_run = words[1].partition(".")[0] not in NOT_RUN
        return PythonCommand("module", words[1], tuple(words[2:])) if is_run else None
    if len(words) > 1 and words[0] == "-c":
        return PythonCommand("code", words[1], tuple(words[2:]))
    if words and not words[0].startswith("-"):
        return PythonCommand("script", words[0], tuple(words[1:]))
    return None


def run_python(asked: PythonCommand, folder: str | None, variables: Mapping[str, str] | None) -> EndedPython:
    """Run it as the main program would be."""
    out, err, code, failed = io.StringIO(), io.StringIO(), 0, ""
    with _surroundings(asked, folder, variables), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _RUN[asked.kind](asked.what)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            if isinstance(leaving.code, str):
                err.write(leaving.code + "\n")
        except Exception as error:
            traceback.print_exc(file=err)
            code, failed = 1, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    return EndedPython(out.getvalue(), err.getvalue(), code, failed)


@contextlib.contextmanager
def _surroundings(asked: PythonCommand, folder: str | None, variables: Mapping[str, str] | None) -> Iterator[None]:
    before, main, environment = os.getcwd(), sys.modules["__main__"], dict(os.environ)
    if variables is not None:
        os.environ.clear()
        os.environ.update(variables)
    if folder is not None:
        os.chdir(folder)
    path = os.path.dirname(os.path.abspath(asked.what)) if asked.kind == "script" else os.getcwd()
    first = {"script": asked.what, "module": "-m", "code": "-c"}[asked.kind]
    try:
        with patch.object(sys, "argv", [first, *asked.arguments]), patch.object(sys, "path", [path, *sys.path]):
            yield
    finally:
        sys.modules["__main__"] = main
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def _run_code(text: str) -> None:
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})


_RUN: Mapping[str, Callable[[str], object]] = {
    "script": lambda path: runpy.run_path(path, run_name="__main__"),
    "module": lambda name: runpy.run_module(name, run_name="__main__", alter_sys=True),
    "code": _run_code,
}
