"""Small trainings whose peaks are hard to explain: python torch_ledger_job.py NAME; NUM_STEPS in the environment

    steady        every step is like the one before
accumulation  gradients of four batches are added up before an update
evaluation    every eighth step is followed by an evaluation of eight times the batch, which is the peak
lengths       the length of a batch is drawn; the longest comes once, at no round number
fork, spawn   two data workers, forked (they share the data set) or spawned (they import torch again)
"""

from __future__ import annotations

import os
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_STEPS = int(os.environ.get("NUM_STEPS", "60"))


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """A list of Python objects: in a forked worker, reading one copies its page."""

    def __init__(self) -> None:
        self.rows = [[float(i + j) for j in range(28)] for i in range(20_000)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(self.rows[index]).repeat(28), index % 10


class Training:
    """A multilayer perceptron and its Adam."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def backward(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        nn.functional.cross_entropy(self.model(images), labels).backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def random_batch(self, num_rows: int) -> None:
        self.backward(torch.randn(num_rows, 784), torch.randint(10, (num_rows,)))


def steady(training: Training) -> None:
    for _ in range(NUM_STEPS):
        training.random_batch(128)
        training.update()


def accumulation(training: Training) -> None:
    for _ in range(NUM_STEPS):
        for _ in range(4):
            training.random_batch(512)
        training.update()


def evaluation(training: Training) -> None:
    for step in range(NUM_STEPS):
        training.random_batch(1024)
        training.update()
        if step % 8 == 7:
            with torch.no_grad():
                training.model(torch.randn(8192, 784))


def lengths(training: Training) -> None:
    draw = random.Random(0)
    for step in range(NUM_STEPS):
        training.random_batch(6000 if step == 36 else draw.randrange(256, 4096))
        training.update()


def workers(training: Training, method: str) -> None:
    loader = DataLoader(Numbers(), batch_size=64, num_workers=2, shuffle=True, multiprocessing_context=method)
    for number, (images, labels) in enumerate(loader):
        if number == 4 * NUM_STEPS:
            break  # the data set ends before that when there are many
        training.backward(images, labels)
        training.update()


def main() -> None:
    """Run the training of this name."""
    name, training = sys.argv[1], Training()
    if name in ("fork", "spawn"):
        workers(training, name)
    else:
        {"steady": steady, "accumulation": accumulation, "evaluation": evaluation, "lengths": lengths}[name](training)


if __name__ == "__main__":
    main()
