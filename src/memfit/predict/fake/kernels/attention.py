"""Attention kernels that a GPU would choose (flash, memory-efficient, plain), on fake tensors.

Without CUDA kernels torch's own choice falls to the plain one, which saves a matrix of length x length. Here the
choice of torch 2.13 is made again (flash for half precision without a mask, memory-efficient otherwise, plain where
neither can), and the chosen operator's fake kernel gives its results, log-sum-exp and random state. Registered with
the dispatcher, so that recomputation in a backward takes it too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from memfit.predict.observe.arguments import Arguments, Keywords, tensor_at

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
VERSION = "2.13"
"""The torch whose choices are made again; 2.14 hands shared heads to the memory-efficient kernel as they are."""
_registered: list[torch.library.Library] = []
_asked: dict[str, Any] = {}


def register_attention(capability: tuple[int, int], note: Callable[[str, str], None]) -> None:
    """Answer scaled_dot_product_attention on fake CUDA tensors as a GPU of this capability would."""
    _asked.update(capability=capability, note=note)
    if _registered:
        return

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        backend = choose_backend(query, key, value, attn_mask, _asked["capability"])
        _asked["note"](
            "attention", f"the {backend} kernel is taken for {str(query.dtype).removeprefix('torch.')} attention"
        )
        if backend == "flash":
            return aten._scaled_dot_product_flash_attention.default(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        if enable_gqa and key.shape[1] != query.shape[1]:
            _asked["note"]("attention", f"shared heads are copied for the {backend} kernel, as torch {VERSION} does it")
            repeats = query.shape[1] // key.shape[1]
            key, value = (part.repeat_interleave(repeats, 1) for part in (key, value))
        if backend == "efficient":
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        mask = None if attn_mask is None else _as_numbers(attn_mask, query)
        with _masks_added_in_place():
            return aten._scaled_dot_product_attention_math.default(
                query, key, value, mask, dropout_p, is_causal, scale=scale
            )[0]

    library = torch.library.Library("aten", "IMPL")
    for name in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attend, name)
    _keep_whole(library)
    _registered.append(library)


@contextlib.contextmanager
def _masks_added_in_place() -> Iterator[None]:
    """Within, the plain kernel's mask is added to the scores themselves; torch makes new ones of a fake tensor."""
    _asked["in place"] = True
    try:
        yield
    finally:
        _asked["in place"] = False


def answer_sum(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
    """Scores and mask are the scores again; any other sum is a new tensor."""
    if _asked.get("in place") and tensor_at(args, 0).device.type == "cuda" and tensor_at(args, 0).dim() >= 3:
        return aten.alias.default(args[0])
    return func(*args, **kwargs)


def answer_efficient(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> object:
    """With dropout, the random state is kept on the host."""
    result = func(*args, **kwargs)
    if len(args) < 6 or not args[5]:
        return result
    return (*result[:2], *(torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2)))


def _keep_whole(library: torch.library.Library) -> None:
    """A few operators have kernels for some devices and a recipe for the rest: without CUDA, the recipe."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if (
            name.startswith("aten::")
            and has(name, "CompositeImplicitAutograd")
            and has(name, "CPU")
            and not has(name, "CUDA")
        ):
            library.impl(name.removeprefix("aten::"), _never_run, "CUDA")


def _never_run(*args: object, **kwargs: object) -> object:
    raise RuntimeError("a CUDA kernel was called for real, without CUDA")


def choose_backend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, capability: tuple[int, int]
) -> str:
    """'flash', 'efficient' or 'math', by the rules of torch 2.13 and what the user has switched off."""
    settings = torch.backends.cuda
    shaped = query.dim() == key.dim() == value.dim() == 4
    size = query.shape[-1]
    half = query.dtype in HALF
    if (
        settings.flash_sdp_enabled() and shaped and half and mask is None and size <= 256 and size % 8 == 0
        and value.shape[-1] == size and capability >= (8, 0)
    ):  # fmt: skip
        return "flash"
    aligned = size % (8 if half else 4) == 0 and value.shape[-1] % (8 if half else 4) == 0
    known = query.dtype in (*HALF, torch.float32) and not (query.dtype is torch.bfloat16 and capability < (8, 0))
    if settings.mem_efficient_sdp_enabled() and shaped and known and aligned:
        return "efficient"
    return "math"


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    dropout_p: float, is_causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    needs_gradient = any(part.requires_grad for part in (query, key, value)) and torch.is_grad_enabled()
    if mask is not None:
        mask = _padded(_as_numbers(mask, query)).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return aten._scaled_dot_product_efficient_attention.default(
        query, key, value, mask, needs_gradient, dropout_p, is_causal, scale=scale
    )[0]


def _as_numbers(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A boolean mask becomes zeros and minus infinities in the type of the query."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """The kernel wants rows that are a multiple of 16 bytes long; others are copied into longer ones."""
    step = 16 // mask.element_size()
    missing = -mask.shape[-1] % step
    if not missing:
        return mask
    return torch.nn.functional.pad(mask, (0, missing))[..., : mask.shape[-1]]
