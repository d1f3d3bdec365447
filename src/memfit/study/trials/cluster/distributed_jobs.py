"""Process that holds the jobs of a study: a Dask scheduler whose workers are jobs of Slurm, PBS or LSF.

    python -m memfit.study.trials.cluster.distributed_jobs FOLDER     (the wish comes as JSON on standard input)

A job that ends (its time is up, its node fails) is submitted again while trials wait. SIGTERM ends the jobs and the
process; so does a quarter of an hour without a coordinator in which nothing runs.
"""

from __future__ import annotations

import math
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from distributed import Scheduler, SpecCluster

from memfit.study.trials.cluster.cluster_jobs import HOLDER_FILE, JobHolder, JobWish
from memfit.study.trials.descendants import start_ticks

LONELY_SECONDS = 900.0
"""So long it waits for another coordinator once nothing runs."""
LOOK_SECONDS = 1.0
DEATH_SECONDS = 60
"""A worker that does not reach the scheduler for so long ends, and its trial with it."""


def cluster_for(wish: JobWish, log_folder: Path) -> SpecCluster:
    """The jobs as dask-jobqueue describes them; nothing is submitted yet."""
    from dask_jobqueue.lsf import LSFCluster
    from dask_jobqueue.pbs import PBSCluster
    from dask_jobqueue.slurm import SLURMCluster

    kinds = {"slurm": SLURMCluster, "pbs": PBSCluster, "lsf": LSFCluster}
    memory_bytes = wish.memory_bytes or 2**30
    common: dict[str, Any] = {
        "cores": 1,  # trials at a time in one job
        "processes": 1,
        "memory": f"{memory_bytes} B",
        "nanny": False,
        "python": sys.executable,
        "walltime": _clock(wish.seconds or 3600.0, with_seconds=wish.system != "lsf"),
        "death_timeout": DEATH_SECONDS,
        "worker_extra_args": ["--memory-limit", "0", *_resources(wish)],
        "log_directory": str(log_folder),
        "job_name": "memfit",
        "scheduler_options": {"dashboard": False},
    }
    if wish.partition:
        common["queue"] = wish.partition
    if wish.account and wish.system != "lsf":
        common["account"] = wish.account
    if wish.account and wish.system == "lsf":
        common["project"] = wish.account
    if wish.interface:
        common["interface"] = wish.interface
    return kinds[wish.system](**common, **_own(wish, memory_bytes))


def _own(wish: JobWish, memory_bytes: int) -> dict[str, object]:
    """What each batch system has a word of its own for."""
    extra, skipped = list(wish.options), []
    mebibytes = math.ceil(memory_bytes / 2**20)
    if wish.system == "slurm":
        extra += [f"--gres=gpu:{wish.num_gpus}"] if wish.num_gpus else []
        skipped += [] if wish.memory_bytes else ["--mem"]
        own = {"job_cpu": wish.num_cpus, "job_mem": f"{mebibytes}M"}
    elif wish.system == "pbs":
        memory = f":mem={mebibytes}mb" if wish.memory_bytes else ""
        gpus = f":ngpus={wish.num_gpus}" if wish.num_gpus else ""
        own = {"resource_spec": f"select=1:ncpus={wish.num_cpus}{memory}{gpus}"}
    else:
        extra += [f'-gpu "num={wish.num_gpus}"'] if wish.num_gpus else []
        skipped += [] if wish.memory_bytes else ["-M"]
        own = {"ncpus": wish.num_cpus, "mem": memory_bytes}
    return {**own, "job_extra_directives": extra, "job_directives_skip": skipped}


def _resources(wish: JobWish) -> list[str]:
    """What a worker offers to the trials."""
    offered = {"memory": wish.memory_bytes, "GPU": wish.num_gpus}
    words = [f"{name}={amount}" for name, amount in offered.items() if amount]
    return ["--resources", ",".join(words)] if words else []


def _clock(seconds: float, *, with_seconds: bool) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    if not with_seconds:
        minutes, rest = minutes + (rest > 0), 0
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}" + (f":{rest:02d}" if with_seconds else "")


def hold(folder: Path, wish: JobWish) -> None:
    """Submit jobs as long as there are trials for them."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a login that ends leaves the jobs alone
    jobs = folder / "jobs"
    jobs.mkdir(exist_ok=True)
    os.chdir(jobs)
    cluster: Any = cluster_for(wish, jobs)
    with cluster:
        _announce(folder, wish, cluster.scheduler_address)
        busy_at = time.monotonic()
        while not stop.wait(LOOK_SECONDS) and time.monotonic() - busy_at < LONELY_SECONDS:
            num_waiting = _num_unfinished(cluster.scheduler)
            if num_waiting or _has_coordinator(cluster.scheduler):
                busy_at = time.monotonic()
            wanted = min(wish.num_jobs, max(num_waiting, len(cluster.worker_spec)))
            if wanted > len(cluster.worker_spec):
                cluster.scale(jobs=wanted)
    (folder / HOLDER_FILE).unlink(missing_ok=True)


def _announce(folder: Path, wish: JobWish, address: str) -> None:
    pid = os.getpid()
    holder = JobHolder(pid=pid, start_ticks=start_ticks(pid) or 0, host=platform.node(), address=address, wish=wish)
    temporary = folder / f".{HOLDER_FILE}.new"
    temporary.write_bytes(msgspec.json.encode(holder))
    os.replace(temporary, folder / HOLDER_FILE)


def _num_unfinished(scheduler: Scheduler) -> int:
    """Trials that run or wait; what has ended is in memory until it is fetched."""
    ended = ("memory", "erred", "released", "forgotten")
    return sum(task.state not in ended for task in list(scheduler.tasks.values()))


def _has_coordinator(scheduler: Scheduler) -> bool:
    """Whether a client is connected; those that only stand for results to keep are none."""
    return any(not name.startswith(("fire-and-forget", "published-", "memfit-")) for name in list(scheduler.clients))


if __name__ == "__main__":
    hold(Path(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=JobWish))
