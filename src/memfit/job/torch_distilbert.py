"""Question answering with DistilBERT, from its configuration alone: no weights are downloaded."""

from __future__ import annotations

from typing import Any

import torch

from memfit.errors import MissingExtra
from memfit.job.torch_training import make_training
from memfit.job.training import Training


def build_distilbert(
    *,
    batch_size: int = 16,
    length: int = 384,
    attention: str = "sdpa",
    checkpoint: bool = False,
    device: str = "cpu",
    **recipe: Any,
) -> Training:
    """Start and end positions of the answer in a padded text, without a padding mask."""
    models, configurations = _transformers()
    config = configurations(attn_implementation=attention)
    model = models(config).to(device)
    if checkpoint:
        model.gradient_checkpointing_enable()
    batch = {
        "input_ids": torch.randint(0, config.vocab_size, (batch_size, length), device=device),
        "start_positions": torch.zeros(batch_size, dtype=torch.long, device=device),
        "end_positions": torch.zeros(batch_size, dtype=torch.long, device=device),
    }
    return make_training(model.train(), batch, None, **{"optimizer": "adamw", **recipe})


def _transformers() -> tuple[Any, Any]:
    from importlib import import_module

    try:
        library = import_module("transformers")
    except ImportError:
        raise MissingExtra("the workload distilbert needs transformers", hint="pip install transformers") from None
    return library.DistilBertForQuestionAnswering, library.DistilBertConfig
