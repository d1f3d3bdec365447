"""Process of one trial on this machine: started under the sampler, followed, ended, read.

    coordinator ----starts----> sampler ----starts----> the trial (its own process group)
         ^   pipe: its end          |                        |
         `--------------------------'   run/ <---------------' metrics.jsonl, stdout.txt, stderr.txt

The sampler is in a session of its own, so Ctrl-C in the terminal reaches the coordinator alone, and it outlives a
coordinator that is killed: the trial goes on, its end is recorded, and the next session takes it up (`adopt`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec

from memfit.errors import MemfitError, StorageError
from memfit.measure import new_run
from memfit.measure.sampler.orders import JobNotStarted, LaunchOrder, SamplerOrders, StatusReader
from memfit.measure.session import INSIDE_START, job_environment, orders_for, sampler_command
from memfit.records.run import RunRecord, Settings, settings_for
from memfit.records.run_parts.live import LiveState
from memfit.records.study import TrialOutcome, TrialRecord
from memfit.regular_file import open_regular, read_regular
from memfit.runfolder.reader import read_run
from memfit.study.trials.descendants import age_seconds, end_all, is_running, living, start_ticks
from memfit.study.trials.files import Report, ReportReader, trial_environment, write_parameters
from memfit.study.trials.result import TrialEnd, conclude
from memfit.study.trials.trial_order import TrialOrder

PROCESS_FILE = "sampler.json"
ENDING_FILE = "ending.json"
INTERRUPTED = TrialEnd(kind="cancelled", reason="the study was ended before the trial was; it is run again")
PROFILE_START = str(Path(__file__).parent / "profile_start")
SAMPLER_SECONDS = 30.0
"""A sampler that lives so long after its trial was made to end is stuck (stopped, or waiting for a dead disk)."""
_LAST_WORDS_BYTES = 4096


class SamplerName(msgspec.Struct, frozen=True, kw_only=True):
    """sampler.json: which process watches this trial."""

    pid: int
    start_ticks: int
    gpu_indices: tuple[int, ...] | None = None
    """GPUs that the trial got; None where they are not scheduled."""


def kept_gpus(folder: Path) -> tuple[int, ...] | None:
    """The GPUs that the trial in a folder was started with; None where that is not known."""
    try:
        return msgspec.json.decode(read_regular(folder / PROCESS_FILE), type=SamplerName).gpu_indices
    except (OSError, msgspec.DecodeError):
        return None


class TrialProcess:
    """One attempt at a trial, from its start to its record."""

    def __init__(self, order: TrialOrder) -> None:
        self.order = order
        self.folder = Path(order.folder)
        self.reports: list[Report] = []
        self.ending: TrialEnd | None = None
        self.live: LiveState | None = None
        """What the sampler last said of the job, where it was asked to."""
        self.sampler_pid: int | None = None
        self.began = time.monotonic()
        self._reader = ReportReader(self.folder, order.metric)
        self._process: subprocess.Popen[bytes] | None = None
        self._descriptor = -1
        """Of the sampler's process: readable when it has ended. The pipe tells less: the job inherits its other end."""
        self._status: StatusReader | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._error = ""

    # ---- beginning ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the trial; raises when the folder cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_parameters(self.folder, self.order.proposal)
            self._start_sampler()
        except OSError as error:
            found = error.strerror or str(error)
            raise StorageError(f"{self.folder} cannot be written", found=found, hint="free some space") from None

    def _start_sampler(self) -> None:
        order, run = self.order, self.folder / "run"
        settings = settings_for(order.interval_seconds, limit_bytes=order.limit_bytes)
        clock_start_ns = time.monotonic_ns()
        new_run.create(run, list(order.command), settings, clock_start_ns, overwrite=True)
        status_read, status_write = os.pipe()
        os.set_blocking(status_read, False)
        self._status = StatusReader(status_read)
        launch = LaunchOrder(
            command=tuple(order.command),
            environment=self._environment(run, settings),
            limit_bytes=order.limit_bytes,
            grace_seconds=order.grace_seconds,
        )
        orders = orders_for(run, settings, clock_start_ns)
        try:
            self._process = self._spawn(orders._replace(status_fd=status_write, live=order.live, launch=launch))
        finally:
            os.close(status_write)
        self.sampler_pid = self._process.pid
        self._descriptor = os.pidfd_open(self.sampler_pid)
        begun = start_ticks(self.sampler_pid) or 0
        name = SamplerName(pid=self.sampler_pid, start_ticks=begun, gpu_indices=order.gpu_indices)
        (self.folder / PROCESS_FILE).write_bytes(msgspec.json.encode(name))

    def _spawn(self, orders: SamplerOrders) -> subprocess.Popen[bytes]:
        with (
            open(self.folder / "stdout.txt", "wb") as out,
            open(self.folder / "stderr.txt", "wb") as err,
            sampler_command(orders) as (arguments, orders_fd),
        ):
            return subprocess.Popen(
                arguments,
                pass_fds=(orders.status_fd, orders_fd),
                cwd=self.order.code_folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _environment(self, run: Path, settings: Settings) -> dict[str, str | None]:
        """What the trial's environment has that ours has not: NNI's variables, the marks of measure, the profiler."""
        order = self.order
        wanted = trial_environment(
            {**os.environ, **order.environment},
            folder=self.folder,
            code_folder=Path(order.code_folder),
            study_id=order.study_id,
            trial_id=order.trial_id,
            number=order.number,
            gpu_indices=order.gpu_indices,
            route=order.route,
        )
        changes: dict[str, str | None] = {
            name: wanted.get(name) for name in {*wanted, *os.environ} if wanted.get(name) != os.environ.get(name)
        }
        first = [INSIDE_START, PROFILE_START] if order.profile else [INSIDE_START]
        if order.profile:
            changes["MEMFIT_PROFILE_FOLDER"] = str(self.folder / "tensorboard")
        path = os.pathsep.join(filter(None, [*first, wanted.get("PYTHONPATH", "")]))
        return changes | job_environment(run, settings) | {"PYTHONPATH": path}

    def adopt(self) -> bool:
        """Take up a trial that an earlier session started; False when it is not watched any more."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self.ending = msgspec.json.decode(read_regular(self.folder / ENDING_FILE), type=TrialEnd)
        try:
            name = msgspec.json.decode(read_regular(self.folder / PROCESS_FILE), type=SamplerName)
            self._descriptor = os.pidfd_open(name.pid)
        except (OSError, msgspec.DecodeError):
            return False
        if start_ticks(name.pid) != name.start_ticks or not is_running(name.pid):
            self._close()
            return False
        self.sampler_pid = name.pid
        self.began = time.monotonic() - age_seconds(name.start_ticks)  # its time limit counts from its own start
        return True

    # ---- while it runs --------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when the sampler has ended."""
        return self._descriptor

    def hear(self) -> None:
        """Take in what the sampler has said so far."""
        with contextlib.suppress(BlockingIOError):
            while self._status is not None and (lines := self._status.read()) is not None:
                for line in lines:
                    if isinstance(line, LiveState):
                        self.live = line
                    elif isinstance(line, JobNotStarted):
                        self._error = line.error

    def read_reports(self) -> bool:
        """Read what the trial has reported since the last time; whether there is anything new."""
        new = self._reader.read_new()
        self.reports += new
        return bool(new)

    @property
    def seconds(self) -> float:
        """How long it has been running, in whichever session it began."""
        return time.monotonic() - self.began

    def look_at_the_clock(self) -> None:
        """End a trial that is out of time, and one that did not end when it was asked to."""
        most = self.order.max_seconds
        if most is not None and self.ending is None and self.seconds > most:
            self.end(TrialEnd(kind="out of time", reason=f"it ran for longer than {most:g} s"))
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = time.monotonic() + 1.0
            end_all(self.sampler_pid, self._mark)
            self._end_stuck_sampler()

    def _end_stuck_sampler(self) -> None:
        """Whoever waits for this trial would wait for ever; without the sampler its end is not recorded."""
        now = time.monotonic()
        self._give_up_at = self._give_up_at or now + SAMPLER_SECONDS
        if now >= self._give_up_at and self.sampler_pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self.sampler_pid, signal.SIGKILL)

    def end(self, ending: TrialEnd, *, at_once: bool = False) -> None:
        """Ask the trial to end; after the grace period it is made to."""
        if self.ending is None:
            self.ending = ending
            with contextlib.suppress(OSError):  # for the next session, should this one end before the trial does
                (self.folder / ENDING_FILE).write_bytes(msgspec.json.encode(ending))
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self.order.grace_seconds
            for pid in living(self.sampler_pid, self._mark):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
        if at_once:
            self._kill_at = 0.0
            self.look_at_the_clock()

    @property
    def _mark(self) -> str:
        return str(self.folder.absolute())

    # ---- the end --------------------------------------------------------------------------------------------------

    def take_leave(self) -> None:
        """The sampler has ended: hear its last words, and close it."""
        self.hear()
        if self._process is not None:
            self._process.wait()
        self._close()

    def _close(self) -> None:
        for descriptor in (self._descriptor, -1 if self._status is None else self._status.descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor, self._status = -1, None

    def conclude(self) -> TrialRecord | None:
        """The record of the trial, with every process of it ended; None when it is to be run again."""
        blank = self.order.blank_record()
        if self._error:
            end_all(None, self._mark)
            message = f"{self.order.command[0]} could not be started: {self._error}"
            return msgspec.structs.replace(blank, outcome=TrialOutcome(kind="failed", message=message))
        run = self._read_run()
        left = end_all(None, self._mark, () if run is None else _survivors(run))
        self.read_reports()
        if run is None:
            return None
        record = conclude(
            blank,
            run,
            self.reports,
            ending=self.ending,
            last_words=_last_words(self.folder),
            notes=self._notes(left),
        )
        return None if record.kind == INTERRUPTED.kind and self.ending == INTERRUPTED else record

    def _read_run(self) -> RunRecord | None:
        """The run record, when it holds the end of the job."""
        try:
            run = read_run(self.folder / "run")
        except MemfitError:
            return None
        return None if run.outcome.kind == "lost" else run

    def _notes(self, left: list[int]) -> list[str]:
        notes = []
        if left and self.ending is None:
            notes.append(f"{len(left)} of its processes were still running after its end and were ended")
        if self._reader.num_broken:
            notes.append(f"{self._reader.num_broken} lines of its reports could not be read and were left out")
        if self.order.profile:
            notes.append("it ran under torch.profiler, whose own memory and time are in the figures")
        return notes


def _survivors(run: RunRecord) -> list[int]:
    """Processes that the run record saw and never saw end, and that are still the same ones."""
    parents = {process.pid for process in run.processes} | {os.getpid(), 1}
    pids = [process.pid for process in run.processes if process.ended_seconds is None]
    return [pid for pid in pids if _parent(pid) in parents]


def _parent(pid: int) -> int | None:
    from memfit.measure.counters.proc import read_parent

    try:
        return read_parent(pid)
    except (OSError, IndexError, ValueError):
        return None


def _last_words(folder: Path) -> str:
    """The last line a trial wrote to its standard error: in Python, the exception."""
    try:
        with open_regular(folder / "stderr.txt") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    own = [line for line in lines if line.startswith("memfit: ")]  # an error of a workload, followed by what to try
    return (own or lines)[-1].strip()[:300] if lines else ""
