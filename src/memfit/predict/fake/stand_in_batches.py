"""Batches of a data loader while steps are passed over: made as earlier ones were, without loading their samples.

Most of a long prediction went into transforms of samples whose values are unknown. Only where every batch of as many
samples looked the same so far, in a loader that stacks its samples (torch's own `default_collate`, so that samples of
one batch are alike, and its own batch sampler), and only while the first sample of each such batch, which is loaded, is
of their shapes: the size may be set anew in a training. A data set that changes when it is asked (a cache, a count
of calls) is asked for every sample. What loading takes for a moment is taken again. Small values that were known
(labels) are those of an earlier batch, as an assumption. Read in torch 2.13.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import cast

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import BatchSampler, DataLoader, default_collate
from torch.utils.data.dataloader import _DatasetKind

from memfit.predict.fake.repeated_calls import Leaf, geometry_of
from memfit.predict.levels.guesses import EARLIER
from memfit.predict.observe.batches_by_length import BatchIterator, Fetcher
from memfit.predict.observe.known_values import covers_storage, keep_shadow, shadow_of
from memfit.predict.observe.storage_tracker import Tracker

ALIKE = 4
"""Batches that are loaded before later ones are made without."""
NOTE = "samples of batches after the predicted steps were not loaded, since the shapes of their batches repeat"
PLAIN = (torch.Tensor, bool, int, float, str, bytes, type(None))
"""What the leaves of a batch are whose tensors are all seen."""
MOST_DEPTH, MOST_PARTS = 4, 8
"""How deep a data set's own objects (transforms, the data set in a subset) are looked into, and at how many entries."""


@dataclass(slots=True)
class _Seen:
    """Batches of as many samples: how many were alike, the last of them, and what loading took beside it."""

    count: int
    leaves: tuple[Leaf, ...]
    nest: _pytree.TreeSpec
    values: list[torch.Tensor | None]
    beside_bytes: int
    of_one_sample: list[object]


class StandInBatches:
    """Remembers the batches of every loader."""

    def __init__(self, tracker: Tracker, is_passing: Callable[[], bool], note: Callable[[str, str], None]) -> None:
        self._tracker, self._is_passing, self._note = tracker, is_passing, note
        self._seen: weakref.WeakKeyDictionary[DataLoader[object], dict[int, _Seen | None]]
        self._seen = weakref.WeakKeyDictionary()

    def follow(self, batches: BatchIterator, loader: DataLoader[object]) -> None:
        """Stand between an iterator that begins and the data set of its loader."""
        if batches._dataset_kind != _DatasetKind.Map:
            return
        stacks = loader.collate_fn is default_collate and type(loader.batch_sampler) is BatchSampler
        fetch = self._fetch_and_look
        if stacks:
            fetch = partial(self._fetch, self._seen.setdefault(loader, {}), loader.dataset)
        batches._dataset_fetcher = _Fetcher(batches._dataset_fetcher, fetch)

    def _fetch_and_look(self, fetcher: _Fetcher, indices: object) -> object:
        """A batch; beside it, whether its data set has kept something."""
        num_births = len(self._tracker.log.births)
        batch = fetcher.inside.fetch(indices)
        fetcher.has_kept = self._keeps_more(batch, num_births)
        return batch

    def _fetch(self, seen: dict[int, _Seen | None], dataset: object, fetcher: _Fetcher, indices: object) -> object:
        all_indices = cast("list[object]", indices)
        num_samples = len(all_indices)
        known = seen.get(num_samples)
        if known is not None and known.count >= ALIKE and self._is_passing():
            if _of_one_sample(fetcher.inside.fetch(all_indices[:1])) == known.of_one_sample:
                self._note("script", NOTE)
                return _made_again(known)
            known = seen[num_samples] = None
        if num_samples < 2 or (num_samples in seen and known is None):  # one sample, or batches that differ
            return self._fetch_and_look(fetcher, indices)
        log, before_bytes = self._tracker.log, self._tracker.log.live_bytes
        looked = _looks_of(dataset)
        highest_bytes, log.highest_bytes = log.highest_bytes, before_bytes
        try:
            batch = self._fetch_and_look(fetcher, indices)
        finally:
            most_bytes, log.highest_bytes = log.highest_bytes, max(highest_bytes, log.highest_bytes)
        keeps = _looks_of(dataset) != looked or fetcher.has_kept
        seen[num_samples] = None if keeps else _compared(batch, known, most_bytes - log.live_bytes)
        return batch

    def _keeps_more(self, batch: object, num_births: int) -> bool:
        """Whether something that was made since then is alive and not the batch: samples in a cache."""
        leaves = _pytree.tree_leaves(batch)
        if any(not isinstance(leaf, PLAIN) for leaf in leaves):  # an object that may hold the tensors of the batch
            return False
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return bool(self._tracker.living_since(num_births) - {self._tracker.uid_of(tensor) for tensor in tensors})


class _Fetcher:
    """Fetches by asking `StandInBatches` first."""

    def __init__(self, inside: Fetcher, fetch: Callable[[_Fetcher, object], object]) -> None:
        self.inside, self._fetch = inside, fetch
        self.has_kept = False
        """Whether the data set kept something of the batch that it made last."""

    def fetch(self, possibly_batched_index: object) -> object:
        """A batch of the samples with these indices."""
        return self._fetch(self, possibly_batched_index)


def inner_fetcher(batches: BatchIterator) -> Fetcher:
    """What asks the data set of an iterator itself."""
    fetcher = batches._dataset_fetcher
    return fetcher.inside if isinstance(fetcher, _Fetcher) else fetcher


def kept_of_last(batches: object) -> bool:
    """Whether the data set of an iterator kept something of the batch that it made last."""
    fetcher = getattr(batches, "_dataset_fetcher", None)
    return isinstance(fetcher, _Fetcher) and fetcher.has_kept


def _compared(batch: object, known: _Seen | None, beside_bytes: int) -> _Seen | None:
    """What is remembered of a batch; None where it looks otherwise than those before, or cannot be made again."""
    shown = geometry_of(batch)
    tensors = [leaf for leaf in _pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if shown is None or not all(covers_storage(tensor) for tensor in tensors):
        return None
    if known is not None and (_shapes(known.leaves), known.nest) != (_shapes(shown[0]), shown[1]):
        return None
    with _disable_current_modes():
        values = [kept.clone() if (kept := shadow_of(tensor)) is not None else None for tensor in tensors]
    return _Seen(known.count + 1 if known is not None else 1, *shown, values, beside_bytes, _of_one_sample(batch))


def _of_one_sample(batch: object) -> list[object]:
    """Shapes and types of the tensors without their first dimension, in which samples are stacked."""
    leaves = _pytree.tree_leaves(batch)
    return [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _looks_of(value: object, depth: int = 0) -> object:
    """Numbers and names that a data set and its parts hold, and how many entries their containers have."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor) or depth == MOST_DEPTH:
        return type(value)
    if isinstance(value, (list, tuple, dict, set)):
        items = [*value.values()] if isinstance(value, dict) else [*value]
        return len(items), [_looks_of(item, depth + 1) for item in items[:MOST_PARTS]]
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict) or isinstance(value, (type, ModuleType, FunctionType)):
        return type(value)
    shared = [(name, of_class) for name, of_class in vars(type(value)).items() if type(of_class) in (bool, int, float)]
    return type(value), shared, [(name, _looks_of(part, depth + 1)) for name, part in list(own.items())]


def _shapes(leaves: tuple[Leaf, ...]) -> list[object]:
    """Tensors by their geometry, any other leaf (a name, a number) by its type."""
    return [leaf if isinstance(leaf, tuple) else type(leaf) for leaf in leaves]


def _made_again(seen: _Seen) -> object:
    """A batch that looks like the last one."""
    beside = torch.empty(max(0, seen.beside_bytes), dtype=torch.uint8)
    values, made = iter(seen.values), list[object]()
    for leaf in seen.leaves:
        if not isinstance(leaf, tuple):
            made.append(leaf)
            continue
        tensor = torch.empty_strided(leaf[0], leaf[1], dtype=leaf[3], device=leaf[4])
        kept = next(values)
        with _disable_current_modes():
            copied = kept.clone() if kept is not None else None
        keep_shadow(tensor, copied, EARLIER)
        made.append(tensor)
    del beside
    return _pytree.tree_unflatten(made, seen.nest)
