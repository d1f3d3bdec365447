"""Does `memfit serve` end at once when it is told to, and say what to try where it cannot begin?"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from memfit.testing.made_records.studies import made_mixed_study, write_made_study

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_interrupt_ends_the_server_while_it_explains_a_large_study(tmp_path: Path):
    """The work of minutes goes on in a thread; the process does not wait for it, and prints no traceback."""
    write_made_study(tmp_path / "study", made_mixed_study(4000))
    command = [sys.executable, "-m", "memfit", "serve", str(tmp_path / "study")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        asker = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        asker.open(url).read()
        base = url.partition("?")[0]
        asker.open(f"{base}api/document?id=.").read()
        threading.Thread(target=ask, args=(asker, f"{base}api/later?id=.&name=findings"), daemon=True).start()
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
        assert process.stderr.read() == ""


def ask(asker: urllib.request.OpenerDirector, address: str) -> None:
    """A question that the end of the server cuts off."""
    try:
        asker.open(address).read()
    except OSError:
        return


@pytest.mark.parametrize("words", [["missing"], ["other.txt"], [".", "--host", "nosuch.invalid"]])
def test_what_cannot_be_served_is_said_with_what_to_try(tmp_path: Path, words: list[str]):
    (tmp_path / "other.txt").write_text("no record")
    ran = subprocess.run(
        [sys.executable, "-m", "memfit", "serve", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode in (1, 2)
    assert "try:" in ran.stderr
    assert "Traceback" not in ran.stderr
