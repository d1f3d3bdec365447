"""The must-reach figures of the page, measured in a real browser: `python -m benchmarks.show [part ...]`.

Every figure is wall time on this machine as it is: the load average stands beside, since a busy machine makes all of
them longer. `painted` counts from the start of the navigation to the frame that shows head, controls, parallel
coordinates and table.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

from benchmarks.show.made_files import large_snapshot, long_run, study_file
from memfit.testing.made_records.studies import made_mixed_study

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
READY = "html[data-ready=yes]"
DASHBOARD = Path(sys.executable).with_name("optuna-dashboard")
"""pip install -r benchmarks/show/requirements.txt"""


def say(what: str, figure: str, wanted: str) -> None:
    print(f"{what:<58} {figure:>14}   wanted {wanted:<10} load {os.getloadavg()[0]:.1f}", flush=True)


@contextmanager
def served(target: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own; its address and the process."""
    command = [sys.executable, "-m", "memfit", "serve", str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.terminate()


@contextmanager
def opened_page() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


def painted_seconds(page) -> float:
    page.wait_for_function("() => document.documentElement.dataset.paintedMs", timeout=120_000)
    return float(page.evaluate("document.documentElement.dataset.paintedMs")) / 1000


def studies(folder: Path) -> None:
    """First paint and response to a brush, with ten and with fifty thousand trials."""
    for num_trials, wanted in ((10_000, 1.0), (50_000, 2.0)):
        with served(study_file(folder, num_trials)) as (url, _), opened_page() as page:
            page.goto(url)
            cold = painted_seconds(page)
            page.wait_for_timeout(2500)
            warm = []
            for _ in range(5):
                page.reload()
                warm.append(painted_seconds(page))
                page.wait_for_timeout(1500)
            say(f"{num_trials:,} trials, painted, right after the server's start", f"{cold:.2f} s", "-")
            say(f"{num_trials:,} trials, painted (median of 5)", f"{statistics.median(warm):.2f} s", f"< {wanted:g} s")
            handler, frame = brush(page)
            say(f"{num_trials:,} trials, brush: work per move (median)", f"{handler:.0f} ms", "-")
            say(f"{num_trials:,} trials, brush: move to next frame (median)", f"{frame:.0f} ms", "< 100 ms")


WATCH = """() => {
  window.seen = [];
  const canvas = document.querySelector('canvas.front');
  canvas.addEventListener('pointermove', () => {
    const at = performance.now();
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      const worked = () => +document.documentElement.dataset.brushMs;
      channel.port1.onmessage = () => window.seen.push([worked(), performance.now() - at]);
      channel.port2.postMessage(0);
    });
  }, true);
}"""


def brush(page) -> tuple[float, float]:
    """Drag a filter over the whole last axis; milliseconds of the handler, and until the frame after it was drawn."""
    page.locator("canvas.front").scroll_into_view_if_needed()
    box = page.locator("canvas.front").bounding_box()
    x = box["x"] + box["width"] - 72
    page.mouse.move(x, box["y"] + 330)
    page.mouse.down()
    page.mouse.move(x, box["y"] + 320)
    page.wait_for_timeout(600)
    page.evaluate(WATCH)
    for y in range(316, 50, -7):
        page.mouse.move(x, box["y"] + y)
        page.wait_for_timeout(40)
    page.mouse.up()
    seen = page.evaluate("window.seen")
    return statistics.median(one[0] for one in seen), statistics.median(one[1] for one in seen)


def timelines(folder: Path) -> None:
    """Zoom into a run of ten million samples; the peak of one sample is in every picture that holds its moment."""
    run, peak = long_run(folder, 10_000_000)
    with served(run) as (url, _), opened_page() as page:
        started = time.monotonic()
        page.goto(url)
        page.wait_for_selector(READY, timeout=300_000)
        say("10^7 samples: read, pyramid built and painted", f"{time.monotonic() - started:.1f} s", "-")
        assert f"{peak / 2**20:.1f} MiB" in page.inner_text(".sentence"), page.inner_text(".sentence")
        times = []
        page.focus("#timeline .chart")
        for number, key in enumerate(("+", "+", "+", "ArrowRight", "+", "+", "+", "-", "ArrowLeft", "0")):
            page.keyboard.press(key)
            page.wait_for_function(f"() => document.documentElement.dataset.zooms === '{number + 1}'", timeout=60_000)
            times.append(float(page.evaluate("document.documentElement.dataset.zoomMs")))
        say("10^7 samples: zoom, asked and redrawn (median of 10)", f"{statistics.median(times):.0f} ms", "< 200 ms")


def snapshots(folder: Path) -> None:
    """First paint of a snapshot of a gigabyte: its segments; the events follow when they are read."""
    path = large_snapshot(folder, 2**30 - 2**22)
    with served(path) as (url, _), opened_page() as page:
        started = time.monotonic()
        page.goto(url)
        page.wait_for_selector("#segments canvas", timeout=120_000)
        size = path.stat().st_size / 2**30
        say(f"snapshot of {size:.2f} GiB: segments painted", f"{time.monotonic() - started:.2f} s", "< 5 s")
    path.unlink()


def reports(folder: Path) -> None:
    """The size of a report of a thousand trials."""
    from memfit import api

    page = api.report_folder(study_file(folder, 1000), folder / "report.html", overwrite=True)
    say("report of 1,000 trials", f"{page.stat().st_size / 1e6:.2f} MB", "< 3 MB")


def requests(folder: Path) -> None:
    """The server's memory after a few and after a thousand requests."""
    with served(study_file(folder, 10_000)) as (url, process):
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        browser.open(url).read()
        base = url.partition("?")[0]
        paths = ("api/list", "api/document?id=.", "api/curves?id=.&numbers=1,2,3", "api/trial?id=.&number=7")
        figures = []
        for number in range(1100):
            browser.open(base + paths[number % len(paths)]).read()
            if number in (99, 1099):
                figures.append(resident_bytes(process.pid) / 2**20)
        text = f"{figures[0]:.0f} to {figures[1]:.0f} MiB"
        say("server's memory, after 100 and after 1,100 requests", text, "flat")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def dashboard(folder: Path) -> None:
    """optuna-dashboard on the same study; its parallel coordinates need WebGL, which is off in both browsers here."""
    if not DASHBOARD.is_file():
        say("optuna-dashboard: first plot", "not installed", "-")
        return
    for num_trials in (1_000, 10_000):
        dashboard_with(folder, num_trials)


def dashboard_with(folder: Path, num_trials: int) -> None:
    """Until its first plot is drawn, once its server is up."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = f"sqlite:///{folder / f'optuna-{num_trials}.db'}"
    study = optuna.create_study(storage=storage, study_name="made", direction="minimize")
    study.add_trials([optuna_trial(trial) for trial in made_mixed_study(num_trials).trials if trial.metric is not None])
    command = [str(DASHBOARD), storage, "--port", "8939"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for("http://127.0.0.1:8939/dashboard")
            with opened_page() as page:
                started = time.monotonic()
                page.goto("http://127.0.0.1:8939/dashboard/studies/1/analytics")
                page.wait_for_selector(".js-plotly-plot .main-svg", state="attached", timeout=300_000)
                taken = f"{time.monotonic() - started:.2f} s"
        except Exception as error:
            taken = f"none: {type(error).__name__}"
        finally:
            process.terminate()
    say(f"optuna-dashboard 0.21, {num_trials:,} trials: first plot", taken, "-")


def optuna_trial(trial):
    import optuna

    flat = dict(trial.flat_parameters)
    choices = {"batch_size": [16, 32, 64, 128], "optimizer": ["adam", "sgd", "adafactor"], "model": ["conv", "mlp"]}
    ranges = {
        "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
        "layers": optuna.distributions.IntDistribution(1, 12),
        "model/conv/width": optuna.distributions.IntDistribution(8, 256),
        "model/mlp/dropout": optuna.distributions.FloatDistribution(0, 0.6),
    }
    ranges |= {name: optuna.distributions.CategoricalDistribution(options) for name, options in choices.items()}
    return optuna.create_trial(
        params=flat, distributions={name: ranges[name] for name in flat}, value=trial.metric,
        intermediate_values={one.sequence: one.value for one in trial.intermediates},
    )  # fmt: skip


def wait_for(url: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=5).read()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(url)


PARTS: dict[str, Callable[[Path], None]] = {
    "studies": studies, "timelines": timelines, "snapshots": snapshots, "reports": reports, "requests": requests,
    "dashboard": dashboard, "dashboard-50000": lambda folder: dashboard_with(folder, 50_000),
}  # fmt: skip
ASKED_FOR = {"dashboard-50000"}
"""Only where it is named: writing that many trials with Optuna takes longer than all else together."""


def main() -> None:
    for name in sys.argv[1:] or [name for name in PARTS if name not in ASKED_FOR]:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
