"""A page of a real browser that notes errors and every request, and hands for the charts of a study."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from served import Served

pytest.importorskip("playwright.sync_api", reason="no playwright; pip install playwright")
BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine; make browser"),
]
"""Marks of every test that opens a page."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
READY = "html[data-ready=yes]"


class Watched:
    """A page of the browser that notes errors and every request."""

    def __init__(self, browser, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(90_000)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.settle()

    def settle(self) -> None:
        self.page.wait_for_selector(READY, timeout=90_000)
        self.page.wait_for_timeout(600)

    def leaving(self) -> list[str]:
        """Requests that left this machine."""
        own = ("file://", "data:", "blob:", "http://127.0.0.1:")
        return [url for url in self.requests if not url.startswith(own)]

    def count(self) -> int:
        """How many trials the page says are selected."""
        return int(self.page.inner_text(".count").split()[0].replace(",", ""))

    def saved(self, card: str, what: str) -> Path:
        """The file that a button of a card saves."""
        with self.page.expect_download() as found:
            self.page.click(f"#{card} .tools button:has-text('{what}')")
        return Path(found.value.path())

    def place(self, axis: str, share: float) -> tuple[float, float]:
        """The point of the screen at a share of an axis of the parallel coordinates; below 0 is what has no value."""
        self.page.locator("canvas.front").scroll_into_view_if_needed()
        box = self.page.locator("canvas.front").bounding_box()
        assert box is not None
        drawn = json.loads(self.page.get_attribute("canvas.front", "data-axes") or "")
        tall = drawn["floor"] - drawn["top"]
        height = drawn["band"] if share < 0 else drawn["top"] + tall * (1 - share)
        return box["x"] + drawn["at"][axis], box["y"] + height

    def drag(self, share_from: float, share_to: float, axis: str) -> None:
        """Drag along an axis of the parallel coordinates, from and to a share of its height."""
        (x, begin), (_, end) = self.place(axis, share_from), self.place(axis, share_to)
        self.page.mouse.move(x, begin)
        self.page.mouse.down()
        for step in range(1, 6):
            self.page.mouse.move(x, begin + (end - begin) * step / 5)
        self.page.mouse.up()
        self.page.wait_for_timeout(500)


def address(served: Served, place: str) -> str:
    """Where a server shows a record, with its token."""
    return f"http://{served.host}/?token={served.address.token}#/{place}"


def read_csv(path: Path) -> list[list[str]]:
    """The rows below the head."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]
