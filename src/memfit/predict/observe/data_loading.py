"""Data loaders in a prediction: they load in this process, and their tensors are inputs; for both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch.utils.data
from torch.utils.data import dataloader

from memfit.predict.observe.batches import BatchChooser

IN_THIS_PROCESS = {
    "num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "timeout": 0,
    "multiprocessing_context": None, "worker_init_fn": None,
}  # fmt: skip


@contextmanager
def loading_here(
    in_data: Callable[[], AbstractContextManager[Any]],
    claim: Callable[[Any], None],
    *,
    pinned: bool,
    chooser: BatchChooser | None = None,
    in_worker: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[None]:
    """No worker processes; a batch is made within `in_data()` and then claimed. `pinned` keeps pin_memory as it is.

    A chooser decides which batch is made next. What the script gives to workers is made within `in_worker()` too: in a
    real run it lies in memory that they share.
    """
    make, following = torch.utils.data.DataLoader.__init__, dataloader._BaseDataLoaderIter.__next__
    start = dataloader._BaseDataLoaderIter.__init__
    changes = IN_THIS_PROCESS if pinned else {**IN_THIS_PROCESS, "pin_memory": False}

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        self.memfit_workers = args[5] if len(args) > 5 else kwargs.get("num_workers", 0)
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:])
        kwargs.update({name: value for name, value in changes.items() if name in kwargs})
        make(self, *args, **kwargs)

    def started(self: Any, loader: Any) -> None:
        start(self, loader)
        self.memfit_workers = getattr(loader, "memfit_workers", 0)
        self.memfit_chosen = chooser is not None

    def following_batch(self: Any) -> Any:
        with in_data(), in_worker() if self.memfit_workers else nullcontext():
            if chooser is not None:
                chooser.choose(self)
            batch = following(self)
        claim(batch)
        return batch

    with (
        patch.object(torch.utils.data.DataLoader, "__init__", made),
        patch.object(dataloader._BaseDataLoaderIter, "__init__", started),
        patch.object(dataloader._BaseDataLoaderIter, "__next__", following_batch),
    ):
        yield
