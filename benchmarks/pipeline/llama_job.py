"""Llama 3.1 8B (transformers' configuration) under FSDP2: bf16, batch 2 x 8192, selective checkpointing, AdamW.

    torchrun --nproc-per-node 8 llama_job.py

As published runs of pre-training have it: parameters and optimizer state in fp32, gathered and computed in bf16,
gradients reduced in fp32; of each block the attention and every second matrix product are kept, all else is
recomputed. The model is made on the meta device, and no weight is loaded. Nothing of memfit is in it.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

BATCH, LENGTH, STEPS = 2, 8192, 3
aten = torch.ops.aten
ATTENTION = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}


def llama() -> Any:
    """The published configuration of Llama 3.1 8B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    published: dict[str, Any] = {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "use_cache": False, "attn_implementation": "sdpa",
    }  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**published))


def selective() -> Any:
    """Keep the attention and every second product of a block."""
    counts = {"forward": 0, "recompute": 0}

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if func in ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if func is aten.mm.default:
            where = "recompute" if context.is_recompute else "forward"
            counts[where] += 1
            return CheckpointPolicy.MUST_SAVE if counts[where] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recomputed_in_part(layer: nn.Module) -> None:
    """The block's forward runs under selective checkpointing."""
    forward = layer.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=selective, **kwargs)

    layer.forward = run


def main() -> None:
    """Some steps of this rank."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = llama()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    how = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for layer in model.model.layers:
        recomputed_in_part(layer)
        fully_shard(layer, **how)
    fully_shard(model, **how)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for _ in range(STEPS):
        tokens = torch.randint(0, 128256, (BATCH, LENGTH), device="cuda")
        labels = torch.randint(0, 128256, (BATCH, LENGTH), device="cuda")
        logits = model(input_ids=tokens, attention_mask=None, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
