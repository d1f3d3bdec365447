"""The sampler process: starts a job or attaches to it, reads its counters at a steady rate, writes them down.

Started as a fresh interpreter that loads the standard library and the few memfit files below, nothing else: it stays
near 10 MiB, and that matters, because a job inherits the size of the process that starts it as the floor of the
kernel's high-water mark.

It is the job's parent, so that it hears of the job's end at once and the kernel tells it the true high-water mark.
When it dies, the job goes on: it becomes a child of the memfit command (a subreaper too), which waits for it and
passes its exit code on.

    orders         what it gets, and what it says     process_tree   who belongs to the job
    counters/proc  what the kernel says                launch         how the job begins
    watch_marks    what the job says of its steps      guard          when the job is ended
    shared_pages   when proportional size is read      ticks          the steady beat, and how often that is
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Any, NamedTuple

from memfit.measure.counters import proc
from memfit.measure.sampler.energy_and_gpu import EnergyAndGpu
from memfit.measure.sampler.launch import start_job
from memfit.measure.sampler.memory_limit import Guard, send_to_all
from memfit.measure.sampler.orders import (
    JobFinished,
    JobNotStarted,
    JobStopped,
    JobWatched,
    LaunchOrder,
    SamplerOrders,
    StatusLine,
    StorageFailed,
    decode_orders,
    encode_status,
)
from memfit.measure.sampler.process_tree import LiveProcess, ProcessTree, become_subreaper, has_ended
from memfit.measure.sampler.shared_pages import TreeWalks
from memfit.measure.sampler.ticks import Pace, Reading, Ticks, step_aside
from memfit.measure.sampler.watch_marks import MarksWatcher
from memfit.records.files import layout
from memfit.records.run_parts.live import LiveState
from memfit.runfolder.writer import RunWriter

HOUSEKEEPING_US = 100_000
"""What does not belong to every tick is looked after this often, the understanding of what was read included."""
EASED_HOUSEKEEPING_US = 300_000
"""The same while the sampler is eased: the marks bring the peaks, and what is found late is no peak of a step."""
STATUS_READ_SECONDS = 0.25
MACHINE_READ_SECONDS = 1.0
FLUSH_SECONDS = 0.2
LIVE_SECONDS = 0.25
LOOK_COST_SHARE, LOOK_PAUSE_US = 1 / 1000, 200_000
"""Looking for new processes may take this share of the time, but is never put off for longer than this."""


class ChildEnd(NamedTuple):
    """The end of a job that the sampler started, as the kernel reported it; written as the event "job_ended"."""

    exit_code: int | None
    signal: int | None
    max_resident_bytes: int
    floor_bytes: int
    user_seconds: float
    system_seconds: float
    num_oom_kills: int | None


class AttachedEnd(NamedTuple):
    """The end of watching a process that the sampler did not start."""

    detached: bool
    """The process goes on."""


class Sampler:
    """The loop and its state; lives as long as the job."""

    def __init__(self, orders: SamplerOrders) -> None:
        self.orders = orders
        self.ticks = Ticks(max(1, round(orders.interval_seconds * 1e9)))
        launch = orders.launch
        self.guard = Guard(launch.limit_bytes, launch.grace_seconds) if launch and launch.limit_bytes else None
        eased_seconds = None if self.guard else orders.eased_interval_seconds
        self.pace = Pace(self.ticks.interval_ns, round(eased_seconds * 1e9) if eased_seconds else None)
        self.start_ns = orders.clock_start_ns
        self.writer = RunWriter(orders.folder)
        self.launched = launch is not None
        self.ends_with_pid = launch.ends_with_pid if launch else None
        self.marks = MarksWatcher(orders.folder)
        self.counters: EnergyAndGpu | None = None
        self.walks = TreeWalks(self.writer, full=orders.ledger)
        self.pid = 0
        self.tree: ProcessTree
        self.end: ChildEnd | AttachedEnd | None = None
        self.peak_bytes = 0
        self.tree_bytes = 0
        self.num_failed = 0
        self._start_cpu_seconds = time.process_time()
        self._due: dict[str, int] = {}
        self._oom_kills_before = proc.count_oom_kills()
        self._floor_bytes = 0
        self._storage_reported = False

    # ---- life -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start or find the job, watch it to its end, write the last lines."""
        self._listen_to_signals()
        launch, attach = self.orders.launch, self.orders.attach
        if launch is not None:
            self.pid = self._launch(launch)
        elif attach is not None:
            self.pid = attach.pid
        self.tree = ProcessTree(self.pid, adopts_orphans=self.launched)
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._tell(JobWatched(self.pid))
        if self.launched:
            self._announce(self.tree.enter_root(self.now_us()))
        self._loop()
        self._finish()

    def now_us(self) -> int:
        """Microseconds since the run began."""
        return (time.monotonic_ns() - self.start_ns) // 1000

    def _listen_to_signals(self) -> None:
        """The memfit command decides what a signal means; here they only must not end the watching."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGPIPE, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        self.ticks.wake_on(signal.SIGCHLD, signal.SIGUSR1)

    def _launch(self, launch: LaunchOrder) -> int:
        """Start the job in a process group of its own; tell the command and leave when that is not possible."""
        become_subreaper()
        os.set_inheritable(self.orders.status_fd, False)  # else whatever the job leaves behind would keep it open
        environment = dict(os.environ)
        for name, value in launch.environment.items():
            environment.pop(name, None)
            environment |= {name: value} if value is not None else {}
        status = proc.read_status(os.getpid())
        self._floor_bytes = status.high_water_bytes if status else 0
        pid, error_number = start_job(launch.command, environment, launch.terminal_fd, launch.ignored_signals)
        if error_number:
            self._tell(JobNotStarted(os.strerror(error_number)))
            sys.exit(0)
        return pid

    # ---- the loop -------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Look after everything now and then; in between, nothing but reading."""
        self.ticks.start()
        self._look(self.now_us())
        if not self.launched:
            self._set_aside_earlier_peaks()
        self._watch(0)
        self.counters = EnergyAndGpu(self.orders.assume_watts)
        while self.end is None:
            self._watch(self._pause_us())
            self._reap()
            self._housekeep(self.now_us())

    def _set_aside_earlier_peaks(self) -> None:
        """Processes that ran before memfit attached have high-water marks that are not this run's."""
        for process in self.tree.processes.values():
            with contextlib.suppress(OSError):
                counters = proc.read_status(process.pid)
                process.earlier_bytes = counters.high_water_bytes if counters else 0

    def _pause_us(self) -> int:
        """For how long nothing is done but reading; a guard's job is looked at after every tick."""
        if self.guard is not None:
            return 0
        return EASED_HOUSEKEEPING_US if self.pace.is_eased else HOUSEKEEPING_US

    def _watch(self, pause_us: int) -> None:
        files = [(process.pid, process.statm.descriptor) for process in self.tree.processes.values()]
        self._understand(self.ticks.watch(files, time.monotonic_ns() + pause_us * 1000))

    def _housekeep(self, now_us: int) -> None:
        """What is not done at every tick; the guard's job is looked at after every one."""
        if self.guard is not None:
            self._guard(now_us)
        if self.ends_with_pid not in (None, os.getppid()):
            self.ends_with_pid = None
            self.writer.event(
                "note", now_us, message="memfit was killed, and the job it had started for itself with it"
            )
            send_to_all(signal.SIGKILL, self.pid, self.tree.processes.keys())
        if self._due_now("housekeeping", now_us, HOUSEKEEPING_US / 1e6 / 2):
            self._look(now_us)
            self.walks.consider(self.tree, now_us, self.tree_bytes)
            self._slow_work(now_us)
            self._choose_pace(now_us)

    def _choose_pace(self, now_us: int) -> None:
        if self.pace.is_due(now_us):
            step, _ = self.marks.where(now_us)
            num_exact = step - 1 if step and self.marks.peak_bytes else 0
            was_eased = self.pace.is_eased
            self.pace.spent(time.process_time_ns(), self.ticks.num_ticks)
            self.pace.judge(now_us, num_exact, len(self.tree.processes))
            self.ticks.interval_ns = self.pace.interval_ns
            if self.pace.is_eased != was_eased:
                step_aside(self.pace.is_eased)

    def _understand(self, readings: list[Reading]) -> None:
        """Write down what was read at the last ticks, and what it means for the tree."""
        processes, start_ns = self.tree.processes, self.start_ns
        for time_ns, deadline_ns, pid, answer in readings:
            process = processes.get(pid)
            if process is None:
                continue
            time_us, late_us = (time_ns - start_ns) // 1000, max(0, time_ns - deadline_ns) // 1000
            try:
                resident_bytes, shared_bytes = proc.parse_statm(answer)
            except ProcessLookupError:
                if has_ended(pid):
                    self._lose(process, time_us)
                continue
            except (OSError, ValueError):
                self.num_failed += 1
                self.writer.sample(time_us, late_us, process.index, layout.FLAG_FAILED, 0, 0)
                continue
            process.resident_bytes = resident_bytes
            self.writer.sample(time_us, late_us, process.index, 0, resident_bytes, shared_bytes)
            if resident_bytes > self.peak_bytes:
                self.peak_bytes = resident_bytes
        self.tree_bytes = self.walks.estimate(self.tree)
        self.peak_bytes = max(self.peak_bytes, self.tree_bytes)

    def _due_now(self, name: str, now_us: int, every_seconds: float) -> bool:
        if now_us < self._due.get(name, 0):
            return False
        self._due[name] = now_us + int(every_seconds * 1e6)
        return True

    def _slow_work(self, now_us: int) -> None:
        """Everything that does not belong to every tick."""
        if self._due_now("status", now_us, STATUS_READ_SECONDS * max(1, len(self.tree.processes) / 4)):
            self._read_statuses(now_us)
            if len(self.tree.processes) > 1:
                self.walks.count_faults(self.tree, now_us)
        if self._due_now("machine", now_us, MACHINE_READ_SECONDS):
            with contextlib.suppress(OSError, KeyError):
                self.writer.event("system", now_us, **proc.read_machine(), job_bytes=self.tree_bytes)
            if self.counters is not None:
                self.counters.keep_up(now_us)
                self._write_all(self.counters.gpu_events(list(self.tree.processes)), now_us)
        if self._due_now("flush", now_us, FLUSH_SECONDS):
            self.writer.flush()
            self._mention_storage()
        if self.orders.live and self._due_now("live", now_us, LIVE_SECONDS):
            self._tell_live(now_us)

    def _write_all(self, events: list[dict[str, Any]], now_us: int) -> None:
        for event in events:
            self.writer.event(event["kind"], now_us, **{name: fact for name, fact in event.items() if name != "kind"})

    def _look(self, now_us: int) -> None:
        """Find new processes, within a share of the time."""
        if now_us < self._due.get("look", 0):
            return
        before_ns = time.monotonic_ns()
        for process in self.tree.look(now_us):
            self._announce(process)
        cost_us = (time.monotonic_ns() - before_ns) // 1000
        self._due["look"] = now_us + min(int(cost_us / LOOK_COST_SHARE), LOOK_PAUSE_US)

    def _announce(self, process: LiveProcess | None) -> None:
        """Write down that a process has joined the job."""
        if process is not None:
            names: dict[str, Any] = {"pid": process.pid, "parent_pid": process.parent_pid, "command": process.command}
            if process.inner_name:
                names["inner_name"] = process.inner_name
            self.writer.event("process_started", process.born_us, process=process.index, **names)

    def _read_statuses(self, now_us: int) -> None:
        for process in list(self.tree.processes.values()):
            try:
                counters = proc.read_status(process.pid)
            except OSError:
                continue
            if counters is None:
                if has_ended(process.pid):
                    self._lose(process, now_us)
                continue
            counters = _of_this_run(counters, process.earlier_bytes)
            if _is_news(process.reported, counters):
                process.reported = counters
                self.writer.event("counters", now_us, process=process.index, **counters._asdict())
                self._rename(process, now_us)

    def _rename(self, process: LiveProcess, now_us: int) -> None:
        """A process that has started another program in its place (exec) goes by the new name."""
        with contextlib.suppress(OSError):
            command = proc.read_command(process.pid)
            if command != process.command:
                process.command = command
                self.writer.event("process_renamed", now_us, process=process.index, command=command)

    def _lose(self, process: LiveProcess, now_us: int) -> None:
        """A process of the tree has ended."""
        self.tree.drop(process)
        self.writer.event("process_ended", now_us, process=process.index)

    def _guard(self, now_us: int) -> None:
        """End the whole group when the tree has passed the limit, and go on recording while it ends."""
        assert self.guard is not None
        if self.guard.is_over(self.tree_bytes) and len(self.tree.processes) > 1 and not self.guard.acting:
            self.walks.walk(self.tree, now_us, "limit")
            self.tree_bytes = self.walks.estimate(self.tree)
        for kind, facts in self.guard.decide(self.tree_bytes, now_us):
            if kind == "limit":
                step, phase = self.marks.where(now_us)
                self.writer.event("limit", now_us, tree_bytes=self.tree_bytes, step=step, phase=phase, **facts)
            send_to_all(facts["signal"], self.pid, self.tree.processes.keys())

    # ---- the job's end --------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Hear what children of ours did: the job's end or stop, and the end of adopted orphans."""
        if not self.launched:
            self._look_at_the_attached()
            return
        while self.end is None:
            try:
                heard = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if heard is None:
                return
            if heard.si_pid == self.pid and heard.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
                os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
                self._tell(JobStopped(heard.si_status))
            elif heard.si_pid == self.pid:
                self._take_end()
            else:
                os.waitpid(heard.si_pid, os.WUNTRACED | os.WNOHANG)

    def _take_end(self) -> None:
        """The job has ended: take its exit status and what the kernel knows of its memory."""
        _, status, usage = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        kills = proc.count_oom_kills()
        before = self._oom_kills_before
        self.end = ChildEnd(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            max_resident_bytes=usage.ru_maxrss * 1024,
            floor_bytes=self._floor_bytes,
            user_seconds=usage.ru_utime,
            system_seconds=usage.ru_stime,
            num_oom_kills=None if kills is None or before is None else kills - before,
        )

    def _look_at_the_attached(self) -> None:
        """A program that is not our child: has it ended, or does the command detach from it (or die)?"""
        control_fd = self.orders.attach.control_fd if self.orders.attach else None
        ready, _, _ = select.select([fd for fd in (control_fd, self._pidfd) if fd is not None], [], [], 0)
        if self._pidfd in ready or (self._pidfd is None and has_ended(self.pid)):
            self.end = AttachedEnd(detached=False)
        elif control_fd in ready:
            self.walks.walk(self.tree, self.now_us(), "end")
            self.end = AttachedEnd(detached=True)

    def _finish(self) -> None:
        """The last lines of the record."""
        now_us = self.now_us()
        root = self.tree.processes.get(self.pid)
        if root is not None and not self._is_detached:
            self._lose(root, now_us)
        self._mention_survivors(now_us)
        self._mention_left_out(now_us)
        assert self.counters is not None
        self._write_all(self.counters.finish(), now_us)
        own = proc.read_status(os.getpid())
        self.writer.event(
            "sampler",
            now_us,
            cpu_seconds=time.process_time(),
            start_cpu_seconds=self._start_cpu_seconds,
            wall_seconds=now_us / 1e6,
            resident_bytes=own.resident_bytes if own else 0,
            num_ticks=self.ticks.num_ticks,
            num_late_ticks=self.ticks.num_late,
            late_high_us=self.ticks.late_high_ns // 1000,
            num_failed_reads=self.num_failed,
        )
        child = self.end if isinstance(self.end, ChildEnd) else None
        facts = child._asdict() if child else {"detached": True} if self._is_detached else {}
        self.writer.event("job_ended", now_us, **facts)
        self.writer.close()
        self._mention_storage()
        self._tell(JobFinished(child.exit_code, child.signal) if child else JobFinished())

    @property
    def _is_detached(self) -> bool:
        return isinstance(self.end, AttachedEnd) and self.end.detached

    def _mention_survivors(self, now_us: int) -> None:
        """Processes that the job left behind go on, no longer measured: say so."""
        living = [process for process in self.tree.processes.values() if not has_ended(process.pid)]
        if living and not self._is_detached:
            names = ", ".join(f"{process.command[:60]} (pid {process.pid})" for process in living[:3])
            message = f"{len(living)} of the job's processes were still running when it ended: {names}"
            self.writer.event("note", now_us, message=message)

    def _mention_left_out(self, now_us: int) -> None:
        """Processes that could not be read are missing in every sum: say so."""
        if self.tree.num_left_out:
            message = f"{self.tree.num_left_out} of the job's processes were too many for the sampler to read (open "
            message += "files: ulimit -n): they are not in the figures of the tree, which are too low"
            self.writer.event("note", now_us, message=message)

    # ---- talking to the command -----------------------------------------------------------------------------------

    def _tell(self, line: StatusLine) -> None:
        """One line to the memfit command; it may be gone, which is no reason to stop."""
        with contextlib.suppress(OSError):
            os.write(self.orders.status_fd, encode_status(line))

    def _tell_live(self, now_us: int) -> None:
        step, phase = self.marks.where(now_us)
        live = LiveState(
            seconds=now_us / 1e6,
            tree_bytes=self.tree_bytes,
            peak_bytes=max(self.peak_bytes, self.marks.peak_bytes),
            num_ticks=self.ticks.num_ticks,
            num_processes=len(self.tree.processes),
            step=step,
            phase=phase,
            steps_per_second=self.marks.steps_per_second,
        )
        self._tell(live)

    def _mention_storage(self) -> None:
        """A full disk ends the writing, not the job: say so once."""
        if self.writer.failure is not None and not self._storage_reported:
            self._storage_reported = True
            self._tell(StorageFailed(str(self.writer.failure.strerror), self.now_us() / 1e6))


def _of_this_run(counters: proc.StatusCounters, earlier_bytes: int) -> proc.StatusCounters:
    """Without a high-water mark from before the run: then the present size is all that is known."""
    if counters.high_water_bytes > earlier_bytes:
        return counters
    return counters._replace(high_water_bytes=counters.resident_bytes)


def _is_news(old: proc.StatusCounters | None, new: proc.StatusCounters) -> bool:
    """Whether a reading differs enough from the last written one to be worth a line."""
    if old is None or new.high_water_bytes > old.high_water_bytes:
        return True
    return abs(new.resident_bytes - old.resident_bytes) > old.resident_bytes // 20


def main() -> None:
    """Entry point: the argument is the number of an open file with the orders, which the job must not inherit."""
    with open(int(sys.argv[1]), "rb") as stream:
        orders = decode_orders(stream.read())
    Sampler(orders).run()
