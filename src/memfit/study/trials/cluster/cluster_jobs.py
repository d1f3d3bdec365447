"""Jobs of a batch system (Slurm, PBS, LSF) that are workers for the trials of a study: what is asked for, and by whom.

    memfit study ... --on slurm
      coordinator ---connects---> job holder (a process of its own: Dask scheduler, submits the jobs)
                                     |--- job 1: Dask worker, one trial at a time
                                     `--- job 2: ...

The holder is in a session of its own and outlives a coordinator that is killed: trials go on, and the next session
finds the holder by the file cluster.json in the study's folder, with the trials that run and the results that wait.
It ends with the study, and by itself when no coordinator has come for a while.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from memfit.errors import MissingExtra, UsageError
from memfit.regular_file import read_regular
from memfit.study.trials.descendants import is_running, start_ticks

BatchSystem = Literal["slurm", "pbs", "lsf"]
BATCH_SYSTEMS: tuple[BatchSystem, ...] = ("slurm", "pbs", "lsf")
SUBMIT_COMMANDS = {"slurm": "sbatch", "pbs": "qsub", "lsf": "bsub"}
HOLDER_FILE, LOG_FILE = "cluster.json", "cluster.log"
START_SECONDS = 60.0
END_SECONDS = 30.0


class JobWish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of the batch system, and how many of them there are at most."""

    system: BatchSystem
    num_jobs: int = 1
    partition: str = ""
    """Partition or queue; empty for the batch system's default."""
    account: str = ""
    num_gpus: int = 0
    num_cpus: int = 1
    memory_bytes: int | None = None
    """None: the batch system's default."""
    seconds: float | None = None
    """How long a job may run; None: an hour."""
    interface: str = ""
    """The network that workers reach the coordinator's machine by; empty for the usual one."""
    options: tuple[str, ...] = ()
    """Lines for the batch system as they are: '--constraint=a100'."""


class JobHolder(msgspec.Struct, frozen=True, kw_only=True):
    """cluster.json: the process that holds the jobs, and the address of its scheduler."""

    pid: int
    start_ticks: int
    host: str
    address: str
    wish: JobWish


def find_holder(folder: Path) -> JobHolder | None:
    """The holder of a study's jobs that lives on this machine; None when there is none."""
    try:
        holder = msgspec.json.decode(read_regular(folder / HOLDER_FILE), type=JobHolder)
    except (OSError, msgspec.DecodeError):
        return None
    if holder.host != platform.node():
        hint = f"go on with the study on {holder.host}, or remove {folder / HOLDER_FILE} once its jobs have ended"
        raise UsageError("the jobs of this study are held on another machine", found=holder.host, hint=hint)
    lives = is_running(holder.pid) and start_ticks(holder.pid) == holder.start_ticks
    return holder if lives else None


def hold_jobs(folder: Path, wish: JobWish, tell: Callable[[str], None]) -> JobHolder:
    """The holder of an earlier session, or a new one."""
    holder = find_holder(folder)
    if holder is not None:
        tell(f"the jobs of an earlier session are still there (scheduler {holder.address})")
        return holder
    _require_jobqueue()
    require_submit_command(wish.system)
    (folder / HOLDER_FILE).unlink(missing_ok=True)
    log = folder / LOG_FILE
    with open(log, "ab") as output:
        words = ["-m", "memfit.study.trials.cluster.distributed_jobs", str(folder.absolute())]
        process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(msgspec.json.encode(wish))
        process.stdin.close()
    return _wait_for(folder, process, log)


def _wait_for(folder: Path, process: subprocess.Popen[bytes], log: Path) -> JobHolder:
    deadline = time.monotonic() + START_SECONDS
    while (holder := find_holder(folder)) is None or holder.pid != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            lines = log.read_text(errors="replace").strip().splitlines()
            found = lines[-1] if lines else f"exit code {process.returncode}"
            raise UsageError("the jobs could not be submitted", found=found[:300], hint=f"see {log}")
        time.sleep(0.05)
    return holder


def release_jobs(folder: Path) -> None:
    """End the holder, and with it the jobs."""
    holder = find_holder(folder)
    if holder is None:
        return
    with contextlib.suppress(OSError):
        os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    while is_running(holder.pid) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            os.waitpid(holder.pid, os.WNOHANG)
        time.sleep(0.05)
    (folder / HOLDER_FILE).unlink(missing_ok=True)


def require_submit_command(system: BatchSystem) -> None:
    """Without it no job ever comes, and a study would wait for ever."""
    command = SUBMIT_COMMANDS[system]
    if shutil.which(command) is None:
        hint = "run this where jobs are submitted (a login node), or name a Dask scheduler: --on tcp://HOST:8786"
        raise UsageError(f"there is no {system} here", found=f"no command {command}", hint=hint)


def last_line(folder: Path) -> str:
    """The last line that the holder of a study's jobs wrote: where no job comes, the reason."""
    try:
        lines = (folder / LOG_FILE).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:300] if lines else ""


def _require_jobqueue() -> None:
    import importlib.util

    if importlib.util.find_spec("dask_jobqueue") is None:
        raise MissingExtra("jobs of a batch system need dask-jobqueue", hint="pip install 'memfit[cluster]'")
