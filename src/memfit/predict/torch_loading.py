"""How do data loaders load in this very process, and what they make become inputs? For both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch.utils.data
from torch.utils.data import dataloader

from memfit.predict.torch_batches import BatchChooser

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
) -> Iterator[None]:
    """No worker processes; a batch is made within `in_data()` and then claimed. `pinned` keeps pin_memory as it is.

    A chooser decides which batch is made next.
    """
    make, following = torch.utils.data.DataLoader.__init__, dataloader._BaseDataLoaderIter.__next__
    changes = IN_THIS_PROCESS if pinned else {**IN_THIS_PROCESS, "pin_memory": False}

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:])
        kwargs.update({name: value for name, value in changes.items() if name in kwargs})
        make(self, *args, **kwargs)

    def following_batch(self: Any) -> Any:
        with in_data():
            if chooser is not None:
                chooser.choose(self)
            batch = following(self)
        claim(batch)
        return batch

    with (
        patch.object(torch.utils.data.DataLoader, "__init__", made),
        patch.object(dataloader._BaseDataLoaderIter, "__next__", following_batch),
    ):
        yield
