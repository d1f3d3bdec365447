"""Do the stages of a cut model compute what the model computes, and is what cannot be cut refused by name?"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memfit.apply.pipeline.cut import StageModule, find_stages, release_foreign  # noqa: E402
from memfit.apply.pipeline.rank import checked_batch, own_optimizer  # noqa: E402
from memfit.errors import UsageError  # noqa: E402

WORDS, LENGTH, WIDTH = 20, 4, 8


class Net(nn.Module):
    """Embeddings with a parameter of the whole model, blocks with batch normalisation, code between them, a head."""

    def __init__(self, *, tied: bool = False, skip: bool = False, late: bool = False) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(LENGTH)) for _ in range(4)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.skip, self.late = skip, late
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: Any) -> Any:
        x = self.embed(words) + self.places
        first = x
        for block in self.blocks:
            x = (block(x) * 2).relu()
        x = x + first if self.skip else x
        x = x + self.places if self.late else x
        return self.head(x)


def batch() -> Any:
    return torch.randint(0, WORDS, (6, LENGTH))


@pytest.mark.parametrize("starts", [["blocks.2"], ["blocks.0", "blocks.1", "blocks.3"], ["blocks.1", "head"]])
def test_stages_one_after_another_give_the_gradients_of_the_model(starts: list[str]):
    torch.manual_seed(0)
    model, words = Net(), batch()
    parts = find_stages(model, starts, words)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = model(words)
    expected.square().sum().backward()
    gradients = {name: each.grad for name, each in model.named_parameters()}
    counted = {name: each.clone() for name, each in model.named_buffers()}
    model.load_state_dict(state)
    model.zero_grad()
    sent: list[Any] = []
    x = words
    for index in range(parts.num_stages):
        given = x.detach().requires_grad_(x.is_floating_point())
        x = StageModule(model, parts, index)(given)
        sent.append((given, x))
    assert torch.equal(x, expected)
    x.square().sum().backward()
    for (given, _), (_, result) in zip(sent[:0:-1], sent[-2::-1], strict=True):
        result.backward(given.grad)
    assert all(torch.equal(gradients[name], each.grad) for name, each in model.named_parameters())
    assert all(torch.equal(counted[name], each) for name, each in model.named_buffers())  # no batch is counted twice


def test_looking_for_the_stages_changes_nothing():
    model = Net()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    find_stages(model, ["blocks.2"], batch())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_rank_holds_the_tensors_of_its_own_stages_alone():
    model = Net()
    parts = find_stages(model, ["blocks.2"], batch())
    release_foreign(model, parts, [1])
    held = {name for name, each in model.named_parameters() if each.device.type != "meta"}
    assert held == {name for name in parts.parameters[1] if "running" not in name and "num_batches" not in name}
    assert "embed.weight" not in held
    assert {name for name, _ in StageModule(model, parts, 1).named_parameters()} == {n.replace(".", "/") for n in held}


@pytest.mark.parametrize(
    ("habit", "words"),
    [
        ({"tied": True}, "embed.weight and head.weight are one tensor"),
        ({"skip": True}, r"read in the model by aten.add.Tensor at test_pipeline_cut.py:\d+"),
        ({"late": True}, "more than one stage reads these tensors: places"),
    ],
)
def test_what_crosses_a_cut_is_refused_by_name(habit: dict[str, bool], words: str):
    with pytest.raises(UsageError, match=words):
        find_stages(Net(**habit), ["blocks.2"], batch())


def test_a_cut_in_another_order_or_at_no_module_is_refused():
    with pytest.raises(UsageError, match="one after another"):
        find_stages(Net(), ["blocks.2", "blocks.1"], batch())
    with pytest.raises(UsageError, match=r"no module blocks\.9"):
        find_stages(Net(), ["blocks.9"], batch())


class Asking(nn.Module):
    """Reads a value in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x) * x.sum().item())


def test_a_forward_that_asks_for_values_is_refused_with_its_line():
    with pytest.raises(UsageError, match=r"asks for values at test_pipeline_cut.py:\d+"):
        find_stages(Asking(), ["second"], torch.zeros(1, 2))


@pytest.mark.parametrize("targets", [torch.zeros(7, 2), torch.zeros(())])
def test_targets_that_do_not_divide_are_refused(targets: Any):
    with pytest.raises(UsageError, match="cannot be divided among 4 micro-batches"):
        checked_batch((torch.zeros(8, 2), targets), 4)


def test_a_batch_is_cut_into_whole_micro_batches_and_optimizers_keep_their_settings():
    with pytest.raises(UsageError, match="18 is no multiple of 4"):
        checked_batch((torch.zeros(18, 1), torch.zeros(18)), 4)
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    whole = torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": [second]}], lr=0.1, momentum=0.9)
    own = own_optimizer(whole, {first})
    assert own is not None
    assert [(group["params"], group["lr"], group["momentum"]) for group in own.param_groups] == [([first], 0.5, 0.9)]
