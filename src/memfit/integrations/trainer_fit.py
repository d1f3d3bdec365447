"""Base of the fitting callbacks of both trainers: one training after another is held to a budget."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit import api
from memfit.errors import UsageError

if TYPE_CHECKING:
    from memfit.fit.training_loop import LoopFitter
    from memfit.records.fit import LoopFit


class BudgetedTraining:
    """What a callback derives from beside its framework's own class; `disk` is a folder that a plan may move to.

    `measure_every=1` measures every pass, which costs time where the device is a CPU.
    """

    def __init__(
        self,
        budget: str | int,
        *,
        disk: str | Path | None = None,
        planner: str = "best",
        measure_every: int | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._options: dict[str, Any] = {"disk": disk, "planner": planner, "measure_every": measure_every}
        self._options["allow"] = allow
        self._budget = budget
        self._new_fitter()  # a budget that cannot be read is refused here, before anything trains
        self._fitter: LoopFitter | None = None
        self._at_the_end: weakref.finalize[Any, Any] | None = None
        self.found: LoopFit | None = None
        """What came of the last training that ended; None before."""

    def begin(self) -> None:
        """A training begins; one that ended in an exception without an event ends here."""
        self.end()
        self._fitter = self._new_fitter()
        self._fitter.start()
        self._at_the_end = weakref.finalize(self, self._fitter.stop)  # also when the process ends

    def end(self) -> None:
        """The training is over, perhaps by an exception: take the plan away, keep the record and print it."""
        fitter, self._fitter = self._fitter, None
        if fitter is None or self._at_the_end is None:
            return
        self._at_the_end.detach()
        self.found = fitter.stop()
        if self.found.fits:
            _print_fit(self.found)

    def _new_fitter(self) -> LoopFitter:
        return api.fitting_loop(self._budget, say=_say, **self._options)


def refuse_ranks(num_ranks: int, how: str) -> None:
    """Refuse a training on several ranks, by the name of what spreads it."""
    if num_ranks > 1 or how:
        raise UsageError(
            f"a training under {how or f'{num_ranks} ranks'} cannot be fitted while it runs",
            found="its passes talk to other ranks, so that one rank alone cannot repeat them",
            hint="fit the same training on one device, and load the plan in every rank: memfit.apply_plan",
        )


def _print_fit(found: LoopFit) -> None:
    from memfit.show.terminal.fit import loop_fit_text
    from memfit.show.text_output import write_text

    write_text(lambda width, color: loop_fit_text(found, width=width, color=color), sys.stderr)


def _say(sentence: str) -> None:
    sys.stderr.write(f"memfit: {sentence}\n")
