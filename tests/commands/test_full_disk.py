"""What does a full disk cost? The page, never the summary, the exit code or a file that was whole before."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import memfit
from memfit import api
from memfit.errors import StorageError
from memfit.show.new_file import write_bytes
from memfit.testing.made_records.runs import MadeRun, write_made_run

KIB = 1024
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; without the right to mount one, the test is left out."""
    place = tmp_path / "disk"
    place.mkdir()
    if _libc.mount(b"memfit-test", bytes(place), b"tmpfs", 0, b"size=256k") != 0:
        pytest.skip(f"a small file system cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    yield place
    assert _libc.umount2(bytes(place), 2) == 0


def fill(place: Path, leave_bytes: int) -> None:
    space = os.statvfs(place)
    (place / "ballast").write_bytes(b"x" * (space.f_bavail * space.f_frsize - leave_bytes))


def measure(place: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "memfit", "measure", "-o", str(place / "run"), *options, "--", sys.executable, "-c"]
    return subprocess.run([*words, code], capture_output=True, text=True, timeout=120, check=False)


def test_a_disk_that_is_full_after_the_run_still_gives_the_summary_and_the_exit_code(small_disk: Path):
    fill(small_disk, 48 * KIB)
    ended = measure(small_disk, "import sys; sys.exit(7)")
    assert ended.returncode == 7
    assert "Peak" in ended.stdout
    assert "failed after" in ended.stdout
    assert "the page was not written" in ended.stderr
    assert not (small_disk / "run" / "report.html").exists()
    assert not [path.name for path in (small_disk / "run").iterdir() if path.name.endswith(".part")]


def test_a_disk_that_fills_while_the_job_runs_ends_the_record_and_not_the_job(small_disk: Path):
    fill(small_disk, 24 * KIB)
    job = f"open({str(small_disk / 'more')!r}, 'wb').write(b'x' * 10**6)"
    code = f"import time\ntry:\n    {job}\nexcept OSError:\n    pass\ntime.sleep(1)\nraise SystemExit(5)"
    ended = measure(small_disk, code)
    assert ended.returncode == 5
    assert "Peak" in ended.stdout
    assert "could not be written to the end" in ended.stderr
    assert not (small_disk / "run" / "report.html").exists()
    assert not [path.name for path in (small_disk / "run").iterdir() if path.name.endswith(".part")]


def test_a_page_that_does_not_fit_leaves_the_old_one_as_it_was(small_disk: Path, tmp_path: Path):
    record = api.read_run(write_made_run(tmp_path / "run", MadeRun(seconds=1.0)))
    old = write_bytes(small_disk / "report.html", b"old")
    fill(small_disk, 8 * KIB)
    with pytest.raises(StorageError, match="No space left"):
        api.write_report(record, html=old)
    assert old.read_bytes() == b"old"
    assert sorted(path.name for path in small_disk.iterdir()) == ["ballast", "report.html"]


def test_a_writer_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same without the right to mount: the last step of writing is refused."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match="No space left"):
        write_bytes(tmp_path / "page.html", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link_and_a_device_is_written_to(tmp_path: Path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    write_bytes(Path("/dev/null"), b"nothing")
    assert Path("/dev/null").is_char_device()


def shell(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "memfit", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_an_output_that_is_closed_or_full_is_one_clear_line_and_the_jobs_own_exit_code(tmp_path: Path):
    run = str(tmp_path / "run")
    measure = ("measure", "--no-report", "-f", "-o", run, "--", "sh", "-c", "exit 7")
    for line, found in {'exec "$@" >&-': "it is closed", 'exec "$@" >/dev/full': "No space left"}.items():
        ended = shell(line, *measure)
        assert ended.returncode == 7
        assert found in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
        shown = shell(line, "show", run, "--json")
        assert shown.returncode == 1
        assert found in shown.stderr
        assert "Traceback" not in shown.stderr


def test_with_all_three_standard_files_closed_the_job_runs_and_its_record_opens(tmp_path: Path):
    run, beside = tmp_path / "run", tmp_path / "beside"
    job = ("measure", "-q", "--no-report", "-o", str(run), "--", "sh", "-c", f"echo said; echo ran > {beside}; exit 7")
    ended = shell('exec "$@" <&- >&- 2>&-', *job)
    assert ended.returncode == 7
    assert beside.read_text() == "ran\n"
    assert memfit.read_run(run).outcome.exit_code == 7
