"""Do interactive programs, Ctrl-C and Ctrl-Z work under memfit as they do without it? A real shell on a real
terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memfit.runfolder.reader import read_run

LOGIN = "import os, sys; os.login_tty(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"


class Shell:
    """An interactive bash on a pseudo-terminal, typed at and read like a person would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master, slave = pty.openpty()
        environment = {**os.environ, "PS1": "ready> ", "TERM": "xterm", "HOME": str(folder)}
        command = [sys.executable, "-c", LOGIN, str(slave), "bash", "--norc", "--noprofile", "-i"]
        self.process = subprocess.Popen(command, pass_fds=[slave], env=environment, cwd=folder)
        os.close(slave)
        self.seen = ""
        self.expect("ready> ")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, pattern: str, seconds: float = 60.0) -> str:
        """Read until the pattern turns up behind what was matched before."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, f"waited for {pattern!r}, saw {self.seen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.master)
        self.process.send_signal(signal.SIGHUP)
        self.process.wait(10)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    opened = Shell(tmp_path)
    yield opened
    opened.close()


def measure(*words: str) -> str:
    return f"{sys.executable} -m memfit measure --no-report -f -o r {' '.join(words)}\r"


def test_an_interactive_program_reads_from_the_terminal(shell: Shell, tmp_path: Path):
    shell.type(measure("-q", "--", sys.executable, "-c", '\'name = input("who? "); print("hello", name.upper())\''))
    shell.expect(r"\rwho\? ")
    shell.type("ada\r")
    shell.expect("hello ADA")
    shell.expect("ready> ")
    shell.type("echo code=$?\r")
    shell.expect("code=0")
    assert read_run(tmp_path / "r").outcome.kind == "done"


def test_ctrl_c_reaches_the_job_and_memfit_still_writes_the_end(shell: Shell, tmp_path: Path):
    # exec, because dash itself misses a SIGINT that arrives just before it waits for a child
    shell.type(measure("-q", "--", "sh", "-c", "'echo started; exec sleep 60'"))
    shell.expect(r"started\r\n")
    shell.type("\x03")
    shell.expect("ready> ")
    shell.type("echo code=$?\r")
    shell.expect("code=130")
    assert read_run(tmp_path / "r").outcome.kind == "interrupted"


def test_a_job_that_handles_ctrl_c_itself_goes_on(shell: Shell):
    lines = ("import time", "try:", "    print('up', flush=True)", "    time.sleep(60)", "except KeyboardInterrupt:")
    (shell.folder / "job.py").write_text("\n".join((*lines, "    print('cleaned up')")))
    shell.type(measure("-q", "--", sys.executable, "job.py"))
    shell.expect(r"up\r\n")
    shell.type("\x03")
    shell.expect("cleaned up")
    shell.expect("ready> ")
    shell.type("echo code=$?\r")
    shell.expect("code=0")


def test_ctrl_z_stops_both_and_fg_brings_both_back(shell: Shell, tmp_path: Path):
    shell.type(measure("-q", "--", "sh", "-c", "'echo started; read line; echo got $line'"))
    shell.expect(r"started\r\n")
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.expect("ready> ")
    shell.type("fg\r")
    shell.expect("memfit measure")
    shell.type("words\r")
    shell.expect("got words")
    shell.expect("ready> ")
    assert read_run(tmp_path / "r").outcome.kind == "done"


def test_the_live_line_is_drawn_in_a_row_of_its_own_and_taken_away_again(shell: Shell):
    shell.type("stty rows 24 cols 100; clear\r")
    shell.expect("ready> ")
    shell.type(measure("--", "sleep", "1.5"))
    screen = shell.expect(r"\x1b\[r")
    assert re.search(
        r"\x1b\[24;1H\x1b\[2K\x1b\[2mmemfit [\d.]+ m?s \| [\d.]+ \wiB now \| [\d.]+ \wiB peak \| \d+ samples/s", screen
    )
    assert "\x1b[1;23r" in screen


def test_there_is_no_live_line_without_a_terminal(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "memfit",
        "measure",
        "--no-report",
        "-q",
        "-o",
        tmp_path / "r",
        "--",
        "sleep",
        "0.7",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout + run.stderr == ""
