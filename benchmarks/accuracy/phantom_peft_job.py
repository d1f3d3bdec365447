"""One fine-tuning of Llama-3.2-3B with a PEFT method, as the recorded runs were set up, on random weights.

The shape of the model is its public configuration. Batches hold four texts, padded to the longest. The recorded loop
sorts every eighty texts by length, longest first, and empties the allocator's cache after every tenth step: so the
longest batch of all meets an empty cache, and shorter ones follow it. `lengths` says the same: numbers are steps, `-`
empties the cache. Adapters are kept in float32, as PEFT does by itself.
"""

from __future__ import annotations

import json
from typing import Any

import peft  # pyright: ignore[reportMissingImports]
import torch
from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

from memfit.job.training import Training

LLAMA_3B = {
    "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "tie_word_embeddings": True, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
BATCH, END = 4, 128001


def base_model() -> Any:
    """The model in bfloat16 on the GPU."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**LLAMA_3B))
    torch.set_default_dtype(torch.float32)
    return model


def adapted(model: Any, text: str) -> Any:
    """The model with the adapter of a recorded configuration."""
    fields = json.loads(text)
    kind = getattr(peft.PeftType, fields.pop("peft_type"))
    made = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING[kind]
    known = made.__dataclass_fields__
    given = {name: value for name, value in fields.items() if name in known and known[name].init}
    given.pop("base_model_name_or_path", None)
    return peft.get_peft_model(model, made(**{name: value for name, value in given.items() if value is not None}))


def batch_of(length: int) -> dict[str, Any]:
    """Four texts of which one is as long as said; the end of the others is padding."""
    tokens = torch.full((BATCH, length), END)
    mask = torch.zeros(BATCH, length, dtype=torch.long)
    for row in range(BATCH):
        own = length - 6 * row
        tokens[row, :own] = torch.randint(0, 128000, (own,))
        mask[row, :own] = 1
    return {"input_ids": tokens, "attention_mask": mask}


def fine_tune(config: str, lengths: str = "300,-,768,600", device: str = "cuda") -> Training:
    """The recorded loop: one step for each length, an empty cache for each dash."""
    model = adapted(base_model(), config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    waiting = str(lengths).split(",")

    def step() -> None:
        if waiting[0] == "-":
            waiting.pop(0)
            torch.cuda.empty_cache()
        batch = {name: values.to(device) for name, values in batch_of(int(waiting.pop(0))).items()}
        labels = batch["input_ids"].clone()
        for row, used in enumerate(batch["attention_mask"].sum(-1).tolist()):
            labels[row, used + 1 :] = -100
        num_items = batch["attention_mask"].sum().item()
        optimizer.zero_grad()
        loss = model(**batch, labels=labels, num_items_in_batch=num_items).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Training(model=model, optimizer=optimizer, batch=(), step=step)
