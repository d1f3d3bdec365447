"""How do questions reach a network that marks the answer in a text?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch

from memfit.job.data.questions import QuestionRows, load_questions
from memfit.job.data.torch_image_feed import check_batch
from memfit.job.training import Training


def feed_questions(training: Training, name: str, vocabulary: str | None, num_words: int) -> Training:
    """Let a training read a SQuAD file; it is loaded when the first batch is asked for."""
    batch_size, length = training.batch["input_ids"].shape
    device = training.batch["input_ids"].device
    load = cache(lambda: load_questions(name, vocabulary, num_words, length))

    def feed(epoch: int) -> Iterator[dict[str, torch.Tensor]]:
        rows: QuestionRows = load()
        check_batch(batch_size, len(rows.tokens))
        order = np.random.default_rng(epoch).permutation(len(rows.tokens))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield _batch(rows, order[start : start + batch_size], device)

    training.feed, training.data = feed, name
    return training


def _batch(rows: QuestionRows, chosen: np.ndarray, device: torch.device) -> dict[str, torch.Tensor]:
    columns = {"input_ids": rows.tokens, "start_positions": rows.start, "end_positions": rows.end}
    return {name: torch.from_numpy(column[chosen].astype(np.int64)).to(device) for name, column in columns.items()}
