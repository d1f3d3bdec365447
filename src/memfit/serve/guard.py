"""Guard of the server: every request needs its own host name and the token; a change needs its own origin as well.

Host       only names under which this server was started: a page of another site whose name was pointed at this
           machine (DNS rebinding) carries its own name there
token      in the address once, then in a cookie that scripts cannot read and that other sites do not send
Origin     of requests that other pages could make: anything but our own is refused
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)


class RequestGuard:
    """Refuses what does not come from the page of this server; stands in front of the application."""

    def __init__(self, application: Application, *, token: str, hosts: tuple[str, ...], port: int) -> None:
        self.application = application
        self.token = token
        self.hosts = {f"{host}:{port}" for host in hosts} | (set(hosts) if port == 80 else set())
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
        elif self._token_in_address(scope) is not None:
            await self._enter(scope, send)
        else:
            await self.application(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and sentence where a request is refused."""
        if headers.get("host", "").lower() not in self.hosts:
            return 421, "this server answers to its own name only; open the address that `memfit serve` printed"
        origin = headers.get("origin")
        if origin is not None and origin.lower().removeprefix("http://") not in self.hosts:
            return 403, "a page of another origin asked; only the page of this server may"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and scope["path"] != "/":
            return 403, "a page of another site asked; only the page of this server may"
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return 403, "a change needs the origin of this server's page"
        given = self._token_in_address(scope) or self._token_in_cookie(headers)
        if given is None or not hmac.compare_digest(given.encode(), self.token.encode()):
            return 403, "the token is missing or wrong; open the address that `memfit serve` printed"
        return None

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
