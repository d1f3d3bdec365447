"""Runs one trial on a worker of a Dask cluster, with the same process, sampler and record as locally.

Orders come and answers go as bytes of JSON, so that a worker with another version of a library understands them.
While the trial runs, its reports go home as events; whether it is to be ended is asked of an event that home may
set. The trial's folder is the worker's own; at the end it is packed and sent home whole.

A watchdog ends the trial when the worker itself is killed: a small process that holds one end of a pipe, and ends
everything that carries the trial's folder once the other end is gone.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from distributed import Event, get_client, get_worker
from distributed.utils import sync

from memfit.errors import MemfitError
from memfit.records.study import TrialOutcome, TrialRecord
from memfit.study.trials.files import Report
from memfit.study.trials.result import TrialEnd
from memfit.study.trials.runner import LocalRunner
from memfit.study.trials.trial_order import TrialOrder
from memfit.version import VERSION

ASK_SECONDS = 1.0
"""How often a running trial asks whether it is to be ended."""
_WATCHDOG = Path(__file__).with_name("watchdog.py")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker sends home of a trial that has ended."""

    record: TrialRecord | None
    """None: its end was not recorded."""
    worker: str
    files: bytes = b""
    """The trial's folder, a compressed tar archive."""


class WorkerNews(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells while a trial runs."""

    number: int
    worker: str
    unix_seconds: float
    python: str = ""
    memfit: str = ""
    reports: tuple[Report, ...] = ()


def topic(study_id: str) -> str:
    """The topic of the news of a study."""
    return f"memfit-{study_id}"


def ending_name(study_id: str, number: int, attempt: int) -> str:
    """The event that ends a trial."""
    return f"memfit-{study_id}-end-{number}-{attempt}"


def run_on_worker(raw: bytes) -> bytes:
    """Run one trial to its end, here; a problem of this machine is the trial's result."""
    order = msgspec.json.decode(raw, type=TrialOrder)
    worker = get_worker()
    order = msgspec.structs.replace(order, worker=worker.address)
    tell(order)
    scratch = tempfile.mkdtemp(prefix=f"memfit-{order.trial_id}-")
    here = msgspec.structs.replace(order, folder=os.path.join(scratch, "trial"), live=False)
    try:
        record = _run(here)
        files = packed(Path(here.folder))
    except (MemfitError, OSError) as error:
        record, files = _refused(order, error), b""
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return msgspec.msgpack.encode(Answer(record=record, worker=worker.address, files=files))


def _run(order: TrialOrder) -> TrialRecord | None:
    if not os.path.isdir(order.code_folder):
        found = f"{order.code_folder} is not on {platform.node()}"
        raise MemfitError("the code folder of the study must be on every worker", found=found, hint="a shared folder")
    runner, stop = LocalRunner(1), Event(ending_name(order.study_id, order.number, order.attempt), client=get_client())
    watchdog = _watchdog(order.folder)
    try:
        runner.start(order)
        return _watch(runner, order, stop)
    finally:
        runner.close()
        if watchdog.stdin is not None:
            watchdog.stdin.write(b"ended")
            watchdog.stdin.close()
        watchdog.wait()


def _watch(runner: LocalRunner, order: TrialOrder, stop: Any) -> TrialRecord | None:
    """Hear the trial until it ends."""
    asked = time.monotonic()
    while True:
        for news in runner.wait(ASK_SECONDS):
            if news.record is not None or news.is_lost:
                return news.record
            if news.reports:
                tell(order, tuple(news.reports))
        if time.monotonic() - asked > ASK_SECONDS:
            asked = time.monotonic()
            if stop.is_set():
                runner.end(order.number, TrialEnd(kind="stopped early", reason="the assessor found it hopeless"))


def tell(order: TrialOrder, reports: tuple[Report, ...] = ()) -> None:
    """Send home that the trial has begun here, or what it has reported."""
    worker = get_worker()
    news = WorkerNews(
        number=order.number,
        worker=worker.address,
        unix_seconds=time.time(),
        python=platform.python_version(),
        memfit=VERSION,
        reports=reports,
    )
    name, text = topic(order.study_id), msgspec.json.encode(news).decode()
    if reports:
        worker.log_event(name, text)
    else:  # answered before the trial begins: a worker that is killed in its first moment has still counted as a try
        sync(worker.loop, worker.scheduler.log_event, topic=name, msg=text)


def _watchdog(folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_WATCHDOG), str(Path(folder).absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def packed(folder: Path) -> bytes:
    """A folder as a compressed tar archive."""
    buffer = io.BytesIO()
    # Not the format of POSIX, whose second header for each file makes unpacking twice as slow.
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=3, format=tarfile.GNU_FORMAT) as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def _refused(order: TrialOrder, error: Exception) -> TrialRecord:
    message = f"{order.worker}: {error}"
    return msgspec.structs.replace(order.blank_record(), outcome=TrialOutcome(kind="failed", message=message))
