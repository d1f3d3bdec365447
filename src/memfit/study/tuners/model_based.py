"""Model-based tuners: Parzen estimator (TPE) and Gaussian process."""

from __future__ import annotations

import importlib.util
from typing import Any

from memfit.errors import MissingExtra, UsageError
from memfit.records.study import SearchSpace
from memfit.study.engine.history import History, num_objectives
from memfit.study.space.sampling import generator_for
from memfit.study.space.space import Draws
from memfit.study.tuners.base import Answer, NoMore, proposal_for, take_argument
from memfit.study.tuners.neighbours import first_that_fits
from memfit.study.tuners.random_search import Unique

NUM_STARTUP = 20
"""As NNI's TPE: so many points are drawn at random before there is a model."""
_TPE_ARGUMENTS = {
    "constant_liar_type",
    "n_startup_jobs",
    "n_ei_candidates",
    "linear_forgetting",
    "prior_weight",
    "gamma",
}


class ModelTuner:
    """Asks Optuna, keeps away from where memory ran out, and never proposes the same parameters twice."""

    def __init__(self, space: SearchSpace, seed: int, *, model: str, arguments: dict[str, Any]) -> None:
        self.space = space
        self.seed = seed
        self.unique = Unique(space)
        self.sampler = _sampler(space, model, arguments)
        self.models_memory = model == "gp"
        """A Gaussian process is fitted to the constraint as well, and a draw of it takes a second."""

    def propose(self, history: History, number: int) -> Answer:
        draws = self.unique.instead_of(self._draw(history, number), history)
        if draws is None:
            return NoMore("every point of the space was tried")
        return proposal_for(self.space, number, draws)

    def _draw(self, history: History, number: int) -> Draws:
        if self.models_memory:
            return self._suggest(history, number, 0)
        return first_that_fits(self.space, history, lambda attempt: self._suggest(history, number, attempt))

    def _suggest(self, history: History, number: int, attempt: int) -> Draws:
        from memfit.study.tuners.optuna_points import suggest

        return suggest(
            self.space,
            history,
            num_objectives=num_objectives(history.settings),
            seed=optuna_seed(self.seed, number, attempt),
            sampler=self.sampler,
        )


def optuna_seed(seed: int, number: int, attempt: int) -> int:
    """Optuna's samplers take 32 bits."""
    return int(generator_for(seed, number, attempt).integers(2**32))


def require_optuna() -> None:
    """Say what to install, before anything is started."""
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtra("this tuner needs optuna", hint="pip install 'memfit[study]', or the tuner Random")


def has_gaussian_process() -> bool:
    """Whether what Optuna's Gaussian process needs is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "scipy"))


def _sampler(space: SearchSpace, model: str, arguments: dict[str, Any]) -> Any:
    require_optuna()
    from memfit.study.tuners.optuna_points import gp_factory, tpe_factory

    if model == "gp":
        return gp_factory(take_argument(arguments, "cold_start_num", 10, low=0, high=1e6, tool="the tuner"))
    return tpe_factory(space, tpe_arguments(arguments))


def tpe_arguments(arguments: dict[str, object]) -> dict[str, object]:
    """What of NNI's `tpe_args` has a counterpart."""
    written = arguments.get("tpe_args") or {}
    if not isinstance(written, dict) or not set(written) <= _TPE_ARGUMENTS:
        hint = f"the names are {', '.join(sorted(_TPE_ARGUMENTS))}"
        raise UsageError("TPE: tpe_args is not understood", found=repr(written), hint=hint)
    liar = written.get("constant_liar_type", "best")
    if liar not in ("best", "worst", "mean", None):
        raise UsageError("TPE: constant_liar_type is not best, worst, mean or null", found=repr(liar))
    return {
        "num_startup": take_argument(written, "n_startup_jobs", NUM_STARTUP, low=0, high=1e6, tool="TPE"),
        "num_candidates": take_argument(written, "n_ei_candidates", 24, low=1, high=1e6, tool="TPE"),
        "constant_liar": liar is not None,
    }
