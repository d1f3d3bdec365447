"""Stand-in for `nni.experiment`: an Experiment here is a study that memfit runs, every trial of it measured."""

from .config import AlgorithmConfig, CustomAlgorithmConfig, ExperimentConfig, LocalConfig
from .data import TrialHyperParameters, TrialJob, TrialMetricData, TrialResult
from .experiment import Experiment, RunMode

_ELSEWHERE = (
    "AdlConfig", "AmlConfig", "AzureBlobConfig", "DlcConfig", "FrameworkControllerConfig",
    "FrameworkControllerRoleConfig", "FrameworkAttemptCompletionPolicy", "HybridConfig", "K8sAzureStorageConfig",
    "K8sNfsConfig", "K8sPvcConfig", "KubeflowConfig", "KubeflowRoleConfig", "NfsConfig", "OpenpaiConfig",
    "RemoteConfig", "RemoteMachineConfig",
)  # fmt: skip
"""Classes of NNI for platforms other than the machine it runs on."""


def __getattr__(name):
    if name in _ELSEWHERE:
        raise ImportError(
            f"nni.experiment.{name} is for another platform than 'local', which memfit does not run; "
            "try: memfit study --on slurm (or pbs, lsf, a Dask scheduler), see docs/cluster.md",
            name=f"{__name__}.{name}",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
