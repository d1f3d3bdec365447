"""Options of a comparison: one record from the command line to the grid that obeys it."""

from __future__ import annotations

import msgspec

from memfit.compare.rows_and_columns import OPTIMIZERS, TECHNIQUES


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which cells a grid has, and what is done with them. Names are those of `memfit compare`."""

    optimizers: tuple[str, ...] = OPTIMIZERS
    """Names of torch's optimizers, import paths, or 'own' for the job's own."""
    techniques: tuple[str, ...] = TECHNIQUES["cpu"]
    """'plain', or techniques with a plus between them."""
    base: str | None = None
    """The optimizer of where the user is; None for the first one."""
    measure: bool = False
    """Also train every cell here, for `num_steps` steps."""
    num_steps: int = 5
    budget_bytes: int | None = None
    """What the whole card or process may take."""
    epoch_steps: int | None = None
    """Steps of an epoch, for the time of an epoch."""
    num_workers: int = 2
    """Cells that are predicted at a time."""
