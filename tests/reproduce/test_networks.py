"""Are the networks of the comparison the published ones, and do they train?"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from memfit.job.training import loss_of, plain_step  # noqa: E402
from memfit.job.workloads.registry import WORKLOADS, build_workload  # noqa: E402
from memfit.reproduce.offloading import OTHERS, STANDARD, examples_in, networks_called  # noqa: E402


@pytest.mark.parametrize(
    ("name", "num_parameters"), [("densenet121", 7_978_856), ("vgg16", 138_357_544), ("resnet50", 25_557_032)]
)
def test_a_network_has_as_many_parameters_as_published(name: str, num_parameters: int):
    with torch.device("meta"):
        training = build_workload(name, {"batch_size": 1, "device": "meta"})
    assert sum(parameter.numel() for parameter in training.model.parameters()) == num_parameters


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("densenet121", {"batch_size": 2, "size": 32, "growth": 4, "classes": 4, "lr": 0.02}),
        ("vgg16", {"batch_size": 2, "size": 32, "width": 16, "classes": 4, "dropout": 0.0, "lr": 0.02}),
    ],
)
def test_the_loss_falls_and_every_parameter_is_reached(name: str, settings: dict[str, object]):
    torch.manual_seed(0)
    training = build_workload(name, settings)
    loss = loss_of(training)
    loss.backward()
    unreached = [key for key, p in training.model.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []
    for _ in range(3):
        plain_step(training)()
    assert loss_of(training).item() < loss.item()


def test_every_standard_network_is_a_workload_with_a_batch():
    for name, settings in {**STANDARD, **OTHERS}.items():
        assert name in WORKLOADS
        assert examples_in(settings) >= 8
    assert networks_called([]) == STANDARD
    assert list(networks_called(["vgg16", "gpt"])) == ["vgg16", "gpt"]
