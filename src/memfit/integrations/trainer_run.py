"""The run that a trainer's callback measures: begun once, ended once, left to `memfit measure` where that is around.

A callback in a process that is being measured already adds only the phases that its trainer knows of. Otherwise it
measures the process from the beginning of the training to its end, with a sampler and marks, into a run folder of its
own. Of several ranks, rank 0 gets the folder that was named and the others get folders beside it.
"""

from __future__ import annotations

from pathlib import Path

from memfit import inside
from memfit.measure.in_process import MeasuredRun, measure_this_process


class TrainerRun:
    """What both callbacks share: the measurement of one training after another."""

    def __init__(self, run_folder: str | Path, *, ledger_every: int | None, overwrite: bool) -> None:
        self.folder = Path(run_folder)
        self._ledger_every = ledger_every
        self._overwrite = overwrite
        self._num_begun = 0
        self._run: MeasuredRun | None = None

    def begin(self, rank: int) -> None:
        """A training begins; one that ended in an exception without an event ends here."""
        self.end()
        if inside.is_recording():
            return
        self._num_begun += 1
        again = f"-{self._num_begun}" if self._num_begun > 1 else ""
        folder = self.folder.with_name(self.folder.name + again + (f"-rank{rank}" if rank else ""))
        run = measure_this_process(folder, overwrite=self._overwrite, ledger_every=self._ledger_every)
        run.__enter__()
        self._run = run

    def end(self, error: BaseException | None = None) -> None:
        """The training is over, perhaps by an exception: the record is complete."""
        run, self._run = self._run, None
        if run is not None:
            run.__exit__(None, error)
