"""Context manager and decorator by which a program measures itself, with the same sampler and marks.

    with memfit.measure_run("runs/mine") as run:
        train()
    print(run.record.peak)

The sampler is a process of its own here too; inside this process only the marks are added, and taken out again at the
end. In a process that is being marked already, by `memfit measure` or by a measurement around this one, the marks stay
with that one, and a note says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TypeVar

from memfit.measure.new_run import default_folder
from memfit.measure.session import Attachment
from memfit.records.run import RunRecord, Settings, settings_for

P = ParamSpec("P")
R = TypeVar("R")
INSIDE_FOLDER = Path(__file__).resolve().parents[1] / "inside"


def load_inside() -> ModuleType:
    """The package that runs inside a job, under the one name it has in every process."""
    if "memfit_inside" in sys.modules:
        return sys.modules["memfit_inside"]
    spec = importlib.util.spec_from_file_location(
        "memfit_inside", INSIDE_FOLDER / "__init__.py", submodule_search_locations=[str(INSIDE_FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["memfit_inside"] = module
    spec.loader.exec_module(module)
    return module


class MeasuredRun:
    """A measurement of this very process; use it as a context manager or a decorator."""

    def __init__(self, folder: str | Path | None, settings: Settings, *, overwrite: bool) -> None:
        self.folder = Path(folder) if folder is not None else default_folder([sys.argv[0] or "python"])
        self.record: RunRecord | None = None
        """The finished record; None while the run is going on."""
        self._settings = settings
        self._overwrite = overwrite
        self._attachment: Attachment | None = None
        self._marks_are_ours = False

    def __enter__(self) -> MeasuredRun:
        is_marked = self._settings.marks and load_inside().is_recording()
        self._marks_are_ours = self._settings.marks and not is_marked
        if self._marks_are_ours:
            _forget_earlier_peak()
        self._attachment = Attachment(os.getpid(), self.folder, self._settings, overwrite=self._overwrite)
        self._attachment.messages(10.0)
        if is_marked:
            self._attachment.note("this process was being measured already: its steps are in that record")
        elif self._marks_are_ours:
            load_inside().start_marks(str(self.folder.resolve()), self._settings.ledger_every)
        return self

    def __exit__(self, _kind: object = None, error: BaseException | None = None, _trace: object = None) -> None:
        from memfit.runfolder.reader import read_run

        if self._marks_are_ours:
            if error is not None:
                load_inside().note_exception(error)
            load_inside().stop_marks()
        assert self._attachment is not None
        self._attachment.close()
        self._attachment = None
        self.record = read_run(self.folder)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: every call of the function is measured; the last record stays in `.record`."""

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return measured


def _forget_earlier_peak() -> None:
    """Lower this process's high-water mark to its present size; where that is forbidden, the sampler sets it aside."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def measure_this_process(
    folder: str | Path | None, *, overwrite: bool, interval_seconds: float | None = None, **settings: object
) -> MeasuredRun:
    """A measurement of this process, not yet started."""
    return MeasuredRun(folder, settings_for(interval_seconds, attached=True, **settings), overwrite=overwrite)
