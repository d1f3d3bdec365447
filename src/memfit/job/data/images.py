"""Images for a training: the real ones where they are cached, else synthetic ones of the same shape.

Both are held as they are on disk, one byte per value, so that they take the same memory. Synthetic images of a class
share a pattern under noise: a network can learn them, and its loss falls as on real ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memfit.errors import DataError, UsageError
from memfit.job.data.cache import folder_of, is_cached
from memfit.job.data.catalogue import IMAGE_SETS, DataSet, find_data_set
from memfit.job.data.readers import read_cifar, read_idx

NUM_CLASSES = 10
SYNTHETIC = "synthetic"
_CHUNK = 2000
_SEED = 20_240_101


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images and labels in two parts, one byte per value."""

    name: str
    source: str
    """'real' or 'synthetic', and why."""
    train_images: np.ndarray
    """(count, channels, height, width), uint8."""
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def num_bytes(self) -> int:
        """What they take in memory."""
        parts = (self.train_images, self.train_labels, self.test_images, self.test_labels)
        return sum(part.nbytes for part in parts)


def shape_of(name: str) -> tuple[int, int, int]:
    """Channels, height and width of a data set's images, without reading any."""
    return _image_set(name).shape or (0, 0, 0)


def images_said(name: str) -> str:
    """Which images a training on this data set sees here now, as a sentence; reads none."""
    data_set = _image_set(name)
    if not name.startswith(SYNTHETIC) and is_cached(data_set):
        return f"The images are those of {data_set.name}."
    hint = "as asked for" if name.startswith(SYNTHETIC) else f"the real ones: memfit data fetch {data_set.name}"
    return f"The images are synthetic, as many and as large as those of {data_set.name} ({hint})."


def load_images(name: str) -> Images:
    """'mnist' is real where it is cached, else synthetic; 'synthetic-mnist' is synthetic always."""
    data_set = _image_set(name)
    if name.startswith(SYNTHETIC):
        return synthetic_images(data_set, "synthetic, as asked for")
    if not is_cached(data_set):
        return synthetic_images(data_set, f"synthetic: not in the cache; memfit data fetch {data_set.name}")
    return _read(data_set)


def _image_set(name: str) -> DataSet:
    data_set = find_data_set(name.removeprefix(f"{SYNTHETIC}-"))
    if data_set.shape is None:
        raise UsageError(f"{name!r} has no images", hint=f"one of {', '.join(IMAGE_SETS)}")
    return data_set


def _read(data_set: DataSet) -> Images:
    folder = folder_of(data_set)
    if data_set.name == "cifar-10":
        paths = [folder / file.name for file in data_set.files]
        train, test = read_cifar(paths[:-1]), read_cifar(paths[-1:])
    else:
        arrays = [read_idx(folder / file.name) for file in data_set.files]
        train, test = (_with_channel(arrays[0]), arrays[1]), (_with_channel(arrays[2]), arrays[3])
    _check(data_set, train, test)
    return Images(
        name=data_set.name,
        source="real",
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
    )


def _with_channel(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), 1, *images.shape[1:])


def _check(data_set: DataSet, *parts: tuple[np.ndarray, np.ndarray]) -> None:
    for (images, labels), count in zip(parts, (data_set.num_train, data_set.num_test), strict=True):
        if images.shape != (count, *(data_set.shape or ())) or labels.shape != (count,) or labels.max() >= NUM_CLASSES:
            hint = f"memfit data fetch {data_set.name}"
            raise DataError(f"the cached {data_set.name} is damaged", found=f"images of {images.shape}", hint=hint)


def synthetic_images(data_set: DataSet, source: str) -> Images:
    """Images of the same number and shape, made from a fixed seed."""
    generator = np.random.default_rng(_SEED)
    patterns = generator.integers(0, 128, (NUM_CLASSES, *(data_set.shape or ())), dtype=np.uint8)
    train = _make(generator, patterns, data_set.num_train)
    test = _make(generator, patterns, data_set.num_test)
    return Images(
        name=data_set.name,
        source=source,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
    )


def _make(generator: np.random.Generator, patterns: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Patterns and noise, made in pieces so that making them takes no more memory than having them."""
    labels = generator.integers(0, len(patterns), count, dtype=np.uint8)
    images = np.empty((count, *patterns.shape[1:]), dtype=np.uint8)
    for start in range(0, count, _CHUNK):
        part = images[start : start + _CHUNK]
        part[:] = generator.integers(0, 128, part.shape, dtype=np.uint8)
        part += patterns[labels[start : start + _CHUNK]]
    return images, labels
