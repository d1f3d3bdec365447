"""Downloads a data set into the cache: official source first, then packages that hold the same content.

A file gets its name in the cache only after its size and md5 were right, by renaming a finished draft, so whatever
ends this process, a file that is there is whole. Downloads stay until their data set is complete and are gone on with
next time.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from memfit.errors import DataError, MemfitError, StorageError, UsageError
from memfit.job.data.cache import damaged_files, has_content, locked
from memfit.job.data.catalogue import DataFile, DataSet, Source
from memfit.job.data.packages import address_of
from memfit.job.data.unpack import unpack
from memfit.units import format_bytes
from memfit.version import VERSION


class Watcher(Protocol):
    """Receives the progress of a fetch."""

    def say(self, sentence: str) -> None:
        """Something worth a line."""
        ...

    def progress(self, have_bytes: int, total_bytes: int | None) -> None:
        """Bytes of the current download."""
        ...


class Silent:
    """A watcher that does nothing."""

    def say(self, sentence: str) -> None: ...

    def progress(self, have_bytes: int, total_bytes: int | None) -> None: ...


def fetch(data_set: DataSet, watcher: Watcher | None = None, *, sources: Sequence[Source] | None = None) -> Path:
    """Bring a whole data set into the cache and return its folder; nothing happens when it is there and sound."""
    watcher = watcher or Silent()
    with locked(data_set, lambda: watcher.say("waiting for another memfit that fetches it")) as folder:
        problems: list[str] = []
        for source in data_set.sources if sources is None else sources:
            wanted = damaged_files(data_set)
            if not wanted:
                break
            try:
                watcher.say(f"from {source.title}")
                _fetch_from(source, data_set, folder, watcher)
            except StorageError:
                raise
            except MemfitError as error:
                problems.append(f"{source.title}: {error.found or error.what}")
                watcher.say(f"not from there: {error.found or error.what}")
        _check_whole(data_set, problems)
        _clear_downloads(folder)
    return folder


def _check_whole(data_set: DataSet, problems: list[str]) -> None:
    wanted = damaged_files(data_set)
    if not wanted:
        return
    names = ", ".join(file.name for file in wanted)
    hint = f"get {names} (or their .gz) in a browser and run: memfit data fetch {data_set.name} --from FOLDER"
    if data_set.shape is not None:
        hint += "; without it memfit trains on synthetic data of the same shape"
    raise DataError(f"{data_set.title.partition(':')[0]} could not be fetched", found="; ".join(problems), hint=hint)


def _fetch_from(source: Source, data_set: DataSet, folder: Path, watcher: Watcher) -> None:
    for address in source.addresses:
        wanted = damaged_files(data_set)
        if source.packing in ("gzip", "plain"):
            wanted = [file for file in wanted if address.removesuffix(".gz").endswith("/" + file.name)]
        if wanted:
            _fetch_address(address, source, wanted, folder, watcher)


def _fetch_address(address: str, source: Source, wanted: Sequence[DataFile], folder: Path, watcher: Watcher) -> None:
    """Download one address and keep the wanted files; parts of two different downloads are noticed and dropped."""
    part, on_the_web = _part_of(address, folder), address_of(address)
    missing, reason = list(wanted), ""
    for _ in range(2):
        resumed = download(on_the_web, part, most_bytes=2 * source.num_bytes, on_progress=watcher.progress)
        missing, reason = _try_unpack(part, source, wanted, folder)
        if not missing:
            return
        part.unlink(missing_ok=True)
        if not resumed:
            break
        watcher.say("the resumed download does not fit together; fetching it anew")
    names = ", ".join(file.name for file in missing)
    raise DataError(f"{address} does not hold what it should", found=reason or f"no {names} with the right md5")


def _try_unpack(part: Path, source: Source, wanted: Sequence[DataFile], folder: Path) -> tuple[list[DataFile], str]:
    """The files that are still missing after unpacking, and why where unpacking itself failed."""
    try:
        if source.packing == "tar of pictures":
            found = _unpack_pictures(part, wanted, folder)
        else:
            found = unpack(part, source.packing, wanted, folder)
    except DataError as error:
        return list(wanted), error.found
    return [file for file in wanted if file not in found], ""


def _unpack_pictures(part: Path, wanted: Sequence[DataFile], folder: Path) -> list[DataFile]:
    from memfit.job.data.packages import binary_files

    found = []
    for name, content in binary_files(part):
        for file in wanted:
            if file.name == name and _write_checked(content, file, folder):
                found.append(file)
    return found


def _write_checked(content: bytes, file: DataFile, folder: Path) -> bool:
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != file.md5:
        return False
    draft = folder / f".unpacking-{os.getpid()}"
    try:
        draft.write_bytes(content)
        os.replace(draft, folder / file.name)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written", found=str(error), hint="free some space") from None
    finally:
        draft.unlink(missing_ok=True)
    return True


def _part_of(address: str, folder: Path) -> Path:
    """Where the download of an address grows; named by its address, so that mirrors never mix."""
    key = hashlib.sha256(address.encode()).hexdigest()[:16]
    return folder / ".downloads" / f"{key}.part"


def _clear_downloads(folder: Path) -> None:
    downloads = folder / ".downloads"
    for part in downloads.glob("*.part"):
        part.unlink(missing_ok=True)
    if downloads.is_dir():
        downloads.rmdir()


def take_from_folder(data_set: DataSet, origin: str | Path, watcher: Watcher | None = None) -> Path:
    """Copy a data set into the cache from files that the user has, plain, gzipped or in an archive."""
    watcher, origin = watcher or Silent(), Path(origin)
    if not origin.exists():
        raise UsageError(f"{origin} is not there", hint="give the folder or archive that holds the files")
    with locked(data_set) as folder:
        for path in sorted(origin.rglob("*")) if origin.is_dir() else [origin]:
            wanted = damaged_files(data_set)
            if wanted and path.is_file():
                for file in _take(path, wanted, folder):
                    watcher.say(f"{file.name} from {path}")
        _check_whole(data_set, [f"{origin}: not in there, or another md5"])
    return folder


def _take(path: Path, wanted: Sequence[DataFile], folder: Path) -> list[DataFile]:
    exact = [file for file in wanted if has_content(path, file)]
    if exact:
        return unpack(path, "plain", exact, folder)
    packings = {".gz": "gzip", ".tgz": "tar", ".tar": "tar", ".deb": "deb"}
    packing = "tar" if path.name.endswith(".tar.gz") else packings.get(path.suffix)
    if packing is None:
        return []
    try:
        return unpack(path, packing, wanted, folder)  # pyright: ignore[reportArgumentType]
    except DataError:
        return []


# How is one file brought over the network, so that an interrupted download goes on where it stopped?
#
# A part file keeps what has come; the next attempt asks for the rest. Whether the parts belong together is not decided
# here: the md5 of the content is checked after unpacking, and a resumed download that fails it is fetched anew.

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have come and, where the server says so, the bytes there are."""

_CHUNK_BYTES = 1 << 18
_TIMEOUT_SECONDS = 30.0
_NUM_ATTEMPTS = 3
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def download(address: str, part: Path, *, most_bytes: int, on_progress: Progress) -> bool:
    """Bring all of an address into the part file; says whether it was put together from more than one download."""
    resumed = part.exists() and part.stat().st_size > 0
    for attempt in range(1, _NUM_ATTEMPTS + 1):
        try:
            _fetch_rest(address, part, most_bytes, on_progress)
            return resumed
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise DataError(f"{address} cannot be fetched", found=_reason(error)) from None
        except (http.client.HTTPException, OSError) as error:
            resumed = True
            if attempt == _NUM_ATTEMPTS:
                hint = "run the same command again: it goes on where it stopped"
                raise DataError(f"{address} broke off", found=_reason(error), hint=hint) from None
    return resumed


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    reason = getattr(error, "reason", None) or error
    return getattr(reason, "strerror", None) or str(reason) or type(error).__name__


def _fetch_rest(address: str, part: Path, most_bytes: int, on_progress: Progress) -> None:
    have_bytes = part.stat().st_size if part.exists() else 0
    try:
        response = _open(address, have_bytes)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        # Nothing lies behind what we have: the part is whole, or it belongs to another file.
        if have_bytes == _total_after(error.headers.get("Content-Range", "")):
            return
        part.unlink()
        have_bytes, response = 0, _open(address, 0)
    with response:
        start_bytes, total_bytes = _place(response, have_bytes)
        _save(response, part, start_bytes, total_bytes, most_bytes, on_progress)


def _open(address: str, have_bytes: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(address, headers={"User-Agent": f"memfit/{VERSION}"})
    if have_bytes:
        request.add_header("Range", f"bytes={have_bytes}-")
    return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)


def _total_after(content_range: str) -> int | None:
    """The size in 'bytes */1234', which a server sends with 416."""
    total = content_range.rpartition("/")[2]
    return int(total) if total.isdecimal() else None


def _place(response: http.client.HTTPResponse, have_bytes: int) -> tuple[int, int | None]:
    """From which byte on the answer counts, and how many there are in all."""
    length = response.headers.get("Content-Length", "")
    if response.status == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match and int(match.group(1)) == have_bytes:
            return have_bytes, int(match.group(2)) if match.group(2) != "*" else None
        raise http.client.HTTPException("the server sent another part than the one asked for")
    return 0, int(length) if length.isdecimal() else None


def _save(
    response: http.client.HTTPResponse,
    part: Path,
    start_bytes: int,
    total_bytes: int | None,
    most_bytes: int,
    on_progress: Progress,
) -> None:
    have_bytes = start_bytes
    with _writable(part, append=start_bytes > 0) as stream:
        while chunk := response.read(_CHUNK_BYTES):
            have_bytes += len(chunk)
            if have_bytes > most_bytes:
                part.unlink(missing_ok=True)
                found = f"more than {format_bytes(most_bytes)}"
                raise DataError("the server sends far more than the data set is large", found=found)
            try:
                stream.write(chunk)
            except OSError as error:
                raise StorageError(
                    f"{part.parent} cannot be written", found=str(error), hint="free some space"
                ) from None
            on_progress(have_bytes, total_bytes)
    if total_bytes is not None and have_bytes < total_bytes:
        raise http.client.IncompleteRead(b"", total_bytes - have_bytes)


def _writable(part: Path, *, append: bool):
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        return open(part, "ab" if append else "wb")
    except OSError as error:
        hint = "set MEMFIT_DATA to a folder that can be written"
        raise StorageError(f"{part.parent} cannot be written", found=str(error), hint=hint) from None
