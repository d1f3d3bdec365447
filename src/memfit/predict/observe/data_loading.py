"""Data loaders in a prediction: they load in this process, and their tensors are inputs; for both engines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol
from unittest.mock import patch

import torch.utils.data
from torch.utils.data import dataloader

from memfit.predict.observe.batches_by_length import BatchChooser, BatchIterator

IN_THIS_PROCESS = {
    "num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "timeout": 0,
    "multiprocessing_context": None, "worker_init_fn": None,
}  # fmt: skip


class _Loader(Protocol):
    """A `DataLoader`, which remembers the workers that the script asked for."""

    memfit_workers: object


@contextmanager
def loading_here(
    in_data: Callable[[], AbstractContextManager[object]],
    claim: Callable[[object], None],
    *,
    pinned: bool,
    chooser: BatchChooser | None = None,
    in_worker: Callable[[], AbstractContextManager[object]] = nullcontext,
    follow: Callable[[BatchIterator, torch.utils.data.DataLoader], None] | None = None,
) -> Iterator[None]:
    """No worker processes; a batch is made within `in_data()` and then claimed. `pinned` keeps pin_memory as it is.

    A chooser decides which batch is made next. What the script gives to workers is made within `in_worker()` too: in a
    real run it lies in memory that they share. `follow` is called with every iterator that begins.
    """
    make: Callable[..., None] = torch.utils.data.DataLoader.__init__
    following: Callable[..., object] = dataloader._BaseDataLoaderIter.__next__
    start: Callable[..., None] = dataloader._SingleProcessDataLoaderIter.__init__
    changes = IN_THIS_PROCESS if pinned else {**IN_THIS_PROCESS, "pin_memory": False}

    @functools.wraps(make)  # Lightning asks for the names of its arguments
    def made(self: _Loader, *args: object, **kwargs: object) -> None:
        self.memfit_workers = args[5] if len(args) > 5 else kwargs.get("num_workers", 0)
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:])
        kwargs.update({name: value for name, value in changes.items() if name in kwargs})
        make(self, *args, **kwargs)

    def started(self: BatchIterator, loader: torch.utils.data.DataLoader) -> None:
        start(self, loader)
        self.memfit_workers = getattr(loader, "memfit_workers", 0)
        self.memfit_chosen = chooser is not None
        if follow is not None and chooser is None:
            follow(self, loader)

    def following_batch(self: BatchIterator) -> object:
        with in_data(), in_worker() if self.memfit_workers else nullcontext():
            if chooser is not None:
                chooser.choose(self)
            batch = following(self)
        claim(batch)
        return batch

    with (
        patch.object(torch.utils.data.DataLoader, "__init__", made),
        patch.object(dataloader._SingleProcessDataLoaderIter, "__init__", started),
        patch.object(dataloader._BaseDataLoaderIter, "__next__", following_batch),
    ):
        yield
