"""A training that is nearly all parameters, with marks between forward, update and the next step, for any optimizer."""

from __future__ import annotations

import itertools

import torch

from memfit.compare.optimizer_table.marked_steps import MARK_BYTES
from memfit.job.recipes.torch_optimizers import make_optimizer
from memfit.job.recipes.torch_step import take_step
from memfit.job.training import Training
from memfit.records.optimizer_bytes import ShapesName

NUM_STEPS = 6
"""Enough for what happens in every fifth step (Lookahead's copy)."""
BATCH_SIZE = 4
NUM_OUTPUTS = 8
WIDTHS: dict[ShapesName, tuple[int, ...]] = {
    "square": (512,) * 5,
    "deep": (512,) * 9,
    "tall": (128, 2048, 128),
}
SPARSE_ROWS, SPARSE_COLUMNS = 4096, 128


def make_network(shapes: ShapesName) -> torch.nn.Module:
    """Matrices of these shapes, with biases and a small head; or one table with sparse gradients."""
    if shapes == "sparse":
        return torch.nn.Embedding(SPARSE_ROWS, SPARSE_COLUMNS, sparse=True)
    widths = WIDTHS[shapes]
    layers = [torch.nn.Linear(width, next_width) for width, next_width in itertools.pairwise(widths)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], NUM_OUTPUTS))


def make_batch(shapes: ShapesName) -> torch.Tensor:
    """Rows for the first layer, or numbers of rows of the table."""
    if shapes == "sparse":
        return torch.arange(BATCH_SIZE)
    return torch.ones(BATCH_SIZE, WIDTHS[shapes][0])


def make_marked_training(optimizer: str, shapes: ShapesName, device: str = "cpu") -> Training:
    """Model, batch and optimizer, and a step that marks its parts."""
    torch.manual_seed(0)
    with torch.device(device):
        model, batch = make_network(shapes), make_batch(shapes)
    mark("built", device)
    chosen = make_optimizer(optimizer, model)

    def loss() -> torch.Tensor:
        return model(batch).square().mean()

    def before_update() -> None:
        mark("update", device)

    def step() -> None:
        mark("begin", device)
        take_step(chosen, loss, before_update)
        for parameter in model.parameters():
            parameter.grad = None
        mark("end", device)

    return Training(model=model, optimizer=chosen, batch=batch, step=step)


def mark(name: str, device: str) -> None:
    """A tensor of the size that says this; dropped at once."""
    torch.empty(MARK_BYTES[name], dtype=torch.uint8, device=device)
