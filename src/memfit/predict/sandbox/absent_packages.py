"""Packages that a predicted script imports and that are not installed.

A trial of NNI asks for its parameters and reports results. Without a tuner there are none, and the script's own
defaults count, as when it is run by hand.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

Note = Callable[[str, str], None]


@contextlib.contextmanager
def standing_alone(note: Note) -> Iterator[None]:
    """Within, `import nni` works also where it is not installed."""
    if "nni" in sys.modules or importlib.util.find_spec("nni") is not None:
        yield
        return
    trial = _trial(note)
    own = {"nni": trial, "nni.utils": trial.utils}
    sys.modules.update(own)
    try:
        yield
    finally:
        for name in own:
            sys.modules.pop(name, None)  # these alone: what the script imported meanwhile stays


def _trial(note: Note) -> types.ModuleType:
    """The functions that a trial of NNI calls."""

    def parameters(*args: object, **kwargs: object) -> dict[str, object]:
        note("script", "nni is not installed: it gave no parameters, so the script's own defaults count")
        return {}

    def nothing(*args: object, **kwargs: object) -> None:
        return None

    module: Any = types.ModuleType("nni", "The trial's side of NNI, without a tuner.")
    module.get_next_parameter = module.get_current_parameter = parameters
    module.report_intermediate_result = module.report_final_result = nothing
    module.get_experiment_id = module.get_trial_id = lambda: "STANDALONE"
    module.get_sequence_id = lambda: 0
    module.__path__ = []  # a package, whose other parts are not found
    utils: Any = types.ModuleType("nni.utils")
    module.utils = utils
    utils.merge_parameter = lambda base_params, override_params: base_params  # there is nothing to merge
    return module
