"""Is every optimizer made as it was named, and refused with what to try where it cannot be?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from memfit.errors import MissingExtra, UsageError
from memfit.job.recipes.optimizer_names import TORCH_CLASSES
from memfit.job.recipes.torch_optimizers import JoinedOptimizers, hidden_matrices, make_optimizer
from memfit.job.recipes.torch_step import take_step, update_kind
from memfit.job.workloads.registry import build_workload

OWN = """
import torch

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, *, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-group["lr"] * group["scale"])

class NotOne:
    pass

def broken(params):
    return 3
"""


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))


def train(name: str, model: torch.nn.Module, num_steps: int = 3) -> torch.optim.Optimizer:
    optimizer = make_optimizer(name, model)
    for _ in range(num_steps):
        take_step(optimizer, lambda: model(torch.ones(4, 8)).square().mean())
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("name", sorted(TORCH_CLASSES.keys() - {"muon", "sparseadam"}))
def test_every_optimizer_of_torch_trains_by_its_short_name(name: str):
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = train(name, model)
    assert type(optimizer) is getattr(torch.optim, TORCH_CLASSES[name])
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("adam-fused", "fused", True),
        ("adam-foreach", "foreach", True),
        ("adam-forloop", "foreach", False),
        ("sgd-momentum", "momentum", 0.9),
        ("adamw-amsgrad", "amsgrad", True),
        ("rmsprop-centered", "centered", True),
        ("adam(betas=(0.5, 0.6))", "betas", (0.5, 0.6)),
    ],
)
def test_words_and_options_reach_the_optimizer(name: str, option: str, value: object):
    assert make_optimizer(name, network().parameters(), lr=0.25).param_groups[0][option] == value
    assert make_optimizer(name, network().parameters(), lr=0.25).param_groups[0]["lr"] == 0.25


def test_muon_alone_is_refused_and_its_remainder_rule_is_offered():
    with pytest.raises(UsageError, match="muon refuses") as caught:
        make_optimizer("muon", network())
    assert "muon+adamw" in caught.value.hint


def test_joined_optimizers_share_the_parameters_without_rest():
    model = network()
    optimizer = train("muon+adamw", model)
    assert isinstance(optimizer, JoinedOptimizers)
    muon, adamw = optimizer.parts
    shares = [[p for group in part.param_groups for p in group["params"]] for part in (muon, adamw)]
    assert {id(p) for p in shares[0]} == {id(model[0].weight), id(model[1].weight)}  # pyright: ignore[reportIndexIssue]
    assert {id(p) for p in shares[0] + shares[1]} == {id(p) for p in model.parameters()}
    assert len(muon.state) == 2
    assert len(adamw.state) == 4


def test_the_state_of_joined_optimizers_goes_out_and_comes_back():
    model = network()
    optimizer = train("muon+adamw", model)
    fresh = make_optimizer("muon+adamw", model)
    fresh.load_state_dict(optimizer.state_dict())
    assert [part.state_dict()["state"].keys() for part in fresh.parts] == [  # pyright: ignore[reportAttributeAccessIssue]
        part.state_dict()["state"].keys()
        for part in optimizer.parts  # pyright: ignore[reportAttributeAccessIssue]
    ]


def test_neither_embeddings_nor_the_head_are_matrices_of_hidden_layers():
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 9))
    found = hidden_matrices(list(model.parameters()), model)
    assert [id(tensor) for tensor in found] == [id(model[1].weight)]
    assert len(hidden_matrices(list(model.parameters()), None)) == 3


def test_a_model_without_matrices_has_no_use_for_two_optimizers():
    with pytest.raises(UsageError, match="parameters of both kinds"):
        make_optimizer("muon+adamw", torch.nn.LayerNorm(8))


def test_sparse_adam_takes_sparse_embeddings_and_the_rest_goes_elsewhere():
    model = torch.nn.Sequential(torch.nn.Embedding(9, 8, sparse=True), torch.nn.Linear(8, 2))
    with pytest.raises(UsageError, match="sparse gradients only") as caught:
        make_optimizer("sparseadam", model)
    assert "sparseadam+adamw" in caught.value.hint
    optimizer = make_optimizer("sparseadam+adamw", model)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


def test_complex_parameters_are_refused_before_the_first_step():
    with pytest.raises(UsageError, match="refuses these parameters") as caught:
        make_optimizer("adafactor", [torch.zeros(3, 3, dtype=torch.complex64, requires_grad=True)])
    assert "complex" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("adamv", "no optimizer 'adamv'", "did you mean 'adam"),
        ("torch.optim.Adamm", "no optimizer 'Adamm'", "'Adam'"),
        ("torch.optim.nowhere.Adam", "no module", "package.module.Class"),
        ("torch.nn.Linear", "is no optimizer", "another class"),
        ("sgd-amsgrad", "no option 'amsgrad'", "it knows"),
        ("adafactor-fused", "no option 'fused'", "it knows"),
        ("adam(betaz=3)", "no option 'betaz'", "'betas'"),
        ("adam(betas=(2, 3))", "refuses these parameters", "other options"),
        ("adam(sgd)", "wraps no optimizer", "without it"),
    ],
)
def test_what_cannot_be_made_says_what_to_try(name: str, what: str, hint: str):
    with pytest.raises(UsageError, match=what) as caught:
        make_optimizer(name, network())
    assert hint in caught.value.hint


def test_a_package_that_is_not_here_comes_with_the_line_that_installs_it():
    with pytest.raises(MissingExtra, match="no_such_package is not installed") as caught:
        make_optimizer("no_such_package.optim.Adam", network())
    assert caught.value.hint.startswith("pip install --no-deps no_such_package")


def test_a_class_of_a_users_file_trains_with_its_options(tmp_path: Path):
    path = tmp_path / "own-optimizers.py"
    path.write_text(OWN)
    optimizer = train(f"{path}:Plain(scale=0.5)", network())
    assert optimizer.param_groups[0]["scale"] == 0.5
    with pytest.raises(UsageError, match="has no optimizer 'Plane'") as caught:
        make_optimizer(f"{path}:Plane", network())
    assert "'Plain'" in caught.value.hint
    with pytest.raises(UsageError, match="is no optimizer"):
        make_optimizer(f"{path}:NotOne", network())
    with pytest.raises(UsageError, match="did not make an optimizer"):
        make_optimizer(f"{path}:broken", network())


def test_an_optimizer_that_asks_for_the_loss_refuses_accumulation_and_clipping():
    for settings in ({"accumulate": 2}, {"clip": 1.0}):
        with pytest.raises(UsageError, match="inside of its step"):
            build_workload("mlp", {"optimizer": "lbfgs", "batch_size": 2, **settings})
    training = build_workload("mlp", {"optimizer": "lbfgs(max_iter=2)", "batch_size": 2})
    assert update_kind(training.optimizer) == "closure"
    training.step()


# ---- pytorch_optimizer -----------------------------------------------------------------------------------------------


@pytest.fixture
def pytorch_optimizer() -> None:
    pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed: pip install --no-deps")


@pytest.mark.usefixtures("pytorch_optimizer")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pytorch_optimizer.Lion", "plain"),
        ("pytorch_optimizer.Muon", "plain"),
        ("pytorch_optimizer.GaLore(rank=2)", "plain"),
        ("pytorch_optimizer.ScheduleFreeAdamW", "plain"),
        ("pytorch_optimizer.Lookahead(sgd-momentum)", "plain"),
        ("pytorch_optimizer.SAM(sgd-momentum)", "closure after gradients"),
        ("pytorch_optimizer.LOMO", "in backward"),
        ("pytorch_optimizer.AliG", "closure"),
        ("pytorch_optimizer.AdaHessian", "graph"),
    ],
)
def test_optimizers_with_needs_of_their_own_train(name: str, kind: str):
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = train(name, model)
    assert update_kind(optimizer) == kind
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.usefixtures("pytorch_optimizer")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pytorch_optimizer.Ranger21", "needs more options"),
        ("pytorch_optimizer.Lion(betaz=1)", "no option 'betaz'"),
        ("pytorch_optimizer.Loin", "no optimizer 'Loin'"),
    ],
)
def test_what_the_package_would_ignore_or_lack_is_refused(name: str, what: str):
    with pytest.raises(UsageError, match=what):
        make_optimizer(name, network())


@pytest.mark.usefixtures("pytorch_optimizer")
def test_an_optimizer_that_needs_the_model_says_so():
    with pytest.raises(UsageError, match="needs the model itself"):
        make_optimizer("pytorch_optimizer.LOMO", network().parameters())
