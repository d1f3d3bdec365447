"""Runs a command under the sampler: run folder, sampler process, terminal, signals, exit code.

    memfit command ----starts----> sampler process ----starts----> the job (its own process group)
         ^   pipe: live line, end        |                              |
         `-------------------------------'   writes the run folder <----' marks files

The command itself does nothing while the job runs but listen. Whatever dies, the rest goes on:
  - the job dies: the sampler writes the end, the command passes the exit code (or the signal) on;
  - the sampler dies: the job becomes the command's child (subreaper), which waits for it and writes its end;
  - the command dies: the sampler goes on measuring until the job ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from memfit.errors import CommandNotFound, ProcessUnavailable, StorageError
from memfit.measure import new_run
from memfit.measure.counters import proc
from memfit.measure.sampler.orders import (
    AttachOrder,
    JobFinished,
    JobNotStarted,
    JobStopped,
    JobWatched,
    LaunchOrder,
    SamplerOrders,
    StatusLine,
    StatusReader,
    StorageFailed,
    encode_orders,
)
from memfit.measure.sampler.process_tree import become_subreaper
from memfit.measure.terminal import Terminal
from memfit.records.run import Settings
from memfit.records.run_parts.live import LiveState
from memfit.runfolder.writer import RunWriter

PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
INSIDE_START = str(Path(__file__).resolve().parents[1] / "inside" / "start")
FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STABLE_THRESHOLD_BYTES = 1024 * 1024
"""What --stable pins glibc's mmap threshold to: large blocks come from mmap and go back at once, so repeated runs
agree."""

Listener = Callable[[LiveState], None]
SignalHandler = Callable[[int, FrameType | None], object] | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How the job ended, by its exit status."""

    exit_code: int | None
    signal: int | None
    storage_problem: str = ""
    """Set when the run folder could not be written to the end (a full disk)."""
    interrupted_by: int | None = None
    """The signal by which somebody asked memfit, and so the job, to end."""


def run_command(
    command: list[str],
    folder: Path,
    settings: Settings,
    *,
    overwrite: bool = False,
    grace_seconds: float = 5.0,
    on_live: Listener | None = None,
    output_file: Path | None = None,
) -> JobEnd:
    """Run a command under the sampler and wait for its end; the run folder is written while it runs.

    With `output_file` the job prints into that file, reads nothing, has no terminal, and ends when memfit is killed.
    """
    check_command(command)
    clock_start_ns = time.monotonic_ns()
    new_run.create(folder, command, settings, clock_start_ns, overwrite=overwrite)
    launch = LaunchOrder(
        command=tuple(command),
        environment=job_environment(folder, settings),
        limit_bytes=settings.limit_bytes,
        grace_seconds=grace_seconds,
        ends_with_pid=os.getpid() if output_file is not None else None,
    )
    return _Supervisor(orders_for(folder, settings, clock_start_ns), launch, on_live, output_file).run()


def check_command(command: list[str]) -> None:
    """Refuse a command that cannot be started, before anything is written."""
    if not command:
        raise CommandNotFound("there is no command to measure", hint="memfit measure -- python train.py")
    if not command[0]:
        raise CommandNotFound("the command is empty", hint="memfit measure -- python train.py")
    found = shutil.which(command[0])
    if found is None:
        there = Path(command[0]).exists()
        what = f"{command[0]!r} cannot be executed" if there else f"there is no command {command[0]!r}"
        hint = (
            f"chmod +x {command[0]}, or name its interpreter: python {command[0]}"
            if there
            else "check the name and PATH"
        )
        raise CommandNotFound(what, hint=hint)


def orders_for(folder: Path, settings: Settings, clock_start_ns: int) -> SamplerOrders:
    """What the sampler must know in every mode; the job and the pipe are added where they are known."""
    return SamplerOrders(
        folder=str(folder.resolve()),
        clock_start_ns=clock_start_ns,
        interval_seconds=settings.interval_seconds,
        eased_interval_seconds=settings.eased_interval_seconds,
        ledger=settings.ledger_every is not None,
        assume_watts=settings.assume_watts,
        status_fd=-1,
        live=False,
    )


def job_environment(folder: Path, settings: Settings) -> dict[str, str | None]:
    """Environment variables that the job gets in addition (None removes one)."""
    changes: dict[str, str | None] = {}
    if settings.marks:
        inherited = os.environ.get("PYTHONPATH")
        changes["PYTHONPATH"] = INSIDE_START + (os.pathsep + inherited if inherited else "")
        changes["MEMFIT_RUN_FOLDER"] = str(folder.resolve())
        changes["MEMFIT_MARKS"] = "1"
        changes["MEMFIT_LEDGER_EVERY"] = str(settings.ledger_every) if settings.ledger_every else None
        changes["MEMFIT_PID_NAMESPACE"] = proc.own_namespace()
        changes["MEMFIT_LIMIT_BYTES"] = str(settings.limit_bytes) if settings.limit_bytes else None
    if settings.stable:
        threshold = str(STABLE_THRESHOLD_BYTES)
        changes |= {"MALLOC_MMAP_THRESHOLD_": threshold, "MALLOC_TRIM_THRESHOLD_": threshold}
    return changes


def start_sampler(
    orders: SamplerOrders, pass_fds: tuple[int, ...], output_file: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the sampler; with `output_file` it and the job print there."""
    with sampler_command(orders) as (arguments, orders_fd):
        pass_fds = (*pass_fds, orders_fd)
        if output_file is None:
            return subprocess.Popen(arguments, pass_fds=pass_fds)
        with output_file.open("wb") as out:
            return subprocess.Popen(arguments, pass_fds=pass_fds, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


@contextlib.contextmanager
def sampler_command(orders: SamplerOrders) -> Iterator[tuple[list[str], int]]:
    """The command of a sampler, and the open file with its orders, which it must inherit.

    A bare interpreter: no site-packages, no environment, memfit found by its place. The orders are no argument: they
    hold the job's whole command, and the kernel takes no argument above 128 KiB.
    """
    code = (
        f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r}); from memfit.measure.sampler.process import main; main()"
    )
    with os.fdopen(os.memfd_create("memfit-orders"), "wb") as stream:
        stream.write(encode_orders(orders))
        stream.seek(0)
        yield [sys.executable, "-I", "-S", "-c", code, str(stream.fileno())], stream.fileno()


class _Supervisor:
    """Lives while the job runs: hears the sampler, forwards signals, handles the terminal."""

    def __init__(
        self, orders: SamplerOrders, launch: LaunchOrder, on_live: Listener | None, output_file: Path | None = None
    ) -> None:
        self.orders = orders
        self.launch = launch
        self.on_live = on_live
        self.output_file = output_file
        self.interrupted_by: int | None = None
        self.job_pid: int | None = None
        self.end: JobFinished | None = None
        self.error: JobNotStarted | None = None
        self.storage_problem = ""
        self.terminal = Terminal.of_this_process() if output_file is None else None
        self._early_signals: list[int] = []
        self._handlers: dict[int, SignalHandler] = {}

    def run(self) -> JobEnd:
        become_subreaper()
        status_read, status_write = os.pipe()
        launch = self.launch._replace(
            terminal_fd=self.terminal.descriptor if self.terminal else None,
            ignored_signals=tuple(int(n) for n in FORWARDED if signal.getsignal(n) is signal.SIG_IGN),
        )
        orders = self.orders._replace(status_fd=status_write, live=self.on_live is not None, launch=launch)
        self._take_signals()
        try:
            sampler = start_sampler(orders, (status_write,), self.output_file)
            os.close(status_write)
            self._listen(status_read)
            sampler.wait()
            self._after_the_sampler(sampler.returncode)
        finally:
            os.close(status_read)
            if self.terminal:
                self.terminal.take_back()
            self._return_signals()
        return self._job_end()

    # ---- listening ------------------------------------------------------------------------------------------------

    def _listen(self, status_read: int) -> None:
        """Hear the sampler until it closes its end."""
        reader = StatusReader(status_read)
        while True:
            select.select([status_read], [], [])
            lines = reader.read()
            if lines is None:
                return
            for line in lines:
                self._hear(line)

    def _hear(self, line: StatusLine) -> None:
        match line:
            case LiveState():
                if self.on_live:
                    self.on_live(line)
            case JobWatched():
                self.job_pid = line.pid
                for number in self._early_signals:
                    self._forward(number)
            case JobStopped():
                self._stop_with_the_job()
            case StorageFailed():
                self.storage_problem = _storage_problem(line)
            case JobNotStarted():
                self.error = line
            case JobFinished():
                self.end = line

    def _after_the_sampler(self, code: int) -> None:
        """The sampler is gone: normally after the job; otherwise the job is ours now and we wait for it."""
        if self.error is not None:
            shutil.rmtree(self.orders.folder, ignore_errors=True)
            raise CommandNotFound(
                f"{self.launch.command[0]!r} could not be started",
                found=self.error.error,
                hint="check that it is a program for this machine",
            )
        if self.end is not None:
            return
        if self.job_pid is None:
            raise StorageError(
                "the sampler process could not start", found=f"it ended with code {code}", hint="memfit doctor"
            )
        self.end = self._wait_for_the_job()
        self._write_end_ourselves(code)

    def _wait_for_the_job(self) -> JobFinished:
        assert self.job_pid is not None
        while True:
            try:
                _, status = os.waitpid(self.job_pid, os.WUNTRACED)
            except ChildProcessError:
                return JobFinished()
            if os.WIFSTOPPED(status):
                self._stop_with_the_job()
                continue
            code = os.waitstatus_to_exitcode(status)
            return JobFinished(exit_code=code if code >= 0 else None, signal=-code if code < 0 else None)

    def _write_end_ourselves(self, sampler_code: int) -> None:
        now_us = (time.monotonic_ns() - self.orders.clock_start_ns) // 1000
        writer = RunWriter(self.orders.folder)
        how = f"signal {-sampler_code}" if sampler_code < 0 else f"exit code {sampler_code}"
        writer.event(
            "note",
            now_us,
            message=f"the sampler process died ({how}) while the job ran; samples end there, the job was not disturbed",
        )
        writer.event("job_ended", now_us, **(self.end or JobFinished())._asdict())
        writer.close()

    def _job_end(self) -> JobEnd:
        end = self.end or JobFinished()
        return JobEnd(
            exit_code=end.exit_code,
            signal=end.signal,
            storage_problem=self.storage_problem,
            interrupted_by=self.interrupted_by,
        )

    # ---- signals and job control ----------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        """Signals sent to memfit are meant for the job."""
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, lambda n, _: self._forward(n))
        self._handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def _return_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _forward(self, number: int) -> None:
        if number in ENDING:
            self.interrupted_by = number
        if self.job_pid is None:
            self._early_signals.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.job_pid, number)

    def _stop_with_the_job(self) -> None:
        """Ctrl-Z stopped the job: stop as well, so that the shell gets its prompt, and go on together."""
        if self.job_pid is None:
            return
        if self.terminal:
            self.terminal.take_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        if self.terminal:
            self.terminal.give_to(self.job_pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.job_pid, signal.SIGCONT)


def _storage_problem(line: StorageFailed) -> str:
    return f"{line.error} after {line.seconds:.1f} s"


# ---- a program that is already running ---------------------------------------------------------------------------


class Attachment:
    """A running sampler on a process that is not ours to start; `close` detaches from it."""

    def __init__(self, pid: int, folder: Path, settings: Settings, *, overwrite: bool, live: bool = False) -> None:
        command = check_process(pid)
        self.folder = folder
        self._clock_start_ns = clock_start_ns = time.monotonic_ns()
        new_run.create(folder, command, settings, clock_start_ns, overwrite=overwrite)
        status_read, status_write = os.pipe()
        self._status = StatusReader(status_read)
        control_read, self._control_write = os.pipe()
        orders = orders_for(folder, settings, clock_start_ns)._replace(
            status_fd=status_write, live=live, attach=AttachOrder(pid=pid, control_fd=control_read)
        )
        self._sampler = start_sampler(orders, (status_write, control_read))
        os.close(status_write)
        os.close(control_read)
        self.storage_problem = ""

    def messages(self, timeout_seconds: float | None = None) -> list[StatusLine] | None:
        """What the sampler has said meanwhile; None when it is gone."""
        if not select.select([self._status.descriptor], [], [], timeout_seconds)[0]:
            return []
        heard = self._status.read()
        for line in heard or ():
            if isinstance(line, StorageFailed):
                self.storage_problem = _storage_problem(line)
        return heard

    def follow(self, duration_seconds: float | None, on_live: Listener | None) -> None:
        """Hear the sampler until the process ends, the time is over, or Ctrl-C detaches."""
        deadline = time.monotonic() + duration_seconds if duration_seconds is not None else None
        try:
            while (heard := self.messages(_seconds_left(deadline))) is not None:
                for line in heard:
                    if isinstance(line, LiveState) and on_live:
                        on_live(line)
                if deadline is not None and time.monotonic() >= deadline:
                    break
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def note(self, message: str) -> None:
        """Leave a sentence for the reader of the record."""
        writer = RunWriter(self.folder)
        writer.event("note", (time.monotonic_ns() - self._clock_start_ns) // 1000, message=message)
        writer.close()

    def close(self) -> None:
        """Detach: the sampler writes the end and leaves."""
        if self._control_write < 0:
            return
        with contextlib.suppress(BrokenPipeError):  # the sampler is gone already
            os.write(self._control_write, b".")  # a word, not only an end: a forked worker may hold the pipe open
        os.close(self._control_write)
        self._control_write = -1
        self._sampler.send_signal(signal.SIGUSR1)
        while self.messages(10.0):
            continue
        self._sampler.wait()
        os.close(self._status.descriptor)


def _seconds_left(deadline: float | None) -> float:
    return 1.0 if deadline is None else min(1.0, max(0.0, deadline - time.monotonic()))


def check_process(pid: int) -> list[str]:
    """The command line of a process we may measure; refuses one that is gone or belongs to somebody else."""
    try:
        owner = proc.read_owner(pid)
        status = proc.read_status(pid)
        command = proc.read_file(f"/proc/{pid}/cmdline", 1 << 16)
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessUnavailable(f"there is no process {pid}", hint="ps -u $USER lists yours") from None
    except PermissionError:
        owner, status, command = -1, None, b""
    if os.geteuid() not in (0, owner):
        raise ProcessUnavailable(
            f"process {pid} belongs to somebody else", found=f"user id {owner}", hint="run memfit as that user"
        )
    if status is None:
        raise ProcessUnavailable(
            f"process {pid} has no memory to measure", found="a zombie or a kernel thread", hint="give another PID"
        )
    return [part.decode("utf-8", "replace") for part in command.rstrip(b"\0").split(b"\0")]
