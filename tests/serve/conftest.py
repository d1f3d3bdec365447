"""The fixtures `serving` and `browser` for every test of the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from served import serving  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """One browser for all tests of a file that opens pages."""
    from playwright.sync_api import sync_playwright
    from watched_browser import BROWSER, FLAGS

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=BROWSER, args=list(FLAGS))
        yield running
        running.close()
