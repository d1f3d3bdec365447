"""How is one file brought over the network, so that an interrupted download goes on where it stopped?

A part file keeps what has come; the next attempt asks for the rest. Whether the parts belong together is not decided
here: the md5 of the content is checked after unpacking, and a resumed download that fails it is fetched anew.
"""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from memfit.errors import DataError, StorageError
from memfit.units import format_bytes
from memfit.version import VERSION

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
