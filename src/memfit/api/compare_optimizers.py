"""Bytes per parameter of optimizers: predicted on fake tensors, and measured on this CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.api.options import checked_options

if TYPE_CHECKING:
    from memfit.records.optimizer_bytes import OptimizerTable


@checked_options
def optimizer_bytes(
    names: Sequence[str] = (),
    *,
    device: str | Sequence[str] = ("cpu", "cuda"),
    measure: bool = True,
    only: str = "",
    num_processes: int = 2,
    kept_in: str | Path | None = None,
    only_kept: bool = False,
    tell: Callable[[str], None] | None = None,
) -> OptimizerTable:
    """What optimizers keep and what their step takes; without names, those of torch and of all packages that are here.

    `only` is a package ('torch', 'pytorch_optimizer', 'torchao', 'bitsandbytes'). A file `kept_in` makes it resumable;
    with `only_kept` its runs are shown and none is made.
    A training without an optimizer ('none') is always among the runs: the others are compared with it.

    >>> table = optimizer_bytes(["adamw", "muon+adamw", "pytorch_optimizer.Lion"], device="cpu")  # doctest: +SKIP
    >>> table.run_of("adamw", "square", "cpu", "measured").state_bytes  # doctest: +SKIP
    """
    from memfit.compare.optimizer_bytes import fill_table
    from memfit.compare.torch_optimizer_names import optimizer_names
    from memfit.job.optimizers import NO_OPTIMIZER

    left_out: dict[str, str] = {}
    asked = [NO_OPTIMIZER, *names]
    if not names:
        asked, left_out = optimizer_names(only)
    devices = (device,) if isinstance(device, str) else tuple(device)
    path = None if kept_in is None else Path(kept_in)
    return fill_table(
        asked,
        devices=devices,
        measure=measure,
        num_processes=num_processes,
        kept_in=path,
        only_kept=only_kept,
        left_out=left_out,
        tell=tell,
    )
