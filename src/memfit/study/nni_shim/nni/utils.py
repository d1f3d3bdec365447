"""Functions that trials and custom tuners import from `nni.utils`."""

from enum import Enum


class OptimizeMode(Enum):
    """Which way is better."""

    Minimize = "minimize"
    Maximize = "maximize"


class MetricType:
    """The kinds of results."""

    FINAL = "FINAL"
    PERIODICAL = "PERIODICAL"
    REQUEST_PARAMETER = "REQUEST_PARAMETER"


class NodeType:
    """The keys of a search space."""

    ROOT = "root"
    TYPE = "_type"
    VALUE = "_value"
    INDEX = "_index"
    NAME = "_name"


class ClassArgsValidator:
    """The base class of validators; memfit checks arguments itself."""

    def validate_class_args(self, **kwargs):
        """Accept everything."""


def extract_scalar_reward(value, scalar_key="default"):
    """The number in a result."""
    reward = value.get(scalar_key) if isinstance(value, dict) else value
    if isinstance(reward, (int, float)):
        return reward
    raise RuntimeError(
        f"Incorrect final result: expected a number, or a dict with a number under {scalar_key!r}, found {value!r}"
    )


def extract_scalar_history(trial_history, scalar_key="default"):
    """The numbers in a list of results."""
    return [extract_scalar_reward(value, scalar_key) for value in trial_history]


def merge_parameter(base_params, override_params):
    """Put parameters over the ones of a command line, in place: a dict or a namespace."""
    for key, value in (override_params or {}).items():
        known = base_params if isinstance(base_params, dict) else vars(base_params)
        if key not in known:
            raise ValueError(f"Key {key!r} not found in base parameters.")
        value = _fitting(key, known[key], value)
        if isinstance(base_params, dict):
            base_params[key] = value
        else:
            setattr(base_params, key, value)
    return base_params


def _fitting(key, base, value):
    if base is None or isinstance(value, type(base)):
        return value
    if isinstance(base, float) and isinstance(value, int):
        return float(value)
    expected, found = type(base).__name__, type(value).__name__
    message = f"Expected {key!r} in override parameters to have type {expected}, but found {found}"
    if isinstance(base, int) and isinstance(value, float):
        message += " (quniform and its relatives give floats, even with q = 1: use randint or choice for whole numbers)"
    raise ValueError(message)
