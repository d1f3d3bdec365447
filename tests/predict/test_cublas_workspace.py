"""The workspaces of cuBLAS: their size by the environment, and whether they stay, by the release of torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.gpu_rules.cublas import said_of_workspaces, workspace_bytes, workspace_stays

pytest.importorskip("torch")
import torch

import memfit.predict.observe.storage_tracker as torch_tracker
from memfit.predict.observe.phase_and_module import Places
from memfit.testing.engines import on_fake_tensors


@pytest.mark.parametrize(
    ("version", "environment", "stays"),
    [
        ("2.13.0+cpu", {}, True),
        ("2.14.1", {}, True),
        ("2.15.0", {}, False),
        ("3.0.0a0+git1", {}, False),
        ("2.15.0", {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}, True),
        ("2.15.0", {"TORCH_CUBLAS_WORKSPACE_CACHE": "0"}, False),
    ],
)
def test_workspaces_stay_before_2_15_or_where_asked_for(version: str, environment: dict[str, str], stays: bool):
    assert workspace_stays(version, environment) is stays


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("", 7), (":4096:2:16:8", 8_519_680), (":4096:8", 33_554_432), (":16:8", 131_072), ("nonsense", 7)],
)
def test_the_size_is_what_the_variable_says(text: str, num_bytes: int):
    assert workspace_bytes(7, {"CUBLAS_WORKSPACE_CONFIG": text}) == num_bytes


def events_of_two_products(monkeypatch: pytest.MonkeyPatch, version: str) -> list[str]:
    """Births and deaths of two products of fake tensors that claim to be on a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(torch_tracker.torch, "__version__", version)
    tracker = torch_tracker.Tracker(Places(), None, 1000)
    with FakeTensorMode(), tracker:
        x = torch.empty(4, 4, device="cuda")
        kept = [torch.mm(x, x), torch.mm(x, x)]
        found = [
            f"{kind} {tracker.log.births[index].num_bytes}" for kind, index in tracker.log.entries if kind != "phase"
        ]
    assert kept
    return found


def test_a_workspace_is_taken_once_or_by_every_product(monkeypatch: pytest.MonkeyPatch):
    assert events_of_two_products(monkeypatch, "2.14.1") == ["alloc 64", "alloc 64", "alloc 1000", "alloc 64"]
    taken = ["alloc 64", "alloc 1000", "free 1000"]
    assert events_of_two_products(monkeypatch, "2.15.0") == ["alloc 64", *taken, *taken]


def test_the_backward_has_a_workspace_of_its_own(tmp_path: Path):
    text = "import torch\nmodel = torch.nn.Linear(64, 64).cuda()\noptimizer = torch.optim.SGD(model.parameters())\n"
    text += (
        "for _ in range(3):\n    optimizer.zero_grad()\n    model(torch.ones(8, 64, device='cuda')).sum().backward()\n"
    )
    path = tmp_path / "train.py"
    path.write_text(text + "    optimizer.step()\n")
    found = on_fake_tensors(describe_job(str(path), {}, ()), parse_device("cuda:a100-40gb"), with_smallest=False)
    taken = [span.num_bytes for span in found.at_peak.by_operator if span.name == torch_tracker.CUBLAS_WORKSPACE]
    assert taken == [2 * 8_519_680]


def test_what_is_assumed_names_the_other_release():
    assert "2.15" in said_of_workspaces(8_519_680, "2.13.0", {})
    assert "gives it back" in said_of_workspaces(8_519_680, "2.15.0", {})
