"""Question answering with DistilBERT, from its configuration alone: no weights are downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.errors import MissingExtra
from memfit.job.data.torch_feeds import feed_questions
from memfit.job.training import Training
from memfit.job.workloads.build import make_training

IMPORTS = ("transformers.models.distilbert.modeling_distilbert",)
"""Loaded once where many copies of a process build the workload."""


def build_distilbert(
    *,
    batch_size: int = 16,
    length: int = 384,
    layers: int = 6,
    attention: str = "sdpa",
    checkpoint: bool = False,
    data: str | None = None,
    vocabulary: str | None = None,
    questions: int | None = None,
    device: str = "cpu",
    **recipe: object,
) -> Training:
    """Start and end of the answer in a padded text; weights are random, 66.4 million of them by default.

    `data` is 'squad' or a SQuAD file; `vocabulary` is DistilBERT's vocab.txt, else words are numbered by a hash;
    `questions` of it make an epoch, all by default.
    """
    models, configurations = _transformers()
    config = configurations(attn_implementation=attention, n_layers=layers)
    model = models(config).to(device)
    if checkpoint:
        model.gradient_checkpointing_enable()
    batch = {
        "input_ids": torch.randint(0, config.vocab_size, (batch_size, length), device=device),
        "start_positions": torch.zeros(batch_size, dtype=torch.long, device=device),
        "end_positions": torch.zeros(batch_size, dtype=torch.long, device=device),
    }
    training = make_training(model.train(), batch, None, **{"optimizer": "adamw", **recipe})
    return training if data is None else feed_questions(training, data, vocabulary, config.vocab_size, questions)


def _transformers() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from importlib import import_module

    try:
        library = import_module("transformers")
    except ImportError:
        hint = "pip install 'memfit[workloads]', or pip install transformers"
        raise MissingExtra("the workload distilbert needs transformers", hint=hint) from None
    return library.DistilBertForQuestionAnswering, library.DistilBertConfig
