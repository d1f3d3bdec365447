"""Optimizers made by name: torch's own with their variants, any class by import path or file, wrapped or joined.

Two optimizers on one model, no optimizer at all, and which parameters are matrices of hidden layers.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
from torch.optim.optimizer import ParamsT

from memfit.errors import MemfitError, MissingExtra, UsageError
from memfit.job.python_file import load_file
from memfit.job.recipes.optimizer_names import NO_OPTIMIZER, TORCH_CLASSES, OptimizerSpec, parse_optimizer

Parameters = torch.nn.Module | Iterable[torch.Tensor] | Iterable[dict[str, Any]]
PIP_NAMES = {"pytorch_optimizer": "pytorch-optimizer"}
MUON_FAMILY = {"AdaGO", "AdaMuon", "DistributedMuon", "Muon", "MuonClip", "NorMuon"}
"""Classes of pytorch_optimizer 4.1 whose groups say `use_muon`."""
PROJECTION = {"update_proj_gap": 200, "scale": 1.0, "projection_type": "std", "scale_type": "tensor"}
"""What a group with a rank must say as well (GaLore, APOLLO, Fira)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What is optimized."""

    model: torch.nn.Module | None
    groups: list[Any]
    """Parameters, or dictionaries of them."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every parameter, groups opened."""
        return [tensor for group in self.groups for tensor in (group["params"] if isinstance(group, dict) else [group])]


def make_optimizer(name: str, parameters: Parameters, lr: float = 1e-3) -> torch.optim.Optimizer:
    """An optimizer by name: 'adamw-fused', 'muon+adamw', 'pytorch_optimizer.Lion', 'opt.py:Mine(beta=0.9)'.

    `parameters` is a model, or parameters as torch's optimizers take them. Some optimizers need the model itself.
    """
    spec = parse_optimizer(name)
    if isinstance(parameters, torch.nn.Module):
        given = _Given(model=parameters, groups=[p for p in parameters.parameters() if p.requires_grad])
    else:
        given = _Given(model=None, groups=[dict(p) if isinstance(p, dict) else p for p in parameters])
    return _make(spec, given, lr)


def _make(spec: OptimizerSpec, given: _Given, lr: float) -> torch.optim.Optimizer:
    if spec.rest is None:
        return _make_one(spec, given, lr)
    taken = {id(tensor) for tensor in _first_share(spec, given)}
    shares = [[t for t in given.tensors if (id(t) in taken) is mine] for mine in (True, False)]
    if not all(shares):
        found = f"{len(shares[0])} parameters for {spec.base}, {len(shares[1])} for {spec.rest}"
        raise UsageError(f"{spec} needs parameters of both kinds", found=found, hint=f"{spec.rest} alone")
    made = [
        _make_one(part, _Given(model=given.model, groups=share), lr)
        for part, share in zip((spec, spec.rest), shares, strict=True)
    ]
    return JoinedOptimizers(made)


def _first_share(spec: OptimizerSpec, given: _Given) -> list[torch.Tensor]:
    """What the first of two joined optimizers takes: sparse embeddings, or matrices of hidden layers."""
    if spec.base == "sparseadam":
        return sparse_weights(given.model)
    return hidden_matrices(given.tensors, given.model)


def _make_one(spec: OptimizerSpec, given: _Given, lr: float) -> torch.optim.Optimizer:
    if spec.base == NO_OPTIMIZER:
        return NoUpdate(given.groups)
    _check_kinds(spec, given)
    make = optimizer_class(spec)
    arguments = _first_arguments(spec, make, given, lr)
    options = _checked_options(spec, make, lr)
    try:
        made = make(*arguments, **options)
    except ImportError as error:
        hint = f"pip install --no-deps {getattr(error, 'name', None) or 'the package it names'}"
        raise MissingExtra(f"{spec.base} needs a package that is not here", found=str(error), hint=hint) from error
    except MemfitError:
        raise
    except Exception as error:
        raise why_refused(str(spec), error) from error
    if not callable(getattr(made, "step", None)) or not callable(getattr(made, "zero_grad", None)):
        raise UsageError(f"{spec.base} did not make an optimizer", found=type(made).__name__, hint="a class to import")
    train = getattr(made, "train", None)
    if callable(train):
        train()  # schedule-free ones hold other weights while they train
    return made


def _check_kinds(spec: OptimizerSpec, given: _Given) -> None:
    """Refuse what the optimizer would refuse only in its first step."""
    if spec.base == "sparseadam" and given.model is not None:
        dense = len(given.tensors) - len({id(t) for t in sparse_weights(given.model)} & {id(t) for t in given.tensors})
        if dense:
            hint = "sparseadam+adamw: embeddings with sparse=True to the first, the rest to the second"
            raise UsageError("SparseAdam takes sparse gradients only", found=f"{dense} dense parameters", hint=hint)
    if spec.base in ("muon", "adafactor") and any(tensor.is_complex() for tensor in given.tensors):
        raise why_refused(spec.base, TypeError("complex parameters"))


# ---- classes ---------------------------------------------------------------------------------------------------------


def optimizer_class(spec: OptimizerSpec) -> Callable[..., torch.optim.Optimizer]:
    """The class (or function) that a name means; imports its package."""
    path, colon, name = spec.base.rpartition(":")
    if colon:
        return _found_in(load_file(path), name, path)
    if spec.base in TORCH_CLASSES:
        name = TORCH_CLASSES[spec.base]
        if not hasattr(torch.optim, name):
            raise UsageError(f"torch {torch.__version__} has no {name}", hint="a newer torch, or another optimizer")
        return getattr(torch.optim, name)
    module_name, dot, name = spec.base.rpartition(".")
    if not dot:
        near = difflib.get_close_matches(spec.base, TORCH_CLASSES, n=1)
        hint = (f"did you mean {near[0]!r}? " if near else "") + f"one of {', '.join(TORCH_CLASSES)}, or package.Class"
        raise UsageError(f"there is no optimizer {spec.base!r}", hint=hint)
    return _found_in(_imported(module_name), name, module_name)


def _imported(module_name: str) -> ModuleType:
    package = module_name.partition(".")[0]
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == package:
            hint = f"pip install --no-deps {PIP_NAMES.get(package, package)} (keeps the torch that is here)"
            raise MissingExtra(f"{package} is not installed", found="no such package", hint=hint) from error
        if error.name and module_name.startswith(error.name):
            hint = "package.module.Class"
            raise UsageError(f"{package} has no module {error.name!r}", found=module_name, hint=hint) from error
        hint = f"pip install --no-deps {error.name}"
        raise MissingExtra(f"{package} needs a package that is not here", found=str(error), hint=hint) from error
    except ImportError as error:
        hint = f"a version of {package} for torch {torch.__version__}"
        raise MissingExtra(f"{package} cannot be imported", found=str(error), hint=hint) from error


def _found_in(module: ModuleType, name: str, where: str) -> Callable[..., torch.optim.Optimizer]:
    found = getattr(module, name, None)
    if inspect.isclass(found) and not hasattr(found, "step"):
        raise UsageError(f"{where}.{name} is no optimizer", found="a class without step", hint="another class")
    if callable(found):
        return cast("Callable[..., torch.optim.Optimizer]", found)
    names = [known for known, value in vars(module).items() if inspect.isclass(value) and hasattr(value, "step")]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(names)[:12]) or 'no optimizers'}"
    raise UsageError(f"{where} has no optimizer {name!r}", found=f"{len(names)} optimizers", hint=hint)


# ---- arguments -------------------------------------------------------------------------------------------------------


def _first_arguments(spec: OptimizerSpec, make: Callable[..., object], given: _Given, lr: float) -> list[object]:
    """Parameters, model or wrapped optimizer, in the order in which the class asks for them."""
    inner = spec.inner or OptimizerSpec(base="adamw")
    found: list[object] = []
    asked = [p.name for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    for name in asked:
        if name == "model":
            found.append(_model_of(spec, given))
        elif name == "optimizer":
            found.append(_make(inner, given, lr))
        elif name == "base_optimizer":
            found.append(optimizer_class(inner))
        elif name == "params" or (name not in ("args", "kwargs") and not found):
            found.append(_groups(spec, make, given))
    if spec.inner is not None and not {"optimizer", "base_optimizer"} & set(asked):
        raise UsageError(f"{spec.base} wraps no optimizer", found=str(spec.inner), hint=f"{spec.base} without it")
    return found


def _model_of(spec: OptimizerSpec, given: _Given) -> torch.nn.Module:
    if given.model is None:
        hint = "give make_optimizer the model instead of model.parameters()"
        raise UsageError(f"{spec.base} needs the model itself", found="parameters alone", hint=hint)
    return given.model


def _groups(spec: OptimizerSpec, make: Callable[..., object], given: _Given) -> Sequence[object]:
    """The parameters, in groups where the optimizer tells matrices of hidden layers from the rest."""
    if spec.package == "pytorch_optimizer" and getattr(make, "__name__", "") in MUON_FAMILY:
        matrices = hidden_matrices(given.tensors, given.model)
        return _two_groups(given, matrices, {"use_muon": True}, {"use_muon": False})
    if "rank" in _projection(spec, make):
        matrices = [tensor for tensor in given.tensors if tensor.ndim == 2]
        return _two_groups(given, matrices, {**PROJECTION, **_projection(spec, make)}, {})
    return given.groups


def _two_groups(
    given: _Given, first: list[torch.Tensor], options: Mapping[str, object], others: Mapping[str, object]
) -> list[dict[str, object]]:
    taken = {id(tensor) for tensor in first}
    rest = [tensor for tensor in given.tensors if id(tensor) not in taken]
    return [group for group in ({"params": first, **options}, {"params": rest, **others}) if group["params"]]


def _projection(spec: OptimizerSpec, make: Callable[..., object]) -> Mapping[str, object]:
    """Options that belong to the group of matrices, since the class itself does not know them."""
    known = inspect.signature(make).parameters
    return {name: v for name, v in spec.options.items() if name in {"rank", *PROJECTION} and name not in known}


def _checked_options(spec: OptimizerSpec, make: Callable[..., object], lr: float) -> Mapping[str, object]:
    """The keyword arguments; what the class does not know is refused, also where it would be ignored silently."""
    known = inspect.signature(make).parameters
    options = {name: v for name, v in spec.all_options.items() if name not in _projection(spec, make)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    is_base = "base_optimizer" in known  # the rest of the options is for the optimizer inside
    if is_base and takes_all:
        options = {"lr": lr, **(spec.inner.all_options if spec.inner else {}), **options}
    elif "lr" in known:
        options = {"lr": lr, **options}
    ignores = spec.package == "pytorch_optimizer" and not is_base
    for name in options:
        if name not in known and (not takes_all or ignores):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(list(known)[1:])}"
            raise UsageError(f"{spec.base} has no option {name!r}", found=str(spec), hint=hint)
    missing = [
        p.name
        for p in list(known.values())[1:]
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        and p.name not in {*options, "params", "model", "optimizer", "base_optimizer"}
    ]  # fmt: skip
    if missing:
        hint = f"{spec.base}({', '.join(name + '=...' for name in missing)})"
        raise UsageError(f"{spec.base} needs more options", found=f"no {', '.join(missing)}", hint=hint)
    return options


def why_refused(name: str, error: BaseException) -> UsageError:
    """An optimizer's own error, while it was made or in a step, with what to try."""
    text = str(error).strip() or type(error).__name__
    lowered = text.lower()
    if "2d param" in lowered or "2-d param" in lowered:
        hint = f"{name}+adamw: matrices of hidden layers to the first, the rest to AdamW"
    elif "complex" in lowered:
        hint = "an optimizer that takes complex parameters, such as adamw"
    elif "sparse" in lowered or "dense" in lowered:
        hint = "sparseadam+adamw where embeddings have sparse=True, or sparse=False"
    elif "fused" in lowered or "foreach" in lowered:
        hint = "the same without -fused or -foreach"
    else:
        hint = "another optimizer, or other options in parentheses"
    return UsageError(f"{name} refuses these parameters", found=text.splitlines()[0], hint=hint)


class JoinedOptimizers(torch.optim.Optimizer):
    """Several optimizers, each with its own parameters, stepped one after the other."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], object] | None = None) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of each; the loss is computed once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, object]:
        """The states of the parts, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, list[dict[str, object]]]) -> None:
        """Give each part its state back."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


class NoUpdate(torch.optim.Optimizer):
    """Leaves the parameters as they are: a training without the memory of an optimizer."""

    def __init__(self, parameters: ParamsT) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], object] | None = None) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the loss where it is asked to, and changes nothing."""
        return None if closure is None else closure()


def hidden_matrices(tensors: Sequence[torch.Tensor], model: torch.nn.Module | None) -> list[torch.Tensor]:
    """Two-dimensional weights that Muon is meant for: neither an embedding nor, below a model, its last matrix."""
    matrices = [tensor for tensor in tensors if tensor.ndim == 2]
    if model is None:
        return matrices
    tables = [m.weight for m in model.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag))]
    others = {id(weight) for weight in tables}
    layers = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    others |= {id(weight) for weight in layers[-1:]}
    return [tensor for tensor in matrices if id(tensor) not in others]


def sparse_weights(model: torch.nn.Module | None) -> list[torch.Tensor]:
    """Weights of embeddings whose gradients are sparse."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = [] if model is None else model.modules()
    return [module.weight for module in modules if isinstance(module, kinds) and module.sparse]
