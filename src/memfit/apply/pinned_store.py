"""Offloading of GPU tensors to pinned host memory and back, on CUDA streams of its own.

A pool of pinned blocks, reused by size, since making one takes milliseconds; one stream out and one in. A send
waits for the stream that computes, and the block is freed only after the copy; a fetch is waited for by the stream
that computes. Written from the documentation of torch 2.13's streams and events; it has not been run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from memfit.errors import MemfitError
from memfit.units import format_bytes


@dataclass(slots=True, eq=False)
class PinnedTicket:
    """A pinned block, and the events of its copies."""

    block: torch.Tensor
    sending: Any = None
    fetching: Any = None


class PinnedStore:
    """Pinned host memory as the other side of a link."""

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        self.device, self.most_bytes = device, most_bytes
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._free: dict[int, list[torch.Tensor]] = {}
        self._held_bytes = 0

    def _block(self, num_bytes: int) -> torch.Tensor:
        free = self._free.get(num_bytes)
        if free:
            return free.pop()
        self._held_bytes += num_bytes
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise MemfitError(
                f"the host has no {format_bytes(self._held_bytes)} of pinned memory", found=str(error)[:120]
            ) from None

    def send(self, block: torch.Tensor) -> PinnedTicket:
        """Start a copy to the host, after everything that computes the block."""
        ticket = PinnedTicket(self._block(block.nbytes))
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            ticket.block.copy_(block, non_blocking=True)
            ticket.sending = torch.cuda.Event()
            ticket.sending.record(self._out)
        block.record_stream(self._out)
        return ticket

    def is_sent(self, ticket: PinnedTicket) -> bool:
        """Whether the copy is over."""
        return ticket.sending is None or ticket.sending.query()

    def wait_sent(self, ticket: PinnedTicket) -> None:
        """Wait, on the host, for the copy: only then may the block's memory be given to others."""
        if ticket.sending is not None:
            ticket.sending.synchronize()
            ticket.sending = None

    def fetch(self, ticket: PinnedTicket, block: torch.Tensor) -> None:
        """Start a copy back."""
        self._in.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._in):
            block.copy_(ticket.block, non_blocking=True)
            ticket.fetching = torch.cuda.Event()
            ticket.fetching.record(self._in)
        block.record_stream(self._in)

    def wait_fetched(self, ticket: PinnedTicket) -> None:
        """Let the computing stream, not the host, wait for the copy."""
        if ticket.fetching is not None:
            torch.cuda.current_stream(self.device).wait_event(ticket.fetching)
            ticket.fetching = None

    def forget(self, ticket: PinnedTicket) -> None:
        """Give the pinned block to others."""
        self._free.setdefault(ticket.block.nbytes, []).append(ticket.block)

    def close(self) -> None:
        """Release the pool."""
        torch.cuda.synchronize(self.device)
        self._free.clear()
