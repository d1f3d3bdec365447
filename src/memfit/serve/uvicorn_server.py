"""The server process: a socket on the loopback address, and uvicorn behind the guard."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn

from memfit.errors import UsageError
from memfit.serve.guard import LOOPBACK_NAMES, Application, RequestGuard

WILDCARDS = ("0.0.0.0", "::")
"""Every address of this machine; no browser can open these themselves."""


def url_of(host: str, port: int, token: str) -> str:
    """What to open in a browser."""
    return f"http://{_names_of(host)[-1]}:{port}/?token={token}"


def listen(host: str, port: int) -> socket.socket:
    """A socket of its own; port 0 takes a free one."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        found = f"{host}:{port}: {error.strerror or error}"
        raise UsageError(
            "the server cannot listen there", found=found, hint="another --port or --host, or none"
        ) from None
    return listener


def serve_app(
    app: Application,
    listener: socket.socket,
    *,
    host: str,
    token: str,
    on_ready: Callable[[str], None],
    until: Callable[[], bool] | None = None,
) -> None:
    """Serve until interrupted, or until `until` answers True (asked ten times a second)."""
    port = listener.getsockname()[1]
    names = (*LOOPBACK_NAMES, *_names_of(host))
    guarded = RequestGuard(app, token=token, hosts=names, port=port, is_wildcard=host in WILDCARDS)
    config = uvicorn.Config(
        guarded, log_level="warning", access_log=False, lifespan="off", server_header=False, ws="none",
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = _Server(config, lambda: on_ready(url_of(host, port, token)), until)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _names_of(host: str) -> tuple[str, ...]:
    """The names that a listening address has in an address of the web, the one to show last."""
    if host in WILDCARDS:
        return socket.getfqdn().lower(), socket.gethostname().lower()
    return (f"[{host}]" if ":" in host else host.lower(),)


class _Server(uvicorn.Server):
    """Calls back when it listens, and ends when it is asked to."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], until: Callable[[], bool] | None) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._until = until

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """A request that is cancelled because the server ends is no error that anybody has to read."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets=sockets)

    async def main_loop(self) -> None:
        watch = asyncio.ensure_future(self._watch())
        try:
            await super().main_loop()
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        while self._until is not None and not self._until():
            await asyncio.sleep(0.1)
        if self._until is not None:
            self.should_exit = True
