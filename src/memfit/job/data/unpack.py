"""Finds the wanted files in a download, whatever archive it is packed in.

Files are recognised by size and md5, never by the name an archive gives them, so no name from outside becomes a path.
Content is read in pieces and only as far as the wanted size.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from memfit.errors import DataError, StorageError
from memfit.job.data.catalogue import DataFile, Packing
from memfit.regular_file import open_regular

_CHUNK_BYTES = 1 << 20
_AR_MAGIC, _AR_HEADER_BYTES = b"!<arch>\n", 60
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, ValueError)


def unpack(download: Path, packing: Packing, wanted: Sequence[DataFile], folder: Path) -> list[DataFile]:
    """Put every wanted file that the download holds into the folder; returns those that were found."""
    found: list[DataFile] = []
    try:
        for content in contents(download, packing):
            rest = [file for file in wanted if file not in found]
            if not rest:
                break
            found += _keep(content, rest, folder)
    except _BROKEN as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{download.name} cannot be unpacked", found=reason, hint="fetch it again") from None
    return found


def contents(download: Path, packing: Packing) -> Iterator[IO[bytes]]:
    """Every regular file in a download, opened for reading in turn."""
    if packing == "plain":
        with open_regular(download) as stream:
            yield stream
    elif packing == "gzip":
        with open_regular(download) as stream:
            yield _gunzipped(stream)
    elif packing == "deb":
        with _deb_data(download) as stream:
            yield from (inner for _, inner in members(stream))
    else:
        with open_regular(download) as stream:
            yield from (inner for _, inner in members(stream))


def members(stream: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every regular file of a tar archive, gunzipped where its name says so."""
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, _gunzipped(content) if member.name.endswith(".gz") else content


def _gunzipped(content: IO[bytes]) -> IO[bytes]:
    return gzip.GzipFile(fileobj=content)  # pyright: ignore[reportReturnType]


@contextmanager
def _deb_data(download: Path) -> Iterator[IO[bytes]]:
    """The data archive in a Debian package, which is an `ar` archive of three files."""
    with open_regular(download) as stream:
        if stream.read(len(_AR_MAGIC)) != _AR_MAGIC:
            raise ValueError("not a Debian package")
        while len(header := stream.read(_AR_HEADER_BYTES)) == _AR_HEADER_BYTES:
            size_bytes = int(header[48:58])
            if header[:16].startswith(b"data.tar"):
                yield stream
                return
            stream.seek(size_bytes + size_bytes % 2, os.SEEK_CUR)
    raise ValueError("no data in this Debian package")


def _keep(content: IO[bytes], wanted: Sequence[DataFile], folder: Path) -> list[DataFile]:
    """Write one content to the folder if it is a wanted file."""
    most_bytes = max(file.num_bytes for file in wanted)
    draft = folder / f".unpacking-{os.getpid()}"
    digest, num_bytes = hashlib.md5(usedforsecurity=False), 0
    try:
        with open(draft, "wb") as out:
            while chunk := content.read(_CHUNK_BYTES):
                num_bytes += len(chunk)
                if num_bytes > most_bytes:
                    return []
                digest.update(chunk)
                out.write(chunk)
        hits = [file for file in wanted if (file.num_bytes, file.md5) == (num_bytes, digest.hexdigest())]
        if hits:
            os.replace(draft, folder / hits[0].name)
        return hits[:1]
    except gzip.BadGzipFile:
        return []  # a member that is only called .gz; others may be the wanted ones
    except OSError as error:
        raise StorageError(f"{folder} cannot be written", found=str(error), hint="free some space") from None
    finally:
        draft.unlink(missing_ok=True)
