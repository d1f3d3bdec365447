"""Asynchronous writes and reads of tensor bytes in a file (disk offloading); knows addresses and files, no torch.

One file without a name, so that nothing is left behind whatever happens; one thread writes, one reads. Threads see
addresses only: whoever sends keeps the memory alive until `wait_sent`, whoever fetches until `wait_fetched`.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from memfit.errors import StorageError
from memfit.units import format_bytes


class StoredBlock(Protocol):
    """A piece of memory; a tensor of bytes is one."""

    def data_ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the file, and what is on its way to or from it."""

    offset: int
    num_bytes: int
    sending: Future[None] | None = None
    fetching: Future[None] | None = None


class DiskStore:
    """A nameless file in a folder; close it when the plan is undone."""

    def __init__(self, folder: str, needed_bytes: int = 0) -> None:
        self.folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="memfit-")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise StorageError(
                f"{folder} cannot hold what is moved", found=_why(error), hint="--disk FOLDER that can be written"
            ) from None
        self._check_room(needed_bytes)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="memfit-send")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="memfit-fetch")
        self._free: dict[int, list[int]] = {}
        self._end = 0

    def _check_room(self, needed_bytes: int) -> None:
        found = os.fstatvfs(self._file.fileno())
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes < needed_bytes:
            self._file.close()
            raise StorageError(
                f"{self.folder} is too small for what is moved",
                found=f"{format_bytes(free_bytes)} free, {format_bytes(needed_bytes)} needed",
                hint="free some space, or another folder",
            )

    # ---- out ---------------------------------------------------------------------------------------------------

    def send(self, block: StoredBlock) -> Ticket:
        """Start writing; sends leave in the order in which they are asked for."""
        num_bytes = block.nbytes
        free = self._free.get(num_bytes)
        ticket = Ticket(free.pop() if free else self._end, num_bytes)
        if ticket.offset == self._end:
            self._end += num_bytes
        ticket.sending = self._writer.submit(self._write, block.data_ptr(), ticket.offset, num_bytes)
        return ticket

    def _write(self, address: int, offset: int, num_bytes: int) -> None:
        view = memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")
        done = 0
        while done < num_bytes:
            done += os.pwrite(self._file.fileno(), view[done:], offset + done)

    def is_sent(self, ticket: Ticket) -> bool:
        """Whether it has left completely."""
        return ticket.sending is None or ticket.sending.done()

    def wait_sent(self, ticket: Ticket) -> None:
        """Wait until it has left; raises when the disk did not take it."""
        if ticket.sending is not None:
            self._finish(ticket.sending, "the disk did not take what was moved")
            ticket.sending = None

    # ---- back --------------------------------------------------------------------------------------------------

    def fetch(self, ticket: Ticket, block: StoredBlock) -> None:
        """Start reading into memory."""
        ticket.fetching = self._reader.submit(self._read, block.data_ptr(), ticket.offset, ticket.num_bytes)

    def _read(self, address: int, offset: int, num_bytes: int) -> None:
        view = memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")
        done = 0
        while done < num_bytes:
            count = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            if count == 0:
                raise OSError(f"the file ends after {offset + done} bytes")
            done += count

    def wait_fetched(self, ticket: Ticket) -> None:
        """Wait until it is back; raises when the disk has lost it."""
        if ticket.fetching is not None:
            self._finish(ticket.fetching, "the disk did not give back what was moved")
            ticket.fetching = None

    def forget(self, ticket: Ticket) -> None:
        """Give its place to others; it must not be written or read at the time."""
        self._free.setdefault(ticket.num_bytes, []).append(ticket.offset)

    def close(self) -> None:
        """Let the threads end and the file vanish."""
        self._writer.shutdown()
        self._reader.shutdown()
        self._file.close()

    def _finish(self, future: Future[None], what: str) -> None:
        try:
            future.result()
        except OSError as error:
            raise StorageError(
                f"{what}: this step is lost, the parameters are as they were",
                found=f"{_why(error)} ({self.folder})",
                hint="free some space or choose another folder, then repeat the step",
            ) from None


def _why(error: OSError) -> str:
    return error.strerror or str(error)
