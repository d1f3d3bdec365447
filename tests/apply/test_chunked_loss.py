"""In chunks, are loss and gradients those of the whole logits, and are all logits never there?"""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_fit_models import left_over_bytes

import memfit
from memfit.api import fitting_loop
from memfit.apply.chunked_loss import ChunkedCrossEntropy, ChunkedLoss, Deferred, LossOptions
from memfit.errors import DoesNotFit, PlanBroken
from memfit.profile.meter.meter import record_events

WORDS, WIDTH = 50, 12
ALLOWED: dict[str, Any] = {"allow": ["chunked-loss"]}

Case = tuple[bool, bool, float, int, bool]
CASES = list(itertools.product([False, True], [False, True], [0.0, 0.1], [-100, 3], [False, True]))


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_the_whole_logits(case: Case):
    """In double precision, so that another order of sums shows as little as it can."""
    is_mean, has_weights, smoothing, ignored, has_bias = case
    torch.manual_seed(0)
    hidden, weight = torch.randn(37, WIDTH).double(), torch.randn(WORDS, WIDTH).double()
    bias = torch.randn(WORDS).double() if has_bias else None
    classes = torch.rand(WORDS).double() if has_weights else None
    target = torch.randint(0, WORDS, (37,))
    target[::5] = ignored
    leaves = [each.requires_grad_() for each in (hidden, weight, bias) if each is not None]
    reduction = "mean" if is_mean else "sum"
    plain = functional.cross_entropy(
        functional.linear(hidden, weight, bias), target, classes, ignore_index=ignored, reduction=reduction,
        label_smoothing=smoothing,
    )  # fmt: skip
    options = LossOptions(ignored, smoothing, is_mean, 8, torch.float64)
    chunked: Any = ChunkedCrossEntropy.apply(hidden, weight, bias, target, classes, options)
    assert torch.allclose(plain, chunked, rtol=1e-13, atol=0.0)
    expected, found = (torch.autograd.grad(loss * 3.0, leaves) for loss in (plain, chunked))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=0.0, atol=1e-13 * float(theirs.abs().max()))


class Words(nn.Module):
    """A small language model with the head at the end."""

    def __init__(self, words: int = WORDS, width: int = WIDTH, num_blocks: int = 2, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(num_blocks))
        self.head = nn.Linear(width, words, bias=not tied)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def words(**options: Any) -> tuple[Words, torch.Tensor]:
    torch.manual_seed(0)
    return Words(**options), torch.randint(0, options.get("words", WORDS), (4, 24))


def flat(logits: Any, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), tokens.view(-1))


WAYS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "flat": flat,
    "shifted": lambda logits, t: flat(logits[..., :-1, :].contiguous(), t[..., 1:].contiguous()),
    "shifted by two places": lambda logits, t: flat(logits[:, :-1].reshape(-1, WORDS), t[:, 1:].flatten()),
    "as float32": lambda logits, t: nn.CrossEntropyLoss(label_smoothing=0.1)(logits.float().flatten(0, 1), t.flatten()),
    "added up": lambda logits, t: functional.cross_entropy(logits.to(torch.float32).reshape(-1, WORDS), t.flatten(),
                                                           reduction="sum"),
}  # fmt: skip
OTHER_WAYS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "classes second": lambda logits, t: functional.cross_entropy(logits.transpose(1, 2), t),
    "not reduced": lambda logits, t: functional.cross_entropy(
        logits.flatten(0, 1), t.flatten(), reduction="none"
    ).mean(),
    "scaled": lambda logits, t: flat(logits / 0.7, t),
    "capped": lambda logits, t: flat(30.0 * torch.tanh(logits / 30.0), t),
    "probabilities": lambda logits, t: functional.cross_entropy(
        logits.flatten(0, 1), functional.one_hot(t.flatten(), WORDS).float()
    ),
    "two readers": lambda logits, t: flat(logits, t) + 1e-4 * torch.logsumexp(logits, -1).square().mean(),
    "some classes": lambda logits, t: flat(logits[..., : WORDS - 1], t.clamp(max=WORDS - 2)),
    "one row": lambda logits, t: functional.cross_entropy(logits[:, -1], t[:, -1]),
}


def gradients(model: nn.Module, tokens: torch.Tensor, way: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    loss = way(model(tokens), tokens)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tied", [False, True])
def test_on_its_way_to_the_loss_nobody_computes_all_logits(way: str, tied: bool):
    model, tokens = words(tied=tied)
    plain, chunked = gradients(model, tokens, WAYS[way]), ChunkedLoss(model.head, "head")
    chunked.start()
    found = gradients(model, tokens, WAYS[way])
    assert (chunked.num_chunked, chunked.num_whole) == (1, 0)
    largest = max(float(each.abs().max()) for each in plain[1:])
    assert all(torch.allclose(a, b, rtol=0.0, atol=1e-5 * largest) for a, b in zip(found, plain, strict=True))
    chunked.undo()
    assert "_compiled_call_impl" not in model.head.__dict__
    assert all(torch.equal(a, b) for a, b in zip(gradients(model, tokens, WAYS[way]), plain, strict=True))


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_whatever_else_reads_logits_gets_them_to_the_bit(way: str):
    model, tokens = words()
    plain, chunked = gradients(model, tokens, OTHER_WAYS[way]), ChunkedLoss(model.head, "head", is_tried=True)
    chunked.start()
    found = gradients(model, tokens, OTHER_WAYS[way])
    assert chunked.num_whole == 1
    if not chunked.num_chunked:
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, plain, strict=True))


def test_logits_that_are_read_afterwards_are_right_or_refused():
    model, tokens = words()
    expected = model(tokens).detach()
    chunked = ChunkedLoss(model.head, "head")
    chunked.start()
    logits, later = model(tokens), model(tokens)
    assert isinstance(logits, Deferred)
    flat(logits, tokens).backward()
    with pytest.warns(RuntimeWarning, match="computed as a whole"):
        assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert torch.equal(pickle.loads(pickle.dumps(logits)), expected)
    assert torch.equal(copy.deepcopy(logits.detach()), expected)
    assert logits.shape == expected.shape
    assert logits.__len__() == 4  # pyright: ignore
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(PlanBroken, match="weights of their layer had changed"):
        later.argmax(-1)
    model.eval()
    assert isinstance(model(tokens), torch.Tensor)
    model.train()
    with torch.no_grad():
        assert isinstance(model(tokens), torch.Tensor)


# ---- fitted ----------------------------------------------------------------------------------------------------------


LARGE: dict[str, Any] = {"words": 2000, "width": 32, "num_blocks": 4}


def named_smallest(model: nn.Module, tokens: torch.Tensor, optimizer: Any, **options: Any) -> int:
    with pytest.raises(DoesNotFit) as refused:
        memfit.fit_to_budget(model, (tokens, tokens), flat, optimizer, budget="1.2MiB", **options)
    assert refused.value.needed_bytes is not None
    return refused.value.needed_bytes


def test_where_logits_are_the_peak_a_smaller_budget_holds_and_the_proof_says_that_it_is_not_bit_equal():
    model, tokens = words(**LARGE)
    tokens = tokens.repeat(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain, before = gradients(model, tokens, flat), copy.deepcopy(model.state_dict())
    model.zero_grad()
    without, budget = named_smallest(model, tokens, optimizer), named_smallest(model, tokens, optimizer, **ALLOWED)
    assert budget < 0.4 * without
    fitted = memfit.fit_to_budget(model, (tokens, tokens), flat, optimizer, budget=budget, **ALLOWED)
    assert [(lever.name, lever.module) for lever in fitted.plan.applied_levers] == [("chunked-loss", "head")]
    proof = fitted.fit.proof
    assert proof is not None
    assert proof.same
    if proof.within_tolerance:
        assert "chunks" in proof.inexact_because
        assert proof.largest_share is None or proof.largest_share < 1e-5
    gc.collect()
    record = record_events(lambda: flat(model(tokens), tokens).backward(), torch.device("cpu"))
    assert sum(p.nbytes for p in model.parameters()) + tokens.nbytes + record.peak_bytes <= budget
    fitted.undo()
    model.zero_grad()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(gradients(model, tokens, flat), plain, strict=True))


def test_a_loss_that_is_computed_from_all_logits_is_refused_with_the_reason():
    model, tokens = words(**LARGE)

    def capped(logits: Any, targets: torch.Tensor) -> torch.Tensor:
        return flat(torch.tanh(logits), targets)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DoesNotFit, match="more than a cross entropy reads what head returns"):
        memfit.fit_to_budget(model, (tokens, tokens), capped, optimizer, budget="1.2MiB", **ALLOWED)
    assert "_compiled_call_impl" not in model.head.__dict__


@pytest.mark.slow
def test_a_loop_computes_its_loss_outside_of_the_model_in_chunks():
    def run() -> list[float]:
        model, tokens = words(**LARGE)
        tokens = tokens.repeat(4, 4)
        optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
        for _ in range(6):
            optimizer.zero_grad()
            loss = flat(model(tokens), tokens)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    plain = run()
    fitter = fitting_loop(int(3.45 * 2**20) + left_over_bytes(), measure_every=1, **ALLOWED)
    fitter.start()
    try:
        found = run()
    finally:
        record = fitter.stop()
    assert [lever.name for lever in record.fits[-1].plan.applied_levers] == ["chunked-loss"]
    assert record.within_budget
    assert found == pytest.approx(plain, rel=1e-5)
