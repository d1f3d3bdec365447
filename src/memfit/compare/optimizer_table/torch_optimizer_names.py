"""All optimizers that the table of bytes has: torch's variants, and every class of the optional packages here."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io

import torch

from memfit.job.recipes.optimizer_names import NO_OPTIMIZER

TORCH_NAMES = (
    "sgd", "sgd-foreach", "sgd-fused", "sgd-momentum", "sgd-momentum-foreach", "sgd-momentum-fused",
    "sgd-momentum(nesterov=True)", "adam", "adam-foreach", "adam-fused", "adam-amsgrad", "adam-amsgrad-foreach",
    "adam-amsgrad-fused", "adamw", "adamw-foreach", "adamw-fused", "adamw-amsgrad", "adamw-amsgrad-foreach",
    "adamw-amsgrad-fused", "adagrad", "adagrad-foreach", "adagrad-fused", "adadelta", "adadelta-foreach", "adamax",
    "adamax-foreach", "nadam", "nadam-foreach", "radam", "radam-foreach", "rmsprop", "rmsprop-foreach",
    "rmsprop-momentum", "rmsprop-momentum-foreach", "rmsprop-centered", "rmsprop-centered-foreach",
    "rmsprop-centered-momentum", "rmsprop-centered-momentum-foreach", "rprop", "rprop-foreach", "asgd", "asgd-foreach",
    "adafactor", "adafactor-foreach", "muon+adamw", "muon+adamw-foreach", "muon+adamw-fused",
    "lbfgs(history_size=10)", "sparseadam",
)  # fmt: skip
GPU_NAMES = ("sgd-forloop", "sgd-momentum-forloop", "adam-forloop", "adamw-forloop", "adafactor-forloop")
"""On a GPU a plain name means foreach; these are the loops there, and the plain names on a CPU."""
PACKAGES = ("torch", "pytorch_optimizer", "torchao", "bitsandbytes")
MODULES = {"pytorch_optimizer": "pytorch_optimizer", "torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}
WRITTEN = {
    "pytorch_optimizer.BSAM": ("pytorch_optimizer.BSAM(num_data=50000)",),
    "pytorch_optimizer.Ranger21": ("pytorch_optimizer.Ranger21(num_iterations=1000)",),
    "pytorch_optimizer.SpectralSphere": ("pytorch_optimizer.SpectralSphere+adamw",),
    "pytorch_optimizer.LBFGS": ("pytorch_optimizer.LBFGS(history_size=10)",),
    "pytorch_optimizer.GaLore": ("pytorch_optimizer.GaLore", "pytorch_optimizer.GaLore(rank=32)"),
    "pytorch_optimizer.APOLLO": ("pytorch_optimizer.APOLLO", "pytorch_optimizer.APOLLO(rank=32)"),
    "pytorch_optimizer.Fira": ("pytorch_optimizer.Fira", "pytorch_optimizer.Fira(rank=32)"),
    "pytorch_optimizer.Alice": ("pytorch_optimizer.Alice(rank=32, leading_basis=8)",),
    "bitsandbytes.optim.LARS": ("bitsandbytes.optim.LARS(momentum=0.9)",),
    "bitsandbytes.optim.LARS8bit": ("bitsandbytes.optim.LARS8bit(momentum=0.9)",),
    "bitsandbytes.optim.LARS32bit": ("bitsandbytes.optim.LARS32bit(momentum=0.9)",),
    "bitsandbytes.optim.PytorchLARS": ("bitsandbytes.optim.PytorchLARS(momentum=0.9)",),
    "bitsandbytes.optim.SGD": ("bitsandbytes.optim.SGD(momentum=0.9)",),
    "bitsandbytes.optim.SGD8bit": ("bitsandbytes.optim.SGD8bit(momentum=0.9)",),
    "bitsandbytes.optim.SGD32bit": ("bitsandbytes.optim.SGD32bit(momentum=0.9)",),
}
"""Class -> how it is asked for, where its name alone is not enough or shows only one side of it."""
LEFT_OUT = {
    "pytorch_optimizer.DistributedMuon": "needs a process group; in one process it is pytorch_optimizer.Muon",
    "pytorch_optimizer.GSAM": "needs a scheduler of rho, made from a scheduler of the learning rate",
    "pytorch_optimizer.PCGrad": "works on several losses (pc_backward), and a training here has one",
    "pytorch_optimizer.SafeFP16Optimizer": "is for models in half precision, with its own scaled backward",
    "torchao.optim.CPUOffloadOptimizer": "only on CUDA and XPU: it keeps gradients and states in pinned host memory",
}


def optimizer_names(only: str = "") -> tuple[list[str], dict[str, str]]:
    """Every name, and those left out with the reason; of one package where it is given."""
    names = [NO_OPTIMIZER, *TORCH_NAMES] if only in ("", "torch") else [NO_OPTIMIZER]
    left_out: dict[str, str] = {}
    for package, module_name in MODULES.items():
        if only not in ("", package):
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                module = importlib.import_module(module_name)
        except ImportError as error:
            left_out[f"{package} (all of it)"] = f"cannot be imported here: {error}"
            continue
        for name in _classes_in(module):
            full = f"{module_name}.{name}"
            if full in LEFT_OUT:
                left_out[full] = LEFT_OUT[full]
            else:
                names += WRITTEN.get(full, (full,))
    return names, left_out


def _classes_in(module: object) -> list[str]:
    return sorted(
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and not name.startswith("_")
        and value is not torch.optim.Optimizer
    )
