"""Does a real browser draw the page without an error and without the network?"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from memfit import api
from memfit.runfolder.reader import read_run
from memfit.testing.made_records.runs import MadeRun, write_made_run

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine; apt-get install chromium")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr",
    "--virtual-time-budget=4000",
)  # fmt: skip


def opened(page: Path, profile: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The page as a browser leaves it after its script has run."""
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", *more, f"file://{page.resolve()}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    command = ("python", "</script><script>document.title='owned'</script>", "<img src=x onerror=alert(1)>")
    plan = MadeRun(num_workers=2, ledger=True, gpu=True, energy="measured", command=command)
    run = read_run(write_made_run(folder / "a", plan))
    other = read_run(write_made_run(folder / "b", MadeRun(seed=3)))
    return api.write_report(run, html=folder / "page.html", over=other)[0]


def test_the_page_draws_itself_without_errors_or_requests(page: Path, tmp_path: Path):
    log = tmp_path / "net.json"
    done = opened(page, tmp_path / "profile", f"--log-net-log={log}", "--dump-dom")
    assert 'data-ready="yes"' in done.stdout
    assert "CONSOLE" not in done.stderr
    assert "<title>python" in done.stdout
    assert "whole tree" in done.stdout
    assert "Where it went" in done.stdout
    assert requests_of(log) == []


def requests_of(log: Path) -> list[str]:
    """Every address the page asked the network for, other than the file itself and the browser's own business."""
    text = log.read_text(encoding="utf-8")
    try:
        events = json.loads(text)["events"]
    except json.JSONDecodeError:
        events = json.loads(text.rstrip().rstrip(",") + "]}")["events"]
    urls = {str(event.get("params", {}).get("url", "")) for event in events}
    initiators = {str(event.get("params", {}).get("initiator", "")) for event in events}
    assert not any(initiator.startswith("file") for initiator in initiators)
    return sorted(url for url in urls if url.startswith(("http", "ws")) and "google" not in url and "gvt1" not in url)


def test_the_screenshot_shows_a_drawn_timeline(page: Path, tmp_path: Path):
    picture = tmp_path / "page.png"
    opened(page, tmp_path / "profile", f"--screenshot={picture}", "--window-size=1200,1400")
    image = pytest.importorskip("matplotlib.image").imread(picture)
    job_blue = (
        (abs(image[:, :, 0] - 0 / 255) < 0.1)
        & (abs(image[:, :, 1] - 114 / 255) < 0.1)
        & (abs(image[:, :, 2] - 178 / 255) < 0.1)
    )
    assert job_blue.sum() > 500
