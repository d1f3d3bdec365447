"""Guard of the server: every request needs its own host name and the token; a change needs its own origin as well.

Host       only names under which this server was started: a page of another site whose name was pointed at this
           machine (DNS rebinding) carries its own name there
token      in the address once, then in a cookie that scripts cannot read and that other sites do not send; programs
           that keep no cookies (Prometheus) send it as a bearer token, or with every request for the metrics
Origin     of requests that other pages could make: anything but our own is refused
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from memfit.errors import UsageError
from memfit.regular_file import describe_error, open_regular

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
METRICS_PATH = "/metrics"
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)


LEAST_TOKEN_LETTERS = 16


def new_token() -> str:
    """What the address carries, and nothing else can guess."""
    return secrets.token_urlsafe(24)


def kept_token(path: str | Path) -> str:
    """The token in a file that only its owner may read; the file is made where there is none."""
    try:
        with open_regular(path) as file:
            is_open_to_others = bool(os.fstat(file.fileno()).st_mode & 0o077)
            token = file.read(4096).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return _made_token(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read", found=describe_error(error), hint="another --token-file") from None
    if is_open_to_others:
        raise UsageError(f"others may read the token in {path}", hint=f"chmod 600 {path}")
    if len(token) < LEAST_TOKEN_LETTERS or not token.isascii() or not token.isprintable() or " " in token:
        found = f"{len(token)} letters" if token.isascii() else "letters that no address has"
        hint = f"at least {LEAST_TOKEN_LETTERS} letters and digits in one line; remove the file and one is made"
        raise UsageError(f"{path} holds no token", found=found, hint=hint)
    return token


def _made_token(path: str | Path) -> str:
    token = new_token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{token}\n")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written", found=describe_error(error), hint="another --token-file"
        ) from None
    return token


class RequestGuard:
    """Refuses what does not come from the page of this server; stands in front of the application."""

    def __init__(
        self, application: Application, *, token: str, hosts: tuple[str, ...], port: int, is_wildcard: bool = False
    ) -> None:
        self.application = application
        self.token = token
        self.port = port
        self.hosts = self._with_port(hosts)
        self.is_wildcard = is_wildcard
        """Whether it listens on every address of this machine: the one that a request came in by is then a name too."""
        self.cookie = f"memfit-{port}"
        """A cookie is shared by all ports of a host: each server has its own name."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.application(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
        elif self._token_in_address(scope) is not None and scope["path"] != METRICS_PATH:
            await self._enter(scope, send)
        else:
            await self.application(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and sentence where a request is refused."""
        hosts = self.hosts | self._arrived_at(scope)
        if headers.get("host", "").lower() not in hosts:
            return 421, "this server answers to its own name only; open the address that `memfit serve` printed"
        origin = headers.get("origin")
        if origin is not None and origin.lower().removeprefix("http://") not in hosts:
            return 403, "a page of another origin asked; only the page of this server may"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and scope["path"] != "/":
            return 403, "a page of another site asked; only the page of this server may"
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return 403, "a change needs the origin of this server's page"
        given = self._token_in_address(scope) or _bearer(headers) or self._token_in_cookie(headers)
        if given is None or not hmac.compare_digest(given.encode(), self.token.encode()):
            return 403, "the token is missing or wrong; open the address that `memfit serve` printed"
        return None

    def _with_port(self, names: tuple[str, ...]) -> set[str]:
        return {f"{name}:{self.port}" for name in names} | (set(names) if self.port == 80 else set())

    def _arrived_at(self, scope: Scope) -> set[str]:
        """The address of this machine that a request came in by: a number, which no name server points elsewhere."""
        server = scope.get("server")
        if not self.is_wildcard or not server:
            return set()
        return self._with_port((f"[{server[0]}]" if ":" in server[0] else server[0],))

    def _token_in_address(self, scope: Scope) -> str | None:
        return dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"))).get("token")

    def _token_in_cookie(self, headers: dict[str, str]) -> str | None:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return None
        return None if found is None else found.value

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Put the token into a cookie, and take it out of the address."""
        rest = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] != "token"]
        target = scope["path"] + (f"?{urlencode(rest)}" if rest else "")
        target = "/" + target.lstrip("/")
        cookie = f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        more = ((b"location", target.encode("latin-1", "replace")), (b"set-cookie", cookie.encode()))
        await _answer(send, 303, "", more)


def _bearer(headers: dict[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _answer(send: Send, status: int, text: str, more: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *ALWAYS, *more]})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    """The same, with headers that every answer has."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *ALWAYS]
        await send(message)

    return sending
