"""Trainings that are no neural networks: scikit-learn estimators on images, one round at a time.

Examples are held as float32, as scikit-learn's users do, which is four times the size of the data set on disk; trees
keep copies of their own. What a round is differs: more trees, one pass over the data, or the whole fit.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from memfit.errors import MissingExtra, UsageError
from memfit.job.data.images import load_images
from memfit.job.training import Fitting

NUM_EVALUATED = 2000
_ESTIMATORS = {
    "forest": ("sklearn.ensemble", "RandomForestClassifier"),
    "boosting": ("sklearn.ensemble", "HistGradientBoostingClassifier"),
    "linear": ("sklearn.linear_model", "SGDClassifier"),
    "svm": ("sklearn.svm", "SVC"),
}


def build_forest(
    *,
    trees: int = 100,
    trees_per_round: int = 10,
    max_depth: int | None = None,
    examples: int = 10_000,
    data: str = "mnist",
    jobs: int = 1,
    seed: int = 0,
) -> Fitting:
    """A random forest that grows by some trees per round."""
    _positive(trees=trees, trees_per_round=trees_per_round, examples=examples)
    forest = _make("forest", n_estimators=0, max_depth=max_depth, warm_start=True, n_jobs=jobs, random_state=seed)
    examples_of = _Examples(data, examples)

    def grow() -> None:
        forest.set_params(n_estimators=min(forest.n_estimators + trees_per_round, trees))
        forest.fit(*examples_of.train)

    rounds = -(-trees // trees_per_round)
    return Fitting(
        name="random forest", step=grow, num_rounds=rounds, evaluate=lambda: examples_of.score(forest), data=data
    )


def build_boosting(
    *,
    rounds: int = 10,
    leaves: int = 31,
    lr: float = 0.1,
    examples: int = 10_000,
    data: str = "mnist",
    seed: int = 0,
) -> Fitting:
    """Gradient-boosted trees on binned values, one tree per class and round."""
    _positive(rounds=rounds, leaves=leaves, examples=examples)
    options = {"max_leaf_nodes": leaves, "learning_rate": lr, "early_stopping": False, "warm_start": True}
    model = _make("boosting", max_iter=1, random_state=seed, **options)
    examples_of = _Examples(data, examples)
    num_done = 0

    def boost() -> None:
        nonlocal num_done
        num_done += 1
        model.set_params(max_iter=num_done)
        model.fit(*examples_of.train)

    return Fitting(
        name="gradient boosting", step=boost, num_rounds=rounds, evaluate=lambda: examples_of.score(model), data=data
    )


def build_linear(
    *,
    epochs: int = 5,
    batch_size: int = 1000,
    lr: float = 1e-4,
    examples: int = 10_000,
    data: str = "mnist",
    seed: int = 0,
) -> Fitting:
    """Logistic regression by stochastic gradient descent, one pass over the data per round."""
    _positive(epochs=epochs, batch_size=batch_size, examples=examples)
    model = _make("linear", loss="log_loss", learning_rate="constant", eta0=lr, random_state=seed)
    examples_of = _Examples(data, examples)

    def one_pass() -> None:
        inputs, labels = examples_of.train
        for start in range(0, len(labels), batch_size):
            part = slice(start, start + batch_size)
            model.partial_fit(inputs[part], labels[part], classes=np.arange(10))

    return Fitting(
        name="linear model", step=one_pass, num_rounds=epochs, evaluate=lambda: examples_of.score(model), data=data
    )


def build_svm(
    *,
    c: float = 1.0,
    kernel: str = "rbf",
    cache_mib: float = 200.0,
    examples: int = 2_000,
    data: str = "mnist",
    seed: int = 0,
) -> Fitting:
    """A support vector machine, fitted in one go; its kernel cache is the memory it may take."""
    _positive(c=c, cache_mib=cache_mib, examples=examples)
    model = _make("svm", C=c, kernel=kernel, cache_size=cache_mib, random_state=seed)
    examples_of = _Examples(data, examples)
    return Fitting(
        name="support vector machine",
        step=lambda: model.fit(*examples_of.train) and None,
        evaluate=lambda: examples_of.score(model),
        data=data,
    )


class _Predicts(Protocol):
    def predict(self, inputs: np.ndarray, /) -> np.ndarray: ...


class _Examples:
    """Flat float32 images between 0 and 1, read when first asked for."""

    def __init__(self, data: str, count: int) -> None:
        self._data, self._count = data, count
        self._parts: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None

    def _load(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        if self._parts is None:
            images = load_images(self._data)
            train = _flat(images.train_images[: self._count]), images.train_labels[: self._count].copy()
            test = _flat(images.test_images[:NUM_EVALUATED]), images.test_labels[:NUM_EVALUATED].copy()
            self._parts = train, test
        return self._parts

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels to fit."""
        return self._load()[0]

    def score(self, model: _Predicts) -> dict[str, float]:
        """How many held-out images are named right."""
        inputs, labels = self._load()[1]
        accuracy = float((model.predict(inputs) == labels).mean())
        return {"loss": 1 - accuracy, "accuracy": accuracy}


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise UsageError(f"{name} must be above zero", found=f"{name}={value!r}", hint=f"--set {name}=10")


def _make(kind: str, **options: object) -> Any:
    from importlib import import_module

    module, name = _ESTIMATORS[kind]
    try:
        maker = getattr(import_module(module), name)
    except ImportError:
        hint = "pip install 'memfit[workloads]', or pip install scikit-learn"
        raise MissingExtra(f"the workload {kind} needs scikit-learn", hint=hint) from None
    return maker(**options)
