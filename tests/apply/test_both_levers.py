"""Both levers together: does the training stay that of the plain model, and is it plain again when both are undone?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

import memfit
from memfit.errors import PlanBroken
from memfit.records.plan import AppliedLever, Plan

WORDS, WIDTH = 500, 128
STEPPING, CHUNKED = AppliedLever(name="step-in-backward"), AppliedLever(name="chunked-loss", module="head")


class Words(nn.Module):
    """A small language model whose logits and whose gradients are about equally large."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(24))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def flat(logits: Any, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.view(-1, WORDS), tokens.view(-1))


def built() -> tuple[Words, torch.Tensor, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Words()
    return model, torch.randint(0, WORDS, (4, 64)), torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def plan_with(*levers: AppliedLever) -> Plan:
    """Everything kept, with these levers pulled."""
    model, tokens, optimizer = built()
    with memfit.fit_to_budget(model, (tokens, tokens), flat, optimizer, budget="1GiB") as fitted:
        return msgspec.structs.replace(fitted.plan, applied_levers=levers)


def trained(
    model: nn.Module, tokens: torch.Tensor, optimizer: torch.optim.Optimizer, num_steps: int = 3
) -> list[float]:
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad(set_to_none=True)
        loss = flat(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:memfit")
def test_both_levers_together_train_as_the_plain_model_does_and_undone_leave_it():
    plain, both = built(), built()
    expected = trained(*plain)
    applied = memfit.apply_plan(both[0], plan_with(STEPPING, CHUNKED), optimizer=both[2])
    assert trained(*both) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(PlanBroken, match="the step was taken in the backward already"):
        _ = both[0].head.weight.grad
    for mine, theirs in zip(both[0].parameters(), plain[0].parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=0.0, atol=1e-5)
    applied.undo()
    assert trained(*both, num_steps=1) == pytest.approx(trained(*plain, num_steps=1), rel=1e-4)
    assert all(p.grad is not None for p in both[0].parameters())
