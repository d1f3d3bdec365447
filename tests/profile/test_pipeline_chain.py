"""Does a live model become a chain whose parameters, outputs and places to cut are the model's own?"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memfit.errors import UsageError
from memfit.job.training import StepOptions, Training
from memfit.profile.pipeline.chain import measured_chain, micro_batch_of


class Tied(nn.Module):
    """An embedding, blocks in a list, and a head that reads the embedding's weight."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3))
        self.head = nn.Linear(16, 50, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def training_of(model: nn.Module, batch_size: int = 8) -> Training:
    words = torch.randint(0, 50, (batch_size, 10))

    def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    return Training(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), loss=loss, batch=(words, words.clone())
    )


def test_every_parameter_belongs_to_the_layer_that_reads_it():
    model = Tied(tied=False)
    chain = measured_chain(training_of(model), "made", 4)
    assert chain.micro_batch_size == 2
    assert sum(layer.parameter_bytes for layer in chain.layers) == sum(p.nbytes for p in model.parameters())
    assert chain.layers[-1].parameter_bytes >= model.head.weight.nbytes
    assert chain.layers[0].parameter_bytes >= model.words.weight.nbytes
    modules = [name for layer in chain.layers for name in layer.modules]
    assert modules[0] == "words"
    assert modules[-1] == "head"
    assert any(not layer.no_cut_because for layer in chain.layers[:-1])
    sent = {layer.output_bytes for layer in chain.layers[:-1] if not layer.no_cut_because}
    assert sent <= {2 * 10 * 16 * 4, 2 * 10 * 64 * 4}
    assert chain.source == chain.time_source == "measured"


def test_a_weight_that_two_layers_read_is_counted_in_both_and_named():
    model = Tied(tied=True)
    chain = measured_chain(training_of(model), "made", 2)
    once = sum(p.nbytes for p in model.parameters())
    assert sum(layer.parameter_bytes for layer in chain.layers) == once + model.words.weight.nbytes
    assert any(note.startswith("words.weight is read by") for note in chain.notes)


def test_a_frozen_layer_has_no_gradients_and_no_state_of_the_optimizer():
    model = Tied(tied=False)
    model.words.requires_grad_(False)
    model.blocks[:2].requires_grad_(False)
    chain = measured_chain(training_of(model), "made", 2)
    frozen = [layer for layer in chain.layers if all(name.startswith(("words", "blocks.0")) for name in layer.modules)]
    assert frozen
    assert [(layer.gradient_bytes, layer.optimizer_bytes) for layer in frozen] == [(0, 0)] * len(frozen)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert sum(layer.gradient_bytes for layer in chain.layers) == trained
    assert sum(layer.optimizer_bytes for layer in chain.layers) == pytest.approx(2 * trained, rel=0.01)


def test_a_batch_that_is_no_multiple_is_refused_with_one_that_is():
    with pytest.raises(UsageError, match="no multiple of the micro-batches") as refused:
        micro_batch_of((torch.zeros(18, 3), torch.zeros(18)), 4)
    assert refused.value.hint == "--micro-batches 3"
    with pytest.raises(UsageError, match="cannot be cut into micro-batches"):
        micro_batch_of((torch.zeros(4, 3), torch.zeros(5)), 1)


def test_a_step_of_its_own_is_refused():
    training = training_of(Tied(tied=False))
    training.step, training.options = (lambda: None), None
    with pytest.raises(UsageError, match="a step of its own"):
        measured_chain(training, "made", 2)
    training.options = StepOptions(precision="bf16")
    with pytest.raises(UsageError, match="a step of its own"):
        measured_chain(training, "made", 2)


@pytest.mark.slow
def test_the_installed_torch_is_asked_for_its_buffers():
    from memfit.profile.pipeline.torch_buffers import receives_all_micro_batches

    assert receives_all_micro_batches() in (True, False)


def test_the_input_is_that_of_one_micro_batch_without_its_targets():
    training = training_of(Tied(tied=False), batch_size=16)
    for num_micro_batches in (2, 8):
        chain = measured_chain(training, "made", num_micro_batches)
        assert chain.input_bytes == training.batch[0].nbytes // num_micro_batches
