"""Whole layers in one operator of a GPU, as `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` evaluate.

Fake kernels give their results alone. Here each is made of the operators that the real one calls (read in torch 2.13,
compared event by event with torch 2.14 on the phantom GPU): self-attention by the fused kernels where there is no mask,
else by a matrix of scores; the layer around it, with what is freed on the way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload
from torch.nn.functional import linear

from memfit.predict.fake.kernels.attention import choose_backend
from memfit.predict.observe.arguments import Arguments

aten = torch.ops.aten
ATTENTION, LAYER = aten._native_multi_head_attention.default, aten._transformer_encoder_layer_fwd.default
Attended = tuple[torch.Tensor, torch.Tensor | None]


_batch = {"is nested": False}
"""Whether the running batch stands in for a nested one, whose attention is by a matrix of scores."""


def stand_for_nested(is_nested: bool) -> None:
    """What comes now stands in for a nested batch, or no longer does."""
    _batch["is nested"] = is_nested


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, num_heads: int,
    weight: torch.Tensor, bias: torch.Tensor, out_weight: torch.Tensor, out_bias: torch.Tensor,
    mask: torch.Tensor | None = None, need_weights: bool = True, average_weights: bool = True,
    mask_type: int | None = None,
) -> Attended:  # fmt: skip
    batch, length, head_size = query.shape[0], query.shape[1], embed_dim // num_heads
    is_own = query is key and key is value
    is_fused = is_own and head_size % 8 == 0 and not need_weights and mask is None and not _batch["is nested"]
    if is_fused and not _is_plain(query, num_heads):
        parts = linear(query, weight, bias).chunk(3, -1)
        heads = [part.view(batch, length, num_heads, head_size).transpose(1, 2) for part in parts]
        del parts
        out = torch.nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return linear(out.transpose(1, 2).reshape(batch, length, embed_dim), out_weight, out_bias), None
    joined = _projected(query, key, value, weight, is_own)
    heads = joined.new_empty(3 * batch, num_heads, length, head_size)
    del joined
    given, keys, values = heads.split(batch)
    scores = torch.bmm(_matrices(given), _matrices(keys).transpose(1, 2)).view(batch, num_heads, length, length)
    if mask is not None or _batch["is nested"]:
        scores = torch.empty_like(scores)  # without a mask it is made in place
    torch.bmm(_matrices(scores), _matrices(values), out=_matrices(given))
    weights = scores if need_weights else None
    del scores
    result = linear(given.transpose(1, 2).reshape(batch, length, embed_dim), out_weight, out_bias)
    if weights is not None and average_weights:
        weights = weights.sum(1).div_(num_heads)
    return result, weights


def _is_plain(query: torch.Tensor, num_heads: int) -> bool:
    """Whether no fused kernel takes these heads."""
    heads = query.view(*query.shape[:2], num_heads, -1).transpose(1, 2)
    return choose_backend(heads, heads, heads, None, torch.cuda.get_device_capability()) == "math"


def _projected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor, is_own: bool
) -> torch.Tensor:
    """Queries, keys and values beside each other, without their bias."""
    if is_own:
        return linear(query, weight)
    parts = [linear(given, part) for given, part in zip((query, key, value), weight.chunk(3, 0), strict=True)]
    return torch.cat(parts, 2)


def _matrices(heads: torch.Tensor) -> torch.Tensor:
    return heads.reshape(-1, *heads.shape[2:])


def _layer(
    source: torch.Tensor, embed_dim: int, num_heads: int, weight: torch.Tensor, bias: torch.Tensor,
    out_weight: torch.Tensor, out_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor,
    weight_1: torch.Tensor, bias_1: torch.Tensor, weight_2: torch.Tensor, bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    def normed(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return torch.layer_norm(x, (embed_dim,), scale, shift, eps)

    x = normed(source, norm_weight_1, norm_bias_1) if norm_first else source
    x = _attend(x, x, x, embed_dim, num_heads, weight, bias, out_weight, out_bias, mask, need_weights=False)[0]
    x.add_(source)
    if not norm_first:
        x = normed(x, norm_weight_1, norm_bias_1)
    before = x
    if norm_first:
        x = normed(x, norm_weight_2, norm_bias_2)
    rows = x.reshape(-1, embed_dim)
    x = aten._addmm_activation.default(bias_1, rows, weight_1.t(), use_gelu=use_gelu)
    del rows
    x = torch.addmm(bias_2, x, weight_2.t()).view(source.shape)
    x.add_(before)
    return x if norm_first else normed(x, norm_weight_2, norm_bias_2)


FAST_PATHS: dict[OpOverload, Callable[..., object]] = {ATTENTION: _attend, LAYER: _layer}


def fast_path(func: OpOverload, args: Arguments) -> Callable[..., object] | None:
    """What a call on plain tensors of a GPU is made of; None for any other."""
    recipe = FAST_PATHS.get(func)
    if recipe is None or not isinstance(args[0], torch.Tensor) or args[0].device.type != "cuda" or args[0].is_nested:
        return None
    return recipe
