"""Contract of a workload: subclass it, give it `build`, and pytest runs these laws on your training.

    class TestMyWorkload(WorkloadContract):
        @pytest.fixture
        def build(self):
            return lambda: build_mine(batch_size=2, width=8)

Needs pytest and torch. Take sizes so small that a step takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from memfit.job.training import Training, plain_step

Build = Callable[[], Training]


def built(build: Build) -> Training:
    """The training that a fixed seed gives."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return build()


def parameters_of(training: Training) -> list[Any]:
    """All parameters; none of a training that is only a step, as of two networks in turn."""
    return [] if training.model is None else list(training.model.parameters())


def weights_of(training: Training) -> list[Any]:
    """Copies of all parameters."""
    return [parameter.detach().clone() for parameter in parameters_of(training)]


class WorkloadContract:
    """What every built-in training does, whatever its network."""

    @pytest.fixture
    def build(self) -> Build:
        """A function without arguments that builds a small training."""
        raise NotImplementedError("give your workload in a fixture called `build`")

    def test_a_step_changes_the_weights_and_leaves_no_gradient(self, build: Build):
        training = built(build)
        before = weights_of(training)
        plain_step(training)()
        assert training.model is None or any(
            not old.equal(new) for old, new in zip(before, weights_of(training), strict=True)
        )
        assert all(p.grad is None or not p.grad.any() for p in parameters_of(training))

    def test_the_loss_is_a_finite_number_after_several_steps(self, build: Build):
        training = built(build)
        losses: list[float] = []
        training.on_loss = lambda loss: losses.append(float(loss.detach()))
        step = plain_step(training)
        for _ in range(3):
            step()
        assert losses or training.model is None
        assert all(math.isfinite(loss) for loss in losses)

    def test_the_same_seed_builds_the_same_training(self, build: Build):
        first, again = built(build), built(build)
        assert all(a.equal(b) for a, b in zip(weights_of(first), weights_of(again), strict=True))

    def test_building_leaves_no_gradient_and_names_its_data_only_with_a_feed(self, build: Build):
        training = built(build)
        assert all(parameter.grad is None for parameter in parameters_of(training))
        assert not training.data or training.feed is not None
