"""Is the server closed to everyone but the page it sent: wrong tokens, other origins, other host names, other paths?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from served import Served

from memfit.testing.made_records.runs import MadeRun, write_made_run


@pytest.fixture(scope="module")
def served(serving: Callable[[Path], Served], tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    write_made_run(folder / "inside" / "a", MadeRun(seconds=3.0))
    outside = tmp_path_factory.mktemp("outside")
    write_made_run(outside / "secret", MadeRun(seconds=3.0))
    (folder / "inside" / "link").symlink_to(outside / "secret")
    return serving(folder / "inside")


def test_the_address_opens_the_page_and_puts_the_token_into_a_cookie(served: Served):
    first = served.ask(f"/?token={served.address.token}", cookie=None)
    assert (first.status, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    page = served.ask("/", cookie=cookie.split(";")[0])
    assert page.status == 200
    assert b"connect-src 'self'" in page.body
    assert page.headers["x-frame-options"] == "DENY"
    assert served.address.token.encode() not in page.body


@pytest.mark.parametrize("path", ["/", "/api/list", "/api/document?id=a", "/api/snapshot", "/nothing"])
@pytest.mark.parametrize(
    "cookie", [None, "memfit-1=wrong", "memfit-{port}=wrong", "memfit-{port}=", "memfit-{port}=\u00e9"]
)
def test_without_the_token_nothing_is_answered(served: Served, path: str, cookie: str | None):
    cookie = None if cookie is None else cookie.replace("{port}", str(served.address.port))
    assert served.ask(path, cookie=cookie).status == 403


def test_a_wrong_token_in_the_address_does_not_enter(served: Served):
    answer = served.ask("/?token=wrong", cookie=None)
    assert (answer.status, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "", None, "localhost.evil.example:{port}"],
)
def test_another_host_name_is_refused_even_with_the_token(served: Served, host: str | None):
    """DNS rebinding: a name of another site that points at this machine."""
    host = None if host is None else host.replace("{port}", str(served.address.port))
    assert served.ask("/api/list", host=host).status in (400, 421)


def test_the_names_of_this_machine_are_answered(served: Served):
    for name in ("127.0.0.1", "localhost", "LOCALHOST"):
        assert served.ask("/api/list", host=f"{name}:{served.address.port}").status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "null", "file://"]
)
def test_a_page_of_another_origin_is_refused(served: Served, origin: str):
    origin = origin.replace("{port}", str(served.address.port))
    assert served.ask("/api/list", origin=origin).status == 403


def test_requests_that_another_site_makes_are_refused_by_what_the_browser_says_of_them(served: Served):
    assert served.ask("/api/list", sec_fetch_site="cross-site").status == 403
    assert served.ask("/api/list", sec_fetch_site="same-site").status == 403
    assert served.ask("/api/list", sec_fetch_site="same-origin", origin=f"http://{served.host}").status == 200


def test_a_change_needs_our_own_origin(served: Served):
    assert served.ask("/api/snapshot", method="POST", body=b"x").status == 403
    assert served.ask("/api/snapshot", method="POST", body=b"x", origin=f"http://{served.host}").status == 404
    assert served.ask("/api/list", method="POST", body=b"", origin=f"http://{served.host}").status == 405


@pytest.mark.parametrize(
    "name",
    [
        "../outside0/secret", "a/../../outside0/secret", "/etc/passwd", "..", "a/..", "link", "%00", "a%00b", "//etc",
        "..%2f..%2fetc%2fpasswd", "....//", "\\..\\..", "a" * 5000, "",
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(served: Served, name: str):
    answer = served.ask(f"/api/document?id={name}")
    assert answer.status == 404
    assert b"secret" not in answer.body.replace(name.encode()[:300], b"")
    assert served.ask(f"/{name or '..'}").status in (400, 404)


def test_the_list_holds_what_is_inside_and_no_link(served: Served):
    items = msgspec.json.decode(served.ask("/api/list").body)["items"]
    assert [(item["id"], item["kind"]) for item in items] == [("a", "run")]


def test_a_redirect_stays_on_this_server(served: Served):
    answer = served.ask(f"//evil.example/?token={served.address.token}", cookie=None)
    assert answer.headers.get("location", "/").startswith("/")
    assert not answer.headers.get("location", "/").startswith("//")


def test_a_record_that_did_not_change_is_not_sent_again(served: Served):
    first = served.ask("/api/document?id=a")
    assert served.ask("/api/document?id=a", if_none_match=first.headers["etag"]).status == 304
    assert msgspec.json.decode(first.body)["kind"] == "run"


def test_a_record_that_changes_is_read_again(served: Served, tmp_path: Path, serving: Callable[[Path], Served]):
    run = write_made_run(tmp_path / "b", MadeRun(seconds=3.0))
    own = serving(tmp_path)
    before = own.ask("/api/document?id=b")
    with open(run / "events.jsonl", "ab") as file:
        file.write(b'{"kind":"note","time_us":1}\n')
    os.utime(run / "events.jsonl")
    after = own.ask("/api/document?id=b", if_none_match=before.headers["etag"])
    assert after.status == 200
    assert after.headers["etag"] != before.headers["etag"]


def test_a_question_that_makes_no_sense_is_answered_with_a_sentence(served: Served):
    for path in (
        "/api/window?id=a&from=x&to=1&rows=5",
        "/api/window?id=a&from=nan&to=inf&rows=5",
        "/api/trial?id=a&number=0",
    ):
        answer = served.ask(path)
        assert answer.status == 404
        assert msgspec.json.decode(answer.body)["what"]


def test_prometheus_gets_the_metrics_by_bearer_token_or_with_it_in_the_address_and_nothing_without(served: Served):
    token = served.address.token
    for path, authorization in (("/metrics", f"Bearer {token}"), (f"/metrics?token={token}", None)):
        answer = served.ask(path, cookie=None, authorization=authorization)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert b"memfit_run_peak_bytes{" in answer.body
        assert b'memfit_records{kind="run",state="shown"} 1' in answer.body
    for path, authorization in (("/metrics", None), ("/metrics", "Bearer wrong"), ("/metrics?token=wrong", None)):
        assert served.ask(path, cookie=None, authorization=authorization).status == 403
    assert served.ask("/metrics", cookie=None, authorization=f"Bearer {token}", host="evil.example").status == 421


def test_a_server_on_every_address_answers_to_the_one_it_prints_and_to_the_one_a_request_came_in_by(tmp_path: Path):
    """Prometheus and a browser on another machine call it by its name, or by one of its numbers."""
    import http.client
    import socket
    import threading

    from memfit import api

    write_made_run(tmp_path / "a", MadeRun(seconds=3.0))
    found, ready, ending = list[str](), threading.Event(), threading.Event()

    def on_ready(url: str) -> None:
        found.append(url)
        ready.set()

    thread = threading.Thread(
        target=lambda: api.serve_folder(tmp_path, host="0.0.0.0", on_ready=on_ready, until=ending.is_set), daemon=True
    )
    thread.start()
    assert ready.wait(30)
    name, _, rest = found[0].removeprefix("http://").partition(":")
    port, token = rest.split("/?token=")
    assert name == socket.gethostname().lower()
    statuses = {}
    for host in (name, "127.0.0.1", "127.0.0.2", "evil.example", "8.8.8.8"):
        address = "127.0.0.2" if host == "127.0.0.2" else "127.0.0.1"
        link = http.client.HTTPConnection(address, int(port), timeout=30)
        link.request("GET", "/api/list", headers={"host": f"{host}:{port}", "authorization": f"Bearer {token}"})
        statuses[host] = link.getresponse().status
        link.close()
    ending.set()
    thread.join(10)
    assert statuses == {name: 200, "127.0.0.1": 200, "127.0.0.2": 200, "evil.example": 421, "8.8.8.8": 421}


def test_a_token_is_kept_in_a_file_that_only_its_owner_reads(tmp_path: Path):
    from memfit.errors import UsageError
    from memfit.serve.guard import kept_token

    path = tmp_path / "token.txt"
    token = kept_token(path)
    assert kept_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others may read"):
        kept_token(path)
    path.write_text("short\n")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="holds no token"):
        kept_token(path)
