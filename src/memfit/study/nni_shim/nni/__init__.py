"""The part of NNI that trials use, served by memfit: parameters in, results out."""

from .trial import (
    get_current_parameter,
    get_experiment_id,
    get_next_parameter,
    get_next_parameters,
    get_sequence_id,
    get_trial_id,
    report_final_result,
    report_intermediate_result,
)

__version__ = "3.0+memfit"
__all__ = [
    "NoMoreTrialError",
    "enable_global_logging",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_next_parameters",
    "get_sequence_id",
    "get_trial_id",
    "report_final_result",
    "report_intermediate_result",
    "silence_stdout",
]

_LATE = {
    "ClassArgsValidator": "utils",
    "Experiment": "experiment",
    "dump": "serializer",
    "load": "serializer",
    "trace": "serializer",
}
_MODULES = (
    "assessor", "common", "experiment", "parameter_expressions", "runtime", "serializer", "tuner", "typehint", "utils",
)  # fmt: skip


class NoMoreTrialError(Exception):
    """Raised by a tuner that has nothing to try."""

    def __init__(self, ErrorInfo="Search space fully explored"):
        super().__init__(ErrorInfo)
        self.errorinfo = ErrorInfo


def silence_stdout():
    """Keep standalone runs from printing their results."""
    from . import trial

    trial.is_silent = True


def enable_global_logging(enable=True):
    """Nothing to do: memfit keeps what a trial prints."""


def __getattr__(name):
    """Load what few trials use when it is used."""
    from importlib import import_module

    if name in _LATE:
        return getattr(import_module("." + _LATE[name], __name__), name)
    if name in _MODULES:
        return import_module("." + name, __name__)
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        "nni." + name + " is not part of the nni that memfit gives to trials; "
        "install nni and set `nni: installed` in the study to use all of it"
    )
