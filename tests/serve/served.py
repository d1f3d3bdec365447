"""A server of the test's own, in a thread, and requests to it with any header."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from memfit import api


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens, and its token."""

    port: int
    token: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Status, headers and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(kw_only=True)
class Served:
    """A running server."""

    address: Address
    cookie: str = field(init=False)

    def __post_init__(self) -> None:
        self.cookie = f"memfit-{self.address.port}={self.address.token}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.address.port}"

    def ask(self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str | None) -> Answer:
        """A request with the right host and cookie, unless others are given; None leaves a header out."""
        given = {"host": self.host, "cookie": self.cookie}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}  # pyright: ignore[reportAssignmentType]
        link = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=30)
        link.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                link.putheader(name, value)
        if body is not None:
            link.putheader("content-length", str(len(body)))
        link.endheaders(body)
        response = link.getresponse()
        answer = Answer(
            status=response.status,
            headers={name.lower(): value for name, value in response.getheaders()},
            body=response.read(),
        )
        link.close()
        return answer


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[[Path], Served]]:
    """Starts servers over folders; they end with the module."""
    ending, threads = threading.Event(), list[threading.Thread]()

    def start(folder: Path) -> Served:
        ready, found = threading.Event(), list[str]()

        def on_ready(url: str) -> None:
            found.append(url)
            ready.set()

        thread = threading.Thread(
            target=lambda: api.serve_folder(folder, on_ready=on_ready, until=ending.is_set), daemon=True
        )
        thread.start()
        threads.append(thread)
        assert ready.wait(30)
        port, token = found[0].removeprefix("http://127.0.0.1:").split("/?token=")
        return Served(address=Address(port=int(port), token=token))

    yield start
    ending.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
