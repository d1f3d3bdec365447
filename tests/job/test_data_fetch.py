"""Does a data set arrive whole from whichever source has it, and never half?"""

from __future__ import annotations

import gzip
import hashlib
import io
import multiprocessing
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from memfit.errors import DataError, StorageError, UsageError
from memfit.job.data import cache
from memfit.job.data import fetch as download
from memfit.job.data.catalogue import DATA_SETS, DataFile, DataSet, Packing, Source, find_data_set
from memfit.job.data.fetch import fetch, take_from_folder
from memfit.job.data.packages import address_of

CONTENTS = {"pictures": bytes(range(256)) * 4000, "labels": b"\x00\x01\x02" * 3000}


@dataclass
class Shelf:
    """What the server has, and how it behaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range header of every request."""
    break_after: dict[str, int] = field(default_factory=dict)
    """Close the connection after so many bytes, once."""
    no_ranges: bool = False
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    shelf: Shelf

    def do_GET(self) -> None:
        shelf, path = self.shelf, self.path.lstrip("/")
        wanted = self.headers.get("Range", "")
        shelf.asked.append((path, wanted))
        content = shelf.files.get(path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not shelf.no_ranges else 0
        if start >= len(content) and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        limit = shelf.break_after.pop(path, None)
        self.wfile.write(content[start : start + limit] if limit is not None else content[start:])

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"shelf": shelf}))
    shelf.address = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    yield shelf
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache"


def known(name: str, content: bytes) -> DataFile:
    return DataFile(name=name, num_bytes=len(content), md5=hashlib.md5(content, usedforsecurity=False).hexdigest())


FILES = tuple(known(name, content) for name, content in CONTENTS.items())


def tar_of(contents: dict[str, bytes], *, zipped: bool = False) -> bytes:
    """A gzipped archive; names are as a stranger might choose them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            data = gzip.compress(content) if zipped else content
            member = tarfile.TarInfo(f"../../etc/{name}" + (".gz" if zipped else ""))
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def deb_of(contents: dict[str, bytes]) -> bytes:
    """A Debian package: an `ar` archive of three files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:xz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"./usr/share/{name}.gz")
            data = gzip.compress(content)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": raw.getvalue()}
    whole = b"!<arch>\n"
    for name, content in parts.items():
        whole += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}".encode() + b"`\n" + content
        whole += b"\n" * (len(content) % 2)
    return whole


def source_of(shelf: Shelf, packing: Packing, *names: str, num_bytes: int = 2_000_000) -> Source:
    addresses = tuple(shelf.address + name for name in names)
    return Source(title=f"a {packing}", packing=packing, addresses=addresses, num_bytes=num_bytes)


def data_set(*sources: Source) -> DataSet:
    return DataSet(name="made", title="Made: a test", files=FILES, sources=sources, shape=(1, 2, 2))


PACKED: dict[str, Callable[[Shelf], Source]] = {
    "gzip": lambda shelf: source_of(shelf, "gzip", "pictures.gz", "labels.gz"),
    "plain": lambda shelf: source_of(shelf, "plain", "pictures", "labels"),
    "tar": lambda shelf: source_of(shelf, "tar", "all.tgz"),
    "tar of gzip": lambda shelf: source_of(shelf, "tar", "zipped.tgz"),
    "deb": lambda shelf: source_of(shelf, "deb", "all.deb"),
}


def stock(shelf: Shelf) -> None:
    shelf.files = {name + ".gz": gzip.compress(content) for name, content in CONTENTS.items()}
    shelf.files |= CONTENTS
    shelf.files |= {
        "all.tgz": tar_of(CONTENTS),
        "zipped.tgz": tar_of(CONTENTS, zipped=True),
        "all.deb": deb_of(CONTENTS),
    }


@pytest.mark.parametrize("packing", list(PACKED))
def test_the_content_arrives_whatever_it_is_packed_in_and_nothing_else_does(shelf: Shelf, packing: str):
    stock(shelf)
    folder = fetch(data_set(PACKED[packing](shelf)))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"} == CONTENTS


def test_the_second_source_serves_when_the_first_is_gone(shelf: Shelf):
    stock(shelf)
    gone = source_of(shelf, "gzip", "nowhere/pictures.gz")
    assert cache.is_cached(data_set()) is False
    fetch(data_set(gone, PACKED["tar"](shelf)))
    assert cache.is_cached(data_set())


def test_what_is_there_and_sound_is_not_fetched_again_and_what_is_damaged_is(shelf: Shelf):
    stock(shelf)
    made = data_set(PACKED["plain"](shelf))
    folder = fetch(made)
    shelf.asked.clear()
    fetch(made)
    assert shelf.asked == []
    (folder / "labels").write_bytes(CONTENTS["labels"][:-1] + b"\xff")
    fetch(made)
    assert [path for path, _ in shelf.asked] == ["labels"]
    assert (folder / "labels").read_bytes() == CONTENTS["labels"]


def test_a_download_that_breaks_off_goes_on_where_it_stopped(shelf: Shelf):
    stock(shelf)
    shelf.break_after = {"pictures": 300_000}
    fetch(data_set(PACKED["plain"](shelf)))
    ranges = [asked for path, asked in shelf.asked if path == "pictures"]
    assert ranges == ["", "bytes=300000-"]


def test_an_interrupted_fetch_goes_on_in_the_next_process(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    stock(shelf)
    made = data_set(PACKED["plain"](shelf))
    monkeypatch.setattr(download, "_NUM_ATTEMPTS", 1)
    shelf.break_after = {"pictures": 500_000}
    with pytest.raises(DataError, match="could not be fetched"):
        fetch(made)
    shelf.asked.clear()
    fetch(made)
    assert shelf.asked[0] == ("pictures", "bytes=500000-")


def test_a_part_of_another_file_is_noticed_by_its_md5_and_fetched_anew(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    stock(shelf)
    made = data_set(PACKED["plain"](shelf))
    monkeypatch.setattr(download, "_NUM_ATTEMPTS", 1)
    shelf.files["pictures"] = b"\x07" * len(CONTENTS["pictures"])
    shelf.break_after = {"pictures": 400_000}
    with pytest.raises(DataError):
        fetch(made)
    shelf.files["pictures"] = CONTENTS["pictures"]
    assert (fetch(made) / "pictures").read_bytes() == CONTENTS["pictures"]


@pytest.mark.parametrize("surplus", [0, 7])
def test_a_part_that_is_already_whole_or_too_long_is_handled(shelf: Shelf, surplus: int):
    from memfit.job.data.fetch import _part_of

    stock(shelf)
    made = data_set(PACKED["plain"](shelf))
    part = _part_of(shelf.address + "pictures", cache.folder_of(made))
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENTS["pictures"] + b"x" * surplus)
    assert (fetch(made) / "pictures").read_bytes() == CONTENTS["pictures"]


def test_a_server_without_ranges_sends_it_all_again(shelf: Shelf):
    stock(shelf)
    shelf.no_ranges = True
    shelf.break_after = {"pictures": 300_000}
    assert (fetch(data_set(PACKED["plain"](shelf))) / "pictures").read_bytes() == CONTENTS["pictures"]


def test_wrong_content_is_refused_says_so_and_leaves_nothing_behind(shelf: Shelf):
    stock(shelf)
    shelf.files["pictures"] = b"wrong" + CONTENTS["pictures"][5:]
    with pytest.raises(DataError) as raised:
        fetch(data_set(PACKED["plain"](shelf)))
    assert "right md5" in raised.value.found
    assert "synthetic data" in raised.value.hint
    assert not (cache.folder_of(data_set()) / "pictures").exists()


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b broken", b"!<arch>\nshort", b"\x00" * 2000])
@pytest.mark.parametrize("packing", ["gzip", "tar", "deb"])
def test_a_broken_archive_is_one_clear_error(shelf: Shelf, packing: Packing, content: bytes):
    shelf.files = {"pictures.gz": content}
    with pytest.raises(DataError, match="could not be fetched"):
        fetch(data_set(source_of(shelf, packing, "pictures.gz")))


def test_a_bomb_is_read_only_as_far_as_the_wanted_size(shelf: Shelf):
    shelf.files = {"pictures.gz": gzip.compress(b"\x00" * 60_000_000)}
    with pytest.raises(DataError):
        fetch(data_set(source_of(shelf, "gzip", "pictures.gz")))
    left = sum(path.stat().st_size for path in cache.folder_of(data_set()).rglob("*") if path.is_file())
    assert left < 1_000_000


def test_a_server_that_never_stops_sending_is_cut_off(shelf: Shelf):
    shelf.files = {"pictures": b"\x00" * 500_000}
    with pytest.raises(DataError) as raised:
        fetch(data_set(source_of(shelf, "plain", "pictures", num_bytes=100_000)))
    assert "more than" in raised.value.found


def test_a_cache_that_cannot_be_written_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shelf: Shelf):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MEMFIT_DATA", str(tmp_path / "file" / "below"))
    with pytest.raises(StorageError, match="cannot be written"):
        fetch(data_set(PACKED["plain"](shelf)))


def _fetch_in_a_process(address: str, queue: multiprocessing.Queue[bool]) -> None:
    shelf = Shelf(address=address)
    fetch(data_set(source_of(shelf, "plain", "pictures", "labels")))
    queue.put(cache.is_cached(data_set()))


def test_two_processes_that_fetch_at_once_do_not_disturb_each_other(shelf: Shelf):
    stock(shelf)
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    processes = [spawn.Process(target=_fetch_in_a_process, args=(shelf.address, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    assert answers == [True, True]
    assert sorted(path for path, _ in shelf.asked) == ["labels", "pictures"]


def test_files_of_the_users_own_are_taken_plain_gzipped_or_packed(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "odd name").write_bytes(CONTENTS["labels"])
    (tmp_path / "mine" / "pictures.gz").write_bytes(gzip.compress(CONTENTS["pictures"]))
    take_from_folder(data_set(), tmp_path / "mine")
    assert cache.damaged_files(data_set()) == []


def test_a_folder_without_the_files_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="is not there"):
        take_from_folder(data_set(), tmp_path / "nowhere")
    with pytest.raises(DataError, match="could not be fetched"):
        take_from_folder(data_set(), tmp_path)


def test_the_catalogue_is_consistent_and_names_are_read_kindly():
    for name, each in DATA_SETS.items():
        assert each.name == name
        assert len({file.md5 for file in each.files}) == len(each.files)
        assert all(len(file.md5) == 32 for file in each.files)
        places = [address for source in each.sources for address in source.addresses]
        assert all(place.startswith(("https://", "http://fashion-mnist", "npm:", "deb:")) for place in places)
    assert find_data_set("CIFAR10").name == find_data_set("cifar_10").name == "cifar-10"
    with pytest.raises(UsageError, match="no data set 'minst'"):
        find_data_set("minst")


def a_program(folder: Path, name: str, lines: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def test_a_package_is_looked_for_where_its_manager_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two programs in the place of npm and apt-get, which print their question and answer as those do."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    a_program(
        tmp_path, "npm", 'echo "npm warn odd" >&2; test "$*" = "view p@1.0 dist.tarball" && echo https://mirror/p.tgz'
    )
    a_program(
        tmp_path, "apt-get", 'test "$*" = "download --print-uris d" && echo "\'http://mirror/d.deb\' d.deb 7 SHA256:0"'
    )
    assert address_of("npm:p@1.0") == "https://mirror/p.tgz"
    assert address_of("deb:d") == "http://mirror/d.deb"
    assert address_of("https://official/data.gz") == "https://official/data.gz"


def test_a_manager_that_fails_or_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="there is no npm"):
        address_of("npm:p@1.0")
    a_program(tmp_path, "npm", "echo 'code E404' >&2; exit 1")
    with pytest.raises(DataError, match="npm says: code E404"):
        address_of("npm:p@1.0")


def test_pictures_become_the_official_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small archive of pictures, made by the rule of the npm package, turned back into records."""
    image = pytest.importorskip("PIL.Image")
    numpy = pytest.importorskip("numpy")
    from memfit.job.data import packages

    monkeypatch.setattr(packages, "NUM_IMAGES", 3)
    random = numpy.random.default_rng(0)
    pixels = random.integers(0, 256, (3, 1024, 3), dtype=numpy.uint8)
    png = io.BytesIO()
    image.fromarray(pixels).save(png, format="PNG")
    contents = {
        "data_batch_2.png": png.getvalue(),
        "train_lables.json": b"[9,9,9,4,5,6]",
        "test_lables.json": b"[1,2,3]",
    }
    (tmp_path / "all.tgz").write_bytes(tar_of(contents))
    ((name, records),) = packages.binary_files(tmp_path / "all.tgz")
    assert name == "data_batch_2.bin"
    rows = numpy.frombuffer(records, dtype=numpy.uint8).reshape(3, 3073)
    assert rows[:, 0].tolist() == [4, 5, 6]
    assert (rows[1, 1:].reshape(3, 1024) == pixels[1].T).all()
