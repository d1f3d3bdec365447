"""Processes that a predicted script starts: questions are asked, pools and workers run in this process.

A prediction follows one process. Programs that only tell something (`git rev-parse`, `nvidia-smi`) run without the
right to write any file; a terminal's size is answered. Pools, executors and workers of `multiprocessing` do their
work here, one call after the other; a daemon, which may fill a queue for ever, works in a thread. A child Python that
prepares data runs here too. Everything else is refused by the audit hook of the scratch files.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import contextlib
import multiprocessing
import multiprocessing.context
import multiprocessing.managers
import multiprocessing.pool
import multiprocessing.process
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast
from unittest.mock import patch

from memfit.predict.child.messages import UNSEEN
from memfit.predict.observe.own_threads import start_alone
from memfit.predict.sandbox.child_python import PRINTS, PythonCommand, python_command, run_python
from memfit.predict.sandbox.in_process_pool import InProcessExecutor, InProcessManager, InProcessPool
from memfit.predict.sandbox.read_only import can_forbid_writing, forbid_writing_outside
from memfit.predict.sandbox.scratch_files import PathName, ScratchFiles

TELLERS = {
    "nvidia-smi", "rocm-smi", "uname", "hostname", "whoami", "lscpu", "nproc", "free", "df", "which", "cat", "ls",
    "echo", "pwd", "date", "id", "true", "lsb_release", "tput",
}  # fmt: skip
FILTERS = {"grep", "egrep", "head", "tail", "wc", "sort", "uniq", "cut", "tr", "basename", "dirname", "test", "cd"}
"""What stands behind a pipe, or before `&&`."""
JOINS = {"|", "||", "&&", ";"}
GIT_TELLS = {
    "rev-parse",
    "describe",
    "log",
    "status",
    "diff",
    "show",
    "ls-files",
    "symbolic-ref",
    "--version",
    "branch",
}
TERMINAL = {("stty", "size"): "24 80", ("tput", "cols"): "80", ("tput", "lines"): "24"}
QUIETLY = ("2>/dev/null", "2>&1", ">/dev/null", "&>/dev/null")
TRAINERS = ("torch.multiprocessing.spawn",)
"""Modules whose processes train, daemons or not: they are followed."""
WORK = ("apply", "map", "starmap", "imap", "imap_unordered", "apply_async", "submit")
"""Methods of pools that call a function, which is their first argument."""
Note = Callable[[str, str], None]
Command = PathName | Iterable[PathName]


class WorkerProcess(Protocol):
    """What is used of a process of `multiprocessing`."""

    name: str
    daemon: bool
    _popen: object
    _identity: tuple[int, ...]
    _target: object

    def run(self) -> None:
        """Do the work."""
        ...


def question_words(command: Command, in_shell: bool) -> list[str] | None:
    """The command as a list of words when it only tells something; None for any other."""
    if isinstance(command, (str, bytes)):
        text = _without_quiet(os.fsdecode(command))
        if in_shell and any(sign in text for sign in "|;&<>$`()\n*?"):
            return None
        try:
            words = shlex.split(text) if in_shell else [text]
        except ValueError:
            return None
    elif isinstance(command, os.PathLike):
        words = [] if in_shell else [os.fsdecode(command)]
    else:
        words = [os.fsdecode(word) for word in command]
    return words if words and _only_tells(words) else None


def is_line_of_questions(command: Command, in_shell: bool) -> bool:
    """Whether a shell is asked to join programs that only tell something (`lscpu | grep Model`)."""
    if not in_shell or not isinstance(command, (str, bytes)):
        return False
    text = _without_quiet(os.fsdecode(command))
    if any(sign in text for sign in "$`\n"):
        return False
    reader = shlex.shlex(text, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    parts: list[list[str]] = [[]]
    try:
        for word in reader:
            if word in JOINS:
                parts.append([])
            elif set(word) <= set("();<>|&"):
                return False
            else:
                parts[-1].append(word)
    except ValueError:
        return False
    return len(parts) > 1 and all(part and (_only_tells(part) or part[0] in FILTERS) for part in parts)


def _without_quiet(text: str) -> str:
    for quiet in QUIETLY:
        text = text.replace(quiet, " ").replace(quiet.replace(">", "> "), " ")
    return text


def _only_tells(words: list[str]) -> bool:
    program = os.path.basename(words[0])
    if program == "git":
        rest = [word for word in words[1:] if not word.startswith("-") or word == "--version"]
        if "-C" in words:
            rest = rest[1:]
        return bool(rest) and (rest[0] in GIT_TELLS or "--get" in words)
    return program in TELLERS or tuple(words[:2]) in TERMINAL


class Processes:
    """Stands in for what starts processes, for the time of a script."""

    def __init__(
        self,
        files: ScratchFiles,
        note: Note,
        in_another: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        in_child: Callable[[], contextlib.AbstractContextManager[object]] | None = None,
        apart: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._files, self._note, self._in_another, self._apart = files, note, in_another, apart
        """What a worker sets for its own process is set within `apart` and nowhere else."""
        self._in_child = in_child
        """Within it, tensors are not of this process, and a training is refused; None where no child is run."""
        self._start: Callable[..., None] = subprocess.Popen.__init__
        self._system = os.system

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Within, no process is left running and none can write."""
        processes, pool, executor = self, self._noted(InProcessPool), self._noted(InProcessExecutor)

        def start(popen: subprocess.Popen[bytes], args: Command, *rest: object, **options: object) -> None:
            processes.popen(popen, args, rest, options)

        def run(process: WorkerProcess) -> None:
            processes.run_here(process)

        context, managers = multiprocessing.context.BaseContext, multiprocessing.managers
        replacements: list[tuple[Any, str, Any]] = [
            (subprocess.Popen, "__init__", start), (os, "system", self.system),
            (multiprocessing.process.BaseProcess, "start", run),
            (multiprocessing, "Pool", pool), (multiprocessing.pool, "Pool", _with_helpers(pool)),
            (multiprocessing.pool.ThreadPool, "__init__", _of_threads(multiprocessing.pool.Pool)),
            (context, "Pool", lambda self, *args, **kwargs: pool(*args, **kwargs)),
            (multiprocessing, "Manager", self.manager), (managers, "SyncManager", InProcessManager),
            (context, "Manager", lambda self: processes.manager()),
            (concurrent.futures, "ProcessPoolExecutor", executor),
            (concurrent.futures.process, "ProcessPoolExecutor", executor),
        ]  # fmt: skip
        with contextlib.ExitStack() as stack:
            stack.enter_context(variables_set({"JOBLIB_MULTIPROCESSING": "0"}))
            for owner, name, function in replacements:
                stack.enter_context(patch.object(owner, name, function))
            yield

    # ---- programs --------------------------------------------------------------------------------------------------

    def popen(
        self, popen: subprocess.Popen[bytes], args: Command, rest: tuple[object, ...], options: dict[str, object]
    ) -> None:
        """subprocess.Popen(): only for what tells something, and without write access."""
        in_shell = bool(options.get("shell"))
        words = question_words(args, in_shell)
        if is_line_of_questions(args, in_shell):
            words = ["sh", "-c", os.fsdecode(cast("str | bytes", args))]
        is_fed = (rest[2] if len(rest) > 2 else options.get("stdin")) not in (None, subprocess.DEVNULL)
        asked = self._python_command(args, in_shell) if words is None and not is_fed else None
        if asked is not None:
            self._run_python(popen, asked, rest, options)
            return
        if words is None:
            self._start(popen, args, *rest, **options)  # let through or refused by the guard
            return
        if tuple(words[:2]) in TERMINAL:
            words = ["echo", TERMINAL[words[0], words[1]]]
        if not can_forbid_writing():
            raise FileNotFoundError(
                2, "memfit predict cannot keep a program from writing here, so it runs none", words[0]
            )
        asked_for = words[2] if words[0] == "sh" else " ".join(words[:2])
        self._note("processes", f"{asked_for} was asked, without write access")
        words = [words[0], *(self._files.redirected.get(self._files.virtual(word), word) for word in words[1:])]
        options |= {"shell": False, "preexec_fn": self._without_writing}
        if options.get("cwd") is not None:
            options["cwd"] = self._files.seen(cast("PathName", options["cwd"]))
        with self._files.starting():
            self._start(popen, words, *rest, **options)

    def _python_command(self, command: Command, in_shell: bool) -> PythonCommand | None:
        return None if self._in_child is None else python_command(command, in_shell)

    def _run_python(
        self, popen: subprocess.Popen[bytes], asked: PythonCommand, rest: tuple[object, ...], options: dict[str, object]
    ) -> None:
        """A child Python runs here; a program that prints what it printed and ends as it did stands for it."""
        self._note("processes", "a child Python was run in this process: what is predicted is one process")
        folder, variables = options.pop("cwd", None), cast("Mapping[str, str] | None", options.pop("env", None))
        where = None if folder is None else os.fsdecode(cast("PathName", folder))
        assert self._in_child is not None
        with self._in_child():
            end = run_python(asked, where, variables)
        if end.failed:
            self._note(UNSEEN, f"a child Python failed, which may succeed in a real run: {end.failed}")
        names = []
        for text in (end.out, end.err):
            handle, name = tempfile.mkstemp(dir=self._files.folder)
            with open(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            names.append(name)
        options |= {"shell": False, "executable": None}
        with self._files.starting():
            self._start(popen, ["sh", "-c", PRINTS, "sh", *names, str(end.code)], *rest, **options)

    def _without_writing(self) -> None:
        if forbid_writing_outside([]):
            os._exit(127)

    def system(self, command: str | bytes) -> int:
        """os.system(), likewise."""
        is_known = question_words(command, True) is not None or is_line_of_questions(command, True)
        is_known = is_known or self._python_command(command, True) is not None
        if not is_known:
            return self._system(command)
        code = subprocess.call(command, shell=True)
        return -code if code < 0 else code << 8  # as the system says it, where a signal has the low bits

    # ---- workers ---------------------------------------------------------------------------------------------------

    def run_here(self, process: WorkerProcess) -> None:
        """Process.start(): what it would do is done here, and then it is over; a daemon goes on beside the script."""
        process._popen = Finished()
        process._identity = process._identity or (1,)
        if process.daemon and getattr(process._target, "__module__", "") not in TRAINERS:
            self._note("processes", "a process that serves the script was run beside it: its memory is not counted")
            start_alone(process.run, process.name)
            return
        self._note("processes", "a process of multiprocessing was run in this one: what is predicted is one process")
        with self._in_another(), self._apart():
            process.run()
        sys.stdout.flush()

    def _noted(self, base: type) -> type:
        """A pool that works here and says so: a class, because other classes derive from it."""
        note, apart = self._note, self._apart

        def begin(pool: object, *args: object, **kwargs: object) -> None:
            note("processes", "a pool of processes did its work in this one")
            with apart():
                base.__init__(pool, *args, **kwargs)

        def of_worker(function: Callable[..., object]) -> Callable[..., object]:
            def call(*given: object, **named: object) -> object:
                with apart():
                    return function(*given, **named)

            return call

        def working(method: Callable[..., object]) -> Callable[..., object]:
            def work(pool: object, *args: object, **kwargs: object) -> object:
                if args:
                    args = (of_worker(cast("Callable[..., object]", args[0])), *args[1:])
                elif "func" in kwargs:
                    kwargs["func"] = of_worker(cast("Callable[..., object]", kwargs["func"]))
                return method(pool, *args, **kwargs)

            return work

        methods = {name: working(method) for name in WORK if (method := vars(base).get(name)) is not None}
        return type(base.__name__, (base,), {"__init__": begin, **methods})

    def manager(self, *args: object, **kwargs: object) -> InProcessManager:
        """Shared objects that are not shared."""
        return InProcessManager()


def _with_helpers(pool: type) -> type:
    """Pools of threads ask their module for the helpers of the class they derive from (Python 3.11)."""
    helpers = {
        name: value
        for name, value in vars(multiprocessing.pool.Pool).items()
        if isinstance(value, (staticmethod, classmethod)) and not hasattr(pool, name)
    }
    return type(pool.__name__, (pool,), helpers)


def _of_threads(processes: type[multiprocessing.pool.Pool]) -> Callable[..., None]:
    """ThreadPool.__init__(): it asks its module for the class it derives from, where ours stands now."""

    def begin(pool: multiprocessing.pool.ThreadPool, *args: object, **kwargs: object) -> None:
        cast("Callable[..., None]", processes.__init__)(pool, *args, **kwargs)

    return begin


@contextlib.contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set some environment variables for a while; others that a script sets meanwhile stay."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def guarded(folder: str, note: Note) -> Iterator[None]:
    """Within, files go to the folder, and processes are answered, run here or refused."""
    files = ScratchFiles(folder)
    with files.guarding(), Processes(files, note).standing_in():
        yield


class Finished:
    """As the handle of a process that ended well."""

    pid, returncode, sentinel = 0, 0, -1

    def poll(self, *args: object) -> int:
        """The exit code."""
        return 0

    wait = poll

    def terminate(self) -> None:
        """It is over."""

    kill = close = terminate
