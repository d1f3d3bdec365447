"""A training program with two forked data workers, which share the parent's data set and slowly copy it by reading it.

python torch_worker_job.py PID_FILE NUM_BATCHES
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.overhead.torch_models import Training

NUM_SAMPLES = 60_000


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """A list of Python objects: reading one writes its reference count, and its page is copied."""

    def __init__(self) -> None:
        self.rows = [[float(i + j) for j in range(28)] for i in range(NUM_SAMPLES)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(self.rows[index]).repeat(28), index % 10


def main() -> None:
    """Train on batches that the workers make."""
    pid_file, num_batches = Path(sys.argv[1]), int(sys.argv[2])
    pid_file.write_text(str(os.getpid()))
    training = Training("mlp")
    loader = DataLoader(Numbers(), batch_size=64, num_workers=2, shuffle=True, multiprocessing_context="fork")
    for number, batch in enumerate(loader):
        if number == num_batches:
            break
        training.step(tuple(batch))


if __name__ == "__main__":
    main()
