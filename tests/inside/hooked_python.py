"""A program that ran under the start-up hook, and what it left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from memfit.runfolder.marks import MarksFile, read_marks

START = Path(__file__).parents[2] / "src" / "memfit" / "inside" / "start"


@dataclass(frozen=True)
class HookedRun:
    """A finished program and the folder its marks went to."""

    folder: Path
    returncode: int
    stdout: str
    stderr: str

    @property
    def marks_paths(self) -> list[Path]:
        return sorted(self.folder.glob("marks-*.txt"))

    def marks(self) -> MarksFile:
        """The marks of the only process that left some."""
        (path,) = self.marks_paths
        found = read_marks(path, process=0, clock_start_ns=0)
        assert found is not None
        return found


def hook_environment(folder: Path, **more: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(START), "MEMFIT_RUN_FOLDER": str(folder), "MEMFIT_MARKS": "1"}
    return {**os.environ, **own, **more}
