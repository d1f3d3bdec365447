"""Names of the built-in trainings; each is built by a small file in plain torch, or in scikit-learn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

WORKLOADS: dict[str, tuple[str, str]] = {
    "mlp": ("mlp", "fully connected layers"),
    "cnn": ("cnn", "convolutions with batch normalisation"),
    "resnet18": ("vision", "ResNet-18 on images"),
    "resnet50": ("vision", "ResNet-50 on images"),
    "densenet121": ("vision", "DenseNet-121 on images"),
    "vgg16": ("vision", "VGG-16 on images"),
    "lstm": ("lstm", "a language model with two LSTM layers"),
    "gan": ("gan", "a generator and a discriminator with an optimizer each"),
    "gpt": ("gpt", "a decoder-only transformer"),
    "distilbert": ("distilbert", "question answering with DistilBERT; needs transformers"),
    "forest": ("sklearn_estimators", "a random forest; needs scikit-learn"),
    "boosting": ("sklearn_estimators", "gradient-boosted trees; needs scikit-learn"),
    "linear": ("sklearn_estimators", "logistic regression by gradient descent; needs scikit-learn"),
    "svm": ("sklearn_estimators", "a support vector machine; needs scikit-learn"),
}
"""Name: (file that builds it, what it is)."""


def import_workload(name: str) -> None:
    """Load what a workload needs, before many copies of this process build it."""
    module = import_module(f"memfit.job.workloads.{WORKLOADS[name][0]}")
    for needed in getattr(module, "IMPORTS", ()):
        with contextlib.suppress(ImportError):
            import_module(needed)


def build_workload(name: str, settings: Mapping[str, object]) -> Any:
    """Build one built-in workload with these settings."""
    module = import_module(f"memfit.job.workloads.{WORKLOADS[name][0]}")
    return getattr(module, f"build_{name}")(**settings)


def workload_function(name: str) -> Callable[..., object]:
    """The function that builds it, for its signature."""
    return getattr(import_module(f"memfit.job.workloads.{WORKLOADS[name][0]}"), f"build_{name}")


def recipe_settings(function: Callable[..., object]) -> list[str]:
    """The settings that a built-in workload hands on to the making of its training; none for any other function."""
    if not getattr(function, "__module__", "").startswith("memfit.job.workloads."):
        return []
    if not any(p.kind is p.VAR_KEYWORD for p in signature(function).parameters.values()):
        return []
    make = import_module("memfit.job.workloads.build").make_training
    return [name for name, p in signature(make).parameters.items() if p.kind is p.KEYWORD_ONLY]
