"""Stand-in for `nni.experiment`: an Experiment here is a study that memfit runs, every trial of it measured."""

from .config import AlgorithmConfig, CustomAlgorithmConfig, ExperimentConfig, LocalConfig
from .data import TrialHyperParameters, TrialJob, TrialMetricData, TrialResult
from .experiment import Experiment, RunMode

__all__ = [
    "AlgorithmConfig",
    "CustomAlgorithmConfig",
    "Experiment",
    "ExperimentConfig",
    "LocalConfig",
    "RunMode",
    "TrialHyperParameters",
    "TrialJob",
    "TrialMetricData",
    "TrialResult",
]
