"""Samples of a data loader that would be ended early: some, spread over those that were not loaded, are looked at.

The first batches of a data set say little of its end: samples may be sorted by their size, or two sets joined.
As many as a batch holds are collated together, by the loader's own function, and have to give a batch of the shapes
that were seen. Nothing of this is in the figures, and random numbers are drawn as if it had not been.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import time
import weakref
from collections.abc import Iterator, Sized
from typing import cast
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data.dataloader import _DatasetKind

from memfit.predict.fake.stand_in_batches import inner_fetcher, kept_of_last
from memfit.predict.observe.batches_by_length import BatchIterator
from memfit.predict.observe.phase_and_module import tensors_anywhere
from memfit.predict.observe.repeating_batches import MANY, num_batches
from memfit.predict.observe.storage_tracker import Tracker

LEAST_SAMPLES = 32
"""How many samples are looked at, if a batch holds fewer."""
MOST_SECONDS = 1.0
"""After this long no further batch of such samples is loaded."""
_TORCH_SAYS = logging.getLogger("torch._subclasses.fake_tensor")
"""Where torch reports samples that cannot be stacked, which is an answer here."""
UNLIKE = (
    "samples of a data loader differ in their shapes, or could not be collated, and its last batches were not reached: "
    "larger ones may follow"
)
KEPT = "a data set keeps samples, and not all of them were loaded: it holds more later"


class UnseenSamples:
    """Remembers what was found for every loader, and which loaders had to go on to their end."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._alike: weakref.WeakKeyDictionary[object, dict[str, bool]] = weakref.WeakKeyDictionary()
        self._going_on: dict[int, str] = {}
        self._kept = False
        """Whether a data set kept some of the samples that were looked at: they are missing in the figures."""

    def has_to_go_on(self, batches: object, shown: list[object]) -> bool:
        """Whether a loader, which has given these shapes, may not be ended early; that is listed if it is not done."""
        sampler = getattr(batches, "_index_sampler", None)
        if sampler is None or getattr(batches, "memfit_chosen", False) or batches.__dict__.get("_memfit_at_last"):
            return False
        if kept_of_last(batches):
            self._going_on[id(sampler)] = KEPT
            return True
        known, shapes = self._alike.setdefault(sampler, {}), str(shown[-1])
        if shapes not in known:
            known[shapes] = self._are_alike(cast("BatchIterator", batches), shown)
        if not known[shapes]:
            self._going_on[id(sampler)] = UNLIKE
        return not known[shapes]

    def reached_the_end(self, batches: object) -> None:
        """A loader gave its last batch."""
        self._going_on.pop(id(getattr(batches, "_index_sampler", None)), None)

    def missed(self) -> list[str]:
        """Why larger batches or more samples may follow where the run has ended."""
        return sorted({*self._going_on.values(), *((KEPT,) if self._kept else ())})

    def _are_alike(self, batches: BatchIterator, shown: list[object]) -> bool:
        """Whether samples that are spread over the rest make batches like those that were seen."""
        indices = _indices_left(batches)
        if batches._dataset_kind != _DatasetKind.Map or not indices:
            return True
        size, num_births = getattr(batches._index_sampler, "batch_size", None), len(self._tracker.log.births)
        if not isinstance(size, int):
            return True
        groups = max(1, LEAST_SAMPLES // size)
        began = time.perf_counter()
        with self._aside():
            for group in range(groups):
                chosen = _spread(indices, size, group, groups)
                try:
                    batch = inner_fetcher(batches).fetch(chosen)
                except Exception:  # whatever a data set or a collate function raises
                    return False
                if [tuple(tensor.shape) for tensor in tensors_anywhere(batch)] not in shown:
                    return False
                del batch
                if time.perf_counter() - began > MOST_SECONDS:
                    break
        if self._tracker.living_since(num_births):
            self._kept = True
            return False
        return True

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Within, what is made is not in the figures, and what is drawn is drawn again afterwards."""
        outside = self._tracker.outside
        drawn, drawn_by_numpy, peak_bytes = random.getstate(), np.random.get_state(), outside.peak_bytes
        with _disable_current_modes():
            drawn_by_torch = torch.default_generator.get_state()
        try:
            with outside.made_here(), patch.object(_TORCH_SAYS, "disabled", True):
                yield
        finally:
            outside.peak_bytes = peak_bytes
            random.setstate(drawn)
            np.random.set_state(drawn_by_numpy)
            with _disable_current_modes():
                torch.default_generator.set_state(drawn_by_torch)


def _indices_left(batches: BatchIterator) -> list[object]:
    """Samples that a loader has not given: of torch's own samplers those that follow, else all, in their order."""
    sampler = batches._index_sampler
    own = [type(part).__module__ for part in (sampler, getattr(sampler, "sampler", sampler))]
    if any(not name.startswith("torch.utils.data") for name in own) or num_batches(batches) >= MANY:
        with contextlib.suppress(TypeError):
            return list(range(len(cast("Sized", batches._dataset))))
        return []
    rest = list(itertools.islice(batches._sampler_iter, num_batches(batches)))
    batches._sampler_iter = itertools.chain(rest, batches._sampler_iter)
    indices = [index for of_batch in rest if isinstance(of_batch, list) for index in of_batch]
    with contextlib.suppress(TypeError):
        indices.sort()
    return indices


def _spread(indices: list[object], count: int, group: int, groups: int) -> list[object]:
    """So many of them at equal distances, the last one among those of the last group."""
    total = count * groups
    places = [(group + 1 + place * groups) * len(indices) // total - 1 for place in range(count)]
    return [indices[max(0, place)] for place in places]
