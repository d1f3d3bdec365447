"""The corridor: one function per verb, the only file that joins rooms. Rooms are imported inside the functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.records.run import RunRecord


def read_run(folder: str | Path) -> RunRecord:
    """Read the run folder that `memfit measure` wrote."""
    from memfit.records.files import read_run as read

    return read(folder)
