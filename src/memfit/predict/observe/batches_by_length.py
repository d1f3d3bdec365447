"""Chooses the batches a script trains on for `--lengths auto`: typical ones, then long ones, the longest last.

The batches of an epoch are made once, by the script's own sampler, data set and collate function, to see how large each
is. Each size is then given for two steps, so that one of them sees it whether or not the script fetches a batch ahead.
For both engines.
"""

from __future__ import annotations

import itertools
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.utils.data import dataloader

from memfit.errors import UsageError
from memfit.predict.lengths import HOW_TO_PLACE, QUANTILES, STEPS_BEFORE, STEPS_EACH, BatchSizes, Survey
from memfit.predict.observe.phase_and_module import tensors_anywhere

MOST_SECONDS = 30.0
MOST_BATCHES = 1_000_000


class Fetcher(Protocol):
    """Makes a batch of the samples with these indices."""

    def fetch(self, possibly_batched_index: object) -> object: ...


class BatchIterator(Protocol):
    """What is used of an iterator of `DataLoader` (torch 2.13), and what is put on it."""

    _dataset: object
    _dataset_kind: int
    _dataset_fetcher: Fetcher
    _index_sampler: object
    _sampler_iter: Iterator[object]
    _num_yielded: int
    memfit_workers: object
    memfit_chosen: bool
    _memfit_at_last: bool


@dataclass(slots=True)
class _Looked:
    survey: Survey
    indices: list[object]
    """The samples of the batch of each quantile."""


class BatchChooser:
    """Gives batches of chosen sizes to a training."""

    def __init__(self, step_now: Callable[[], int], line_now: Callable[[], str]) -> None:
        self._step_now, self._line_now = step_now, line_now
        self._looked: dict[int, _Looked] = {}
        self._kept: list[object] = []
        """Samplers that were looked at, so that their identities stay theirs."""
        self.survey: Survey | None = None
        """Of the loader that trained last."""
        self._asked: tuple[weakref.ref[BatchIterator], Survey, int] | None = None
        """The loader that gave a batch last, and the step at its first one: an evaluation may fetch with gradients."""
        self.reason = "no data loader was used with gradients"

    def found(self) -> Survey:
        """The batches of the loader that trained last; UsageError where there is nothing to choose from."""
        self._credit()
        if self.survey is None:
            hint = f"write the lengths of the samples to a file and give --lengths FILE; {HOW_TO_PLACE}"
            raise UsageError("the lengths of the batches are not known", found=self.reason, hint=hint)
        return self.survey

    def choose(self, batches: BatchIterator) -> None:
        """Put the samples of the next batch where an iterator of a loader looks for them."""
        if not torch.is_grad_enabled():
            return
        sampler = getattr(batches, "_index_sampler", None)
        if batches._dataset_kind != dataloader._DatasetKind.Map or sampler is None:
            self.reason = f"the data set of the loader at {self._line_now()} gives samples one after the other"
            return
        looked = self._looked.get(id(sampler))
        if looked is None:
            looked = self._looked[id(sampler)] = self._look(batches)
            self._kept.append(sampler)
        if not looked.indices:
            return
        if not looked.survey.sizes.values[-1]:
            self.reason = f"the batches of the loader at {self._line_now()} hold no tensor that could be measured"
            return
        index = min(max(0, (self._step_now() - STEPS_BEFORE - 1) // STEPS_EACH), len(looked.indices) - 1)
        left = max(0, looked.survey.sizes.num_batches - batches._num_yielded)
        batches._sampler_iter = itertools.repeat(looked.indices[index], left)
        self._credit()
        if self._asked is None or self._asked[0]() is not batches:
            self._asked = weakref.ref(batches), looked.survey, self._step_now()

    def _credit(self) -> None:
        """A loader trains if a step followed one of its batches before another loader was asked."""
        if self._asked is not None and self._step_now() > self._asked[2]:
            self.survey = self._asked[1]

    def _look(self, batches: BatchIterator) -> _Looked:
        """Make every batch of an epoch once, or as many as there is time for, drawn at random."""
        indices = list(itertools.islice(batches._sampler_iter, MOST_BATCHES))
        if not indices:
            batches._sampler_iter = iter(())
            return _Looked(Survey(), [])
        order = list(range(len(indices)))
        random.Random(0).shuffle(order)
        until = time.perf_counter() + MOST_SECONDS
        found: dict[int, tuple[int, str]] = {}
        for number in order:
            found[number] = _size_of(batches._dataset_fetcher.fetch(indices[number]))
            if time.perf_counter() > until:
                break
        counted = Counter(size for size, _ in found.values())
        scale = len(indices) / max(1, len(found))
        values = tuple(sorted(counted))
        sizes = BatchSizes(values=values, counts=tuple(counted[value] * scale for value in values))
        chosen = [_first_of(found, sizes.quantile(share)) for share in QUANTILES.values()]
        survey = Survey(
            line=self._line_now(),
            sizes=sizes,
            num_seen=len(found),
            shapes=tuple(found[number][1] for number in chosen),
        )
        return _Looked(survey, [indices[number] for number in chosen])


def _first_of(found: Mapping[int, tuple[int, str]], size: int) -> int:
    return min(number for number, (each, _) in found.items() if each == size)


def _size_of(batch: object) -> tuple[int, str]:
    """Elements of all tensors of a batch, and the shape of the largest."""
    shapes = [tuple(tensor.shape) for tensor in tensors_anywhere(batch)]
    largest = max(shapes, key=_count, default=())
    return sum(_count(shape) for shape in shapes), " x ".join(str(length) for length in largest) or "one number"


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= int(length)
    return count
