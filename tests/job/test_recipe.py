"""Recipes as they are written, and what they do to a training."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from memfit.errors import UsageError
from memfit.job.recipes.recipe import (
    CONTRADICTIONS,
    TECHNIQUES,
    ChosenTechnique,
    Recipe,
    contradiction,
    missing_on,
    parse_techniques,
    techniques_text,
)
from memfit.job.recipes.torch_recipe import checkpoint_blocks, repeated_blocks, with_recipe
from memfit.job.recipes.torch_step import cut_batch
from memfit.job.training import Training, as_training, plain_step


def chosen() -> st.SearchStrategy[ChosenTechnique]:
    def one(name: str) -> st.SearchStrategy[ChosenTechnique]:
        kind = TECHNIQUES[name].number
        if kind == "none":
            return st.just(ChosenTechnique(name=name))
        numbers = st.integers(1, 4096) if kind == "whole" else st.sampled_from([0.5, 1.0, 2.25])
        return numbers.map(lambda value: ChosenTechnique(name=name, value=value))

    return st.sampled_from(sorted(TECHNIQUES)).flatmap(one)


@given(st.lists(chosen(), max_size=4, unique_by=lambda choice: choice.name))
def test_what_is_written_is_read_as_it_was(choices: list[ChosenTechnique]) -> None:
    assert parse_techniques(techniques_text(choices)) == tuple(choices)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert techniques_text(parse_techniques(text))


@pytest.mark.parametrize("text", ["bf61", "batch", "batch=0", "batch=x", "bf16=2", "bf16+bf16", "clip=nan", "", "+"])
def test_a_technique_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_techniques(text)


@given(st.sampled_from(CONTRADICTIONS), st.booleans())
def test_a_contradiction_does_not_depend_on_the_order(pair: tuple[str, str, str], turned: bool) -> None:
    names = pair[:2][::-1] if turned else pair[:2]
    found = contradiction([ChosenTechnique(name=name) for name in names])
    assert pair[2] in found


def test_every_contradiction_names_techniques_that_there_are() -> None:
    assert {name for one, other, _ in CONTRADICTIONS for name in (one, other)} <= set(TECHNIQUES)


def test_what_needs_a_gpu_says_why_on_a_cpu() -> None:
    assert "already" in missing_on(parse_techniques("offload-activations"), "cpu")
    assert missing_on(parse_techniques("offload-activations"), "cuda") == ""


# ---- on a real training: the same losses, or the difference that the technique has -----------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(x))


def small_training() -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Block(), Block(), Block()), nn.Linear(8, 3))
    batch = (torch.randn(6, 4), torch.randint(0, 3, (6,)))
    return Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.functional.cross_entropy,
        batch=batch,
    )


def weights_after(techniques: str, optimizer: str = "", num_steps: int = 3) -> list[torch.Tensor]:
    recipe = Recipe(optimizer=optimizer, techniques=parse_techniques(techniques))
    training = with_recipe(small_training(), recipe, "the job")
    step = plain_step(training)
    for _ in range(num_steps):
        step()
    return [parameter.detach().clone() for parameter in training.model.parameters()]


@pytest.mark.parametrize("techniques", ["checkpoint", "step-in-backward", "keep-gradients"])
def test_techniques_that_only_move_memory_train_to_the_same_weights(techniques: str) -> None:
    for plain, found in zip(weights_after("plain"), weights_after(techniques), strict=True):
        assert torch.equal(plain, found)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd-momentum", "rmsprop"])
def test_stepping_in_the_backward_is_the_same_for_every_optimizer(optimizer: str) -> None:
    for plain, found in zip(
        weights_after("plain", optimizer), weights_after("step-in-backward", optimizer), strict=True
    ):
        assert torch.equal(plain, found)


def test_parts_of_a_batch_add_up_to_the_whole_within_roundings() -> None:
    for plain, found in zip(weights_after("plain"), weights_after("accumulate=3"), strict=True):
        assert torch.allclose(plain, found, atol=1e-6)


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UsageError, match="4 equal parts"):
        cut_batch((torch.zeros(6, 2), torch.zeros(6)), 4)


def test_the_parts_of_a_batch_are_the_batch() -> None:
    batch = {"ids": torch.arange(12).reshape(6, 2), "labels": torch.arange(6), "scale": torch.tensor(2.0)}
    parts: Any = cut_batch(batch, 3)
    assert torch.equal(torch.cat([part["ids"] for part in parts]), batch["ids"])
    assert all(part["scale"] is batch["scale"] for part in parts)


def test_adapters_leave_the_frozen_weights_alone_and_begin_as_nothing() -> None:
    training = small_training()
    inputs, _ = training.batch
    before = training.model(inputs).detach()
    found = with_recipe(training, Recipe(techniques=parse_techniques("lora=2")), "the job")
    assert torch.allclose(found.model(inputs), before)
    frozen = {name: value.detach().clone() for name, value in found.model.named_parameters() if not value.requires_grad}
    plain_step(found)()
    assert frozen
    assert all(torch.equal(value, dict(found.model.named_parameters())[name]) for name, value in frozen.items())


def test_pure_bfloat16_has_its_state_in_bfloat16() -> None:
    recipe = Recipe(optimizer="adam", techniques=parse_techniques("pure-bf16"))
    training = with_recipe(small_training(), recipe, "the job")
    plain_step(training)()
    states = [value for state in training.optimizer.state.values() for name, value in state.items() if name != "step"]
    assert {value.dtype for value in states} == {torch.bfloat16}


def test_blocks_that_repeat_are_found_once_and_a_model_without_any_is_refused() -> None:
    training = small_training()
    assert len(list(repeated_blocks(training.model))) == 3
    with pytest.raises(UsageError, match="no repeated blocks"):
        checkpoint_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_training_with_a_step_of_its_own_takes_no_recipe() -> None:
    training = small_training()
    training.step = lambda: None
    with pytest.raises(UsageError, match="steps by itself"):
        with_recipe(training, Recipe(optimizer="adam"), "the job")


def classifier() -> tuple[nn.Sequential, tuple[torch.Tensor, torch.Tensor]]:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, (torch.randn(8, 16), torch.randint(0, 4, (8,)))


def test_another_optimizer_steps_what_the_jobs_own_steps() -> None:
    model, batch = classifier()
    job = (model, torch.optim.Adam(model[2].parameters()), nn.functional.cross_entropy, batch)
    changed = with_recipe(as_training(job, "job"), Recipe(optimizer="sgd"), "job")
    stepped = [parameter for group in changed.optimizer.param_groups for parameter in group["params"]]
    assert {*map(id, stepped)} == {*map(id, model[2].parameters())}


def test_bfloat16_does_not_drop_imaginary_parts() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2, 2, dtype=torch.cfloat))])
    job = as_training((model, torch.optim.SGD(model.parameters()), None, torch.ones(2)), "job")
    with pytest.raises(UsageError, match="imaginary"):
        with_recipe(job, Recipe(techniques=parse_techniques("pure-bf16")), "job")


def test_several_optimizers_in_a_list_are_refused_where_they_would_step() -> None:
    model, batch = classifier()
    several = [torch.optim.SGD(model[0].parameters()), torch.optim.SGD(model[2].parameters())]
    with pytest.raises(UsageError, match="cannot step"):
        with_recipe(as_training((model, several, nn.functional.cross_entropy, batch), "job"), Recipe(), "job")
