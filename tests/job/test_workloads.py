"""Do the built-in workloads train for real, and refuse what they do not know?"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.errors import UsageError  # noqa: E402
from memfit.job.training import loss_of, plain_step  # noqa: E402
from memfit.job.workloads.registry import build_workload  # noqa: E402
from memfit.testing.contracts.workload import Build, WorkloadContract  # noqa: E402

TINY: dict[str, dict[str, Any]] = {
    "mlp": {"batch_size": 8, "features": 12, "hidden": 16, "layers": 3, "classes": 4},
    "cnn": {"batch_size": 4, "size": 8, "width": 4, "classes": 4},
    "resnet18": {"batch_size": 2, "size": 32, "classes": 4},
    "lstm": {"batch_size": 2, "length": 6, "words": 20, "width": 8},
    "gan": {"batch_size": 2, "width": 4},
    "gpt": {"batch_size": 2, "length": 8, "words": 20, "width": 16, "heads": 2, "layers": 2},
}


@pytest.mark.parametrize("name", ["mlp", "lstm", "gpt"])
def test_the_loss_falls_when_a_workload_is_trained(name: str):
    torch.manual_seed(0)
    training = build_workload(name, TINY[name])
    before = loss_of(training).item()
    for _ in range(20):
        plain_step(training)()
    assert loss_of(training).item() < before


@pytest.mark.parametrize("name", list(TINY))
class TestEveryWorkload(WorkloadContract):
    @pytest.fixture
    def build(self, name: str) -> Build:
        return lambda: build_workload(name, TINY[name])


def test_checkpointed_gradients_are_the_plain_ones():
    gradients = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        training = build_workload("gpt", {**TINY["gpt"], "checkpoint": checkpoint})
        loss_of(training).backward()
        gradients.append([p.grad.clone() for p in training.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"optimizer": "adamv"}, "no optimizer 'adamv'"),
        ({"optimizer": "adam-quick"}, "cannot be 'quick'"),
        ({"precision": "int4"}, "no precision 'int4'"),
    ],
)
def test_unknown_choices_are_refused(settings: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        build_workload("mlp", {**TINY["mlp"], **settings})
