"""Signatures of CPU operators whose scratch memory fake kernels hide, written so that a call can be run for real.

The lists were found by running operators one by one for real and on fake tensors, those of torch's own test database
(`torch.testing`) among them (torch 2.13, CPU). A backward fed by another operator's opaque workspace would end the
process with a made-up one: the LSTM's is probed together with its forward.

Operators that compute in a common type copy every operand of another type first: `mask * scores`, `pixels / 255`,
`(a == b).sum()`. They are probed where types differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.fake.kernels.sparse import is_stolen
from memfit.predict.fake.values.most_nonzero import most_nonzero
from memfit.predict.observe.arguments import Arguments, Keywords, tensor_at
from memfit.predict.observe.known_values import shadow_of

RISKY = {
    "aten::linalg_lstsq",
    "aten::_linalg_svd",
    "aten::_linalg_eigh",
    "aten::_linalg_solve_ex",
    "aten::linalg_inv_ex",
    "aten::linalg_cholesky_ex",
    "aten::linalg_qr",
    "aten::convolution",
    "aten::convolution_backward",
    "aten::convolution_overrideable",
    "aten::mkldnn_rnn_layer",
    "aten::mkldnn_rnn_layer_backward",
    "aten::lstm",
    "aten::gru",
    "aten::_thnn_fused_lstm_cell",
    "aten::mse_loss",
    "aten::mse_loss_backward",
    "aten::smooth_l1_loss",
    "aten::smooth_l1_loss_backward",
    "aten::huber_loss",
    "aten::huber_loss_backward",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_backward",
    "aten::binary_cross_entropy_with_logits",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_trilinear",
    "aten::_embedding_bag",
    "aten::_embedding_bag_backward",
    "aten::_embedding_bag_dense_backward",
    "aten::native_layer_norm",
    "aten::native_layer_norm_backward",
    "aten::native_group_norm",
    "aten::native_group_norm_backward",
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::native_batch_norm_backward",
    "aten::embedding_dense_backward",
    "aten::nll_loss2d_forward",
    "aten::nll_loss2d_backward",
    "aten::upsample_bilinear2d",
    "aten::upsample_bilinear2d_backward",
    "aten::_cdist_forward",
    "aten::_cdist_backward",
    "aten::linalg_vector_norm",
    "aten::cumsum",
    "aten::sort",
    "aten::topk",
    "aten::grid_sampler_2d",
    "aten::avg_pool2d_backward",
    "aten::max_pool2d_with_indices_backward",
    "aten::multi_margin_loss",
    "aten::var_mean",
    "aten::isinf",
    "aten::logsumexp",
    "aten::roll",
    "aten::median",
    "aten::nanmedian",
    "aten::kthvalue",
    "aten::mode",
    "aten::dist",
    "aten::ldexp",
    "aten::mvlgamma",
    "aten::isin",
    "aten::multinomial",
    "aten::_euclidean_dist",
    "aten::im2col",
    "aten::col2im",
    "aten::upsample_nearest1d",
    "aten::upsample_nearest2d",
    "aten::upsample_nearest3d",
    "aten::_upsample_nearest_exact1d",
    "aten::_upsample_nearest_exact2d",
    "aten::_upsample_nearest_exact3d",
    "aten::upsample_linear1d",
    "aten::upsample_bicubic2d",
    "aten::upsample_trilinear3d",
    "aten::_upsample_bilinear2d_aa",
    "aten::_upsample_bicubic2d_aa",
    "aten::_fft_r2c",
    "aten::_fft_c2c",
    "aten::_fft_c2r",
    "aten::linalg_matrix_exp",
    "aten::linalg_pinv",
    "aten::linalg_solve_triangular",
    "aten::cholesky_solve",
    "aten::soft_margin_loss",
    "aten::soft_margin_loss_backward",
    "aten::batch_norm_backward",
    "aten::_batch_norm_with_update",
    "aten::rrelu_with_noise",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::masked_select",
    "aten::histogram",
    "aten::histc",
    "aten::_sample_dirichlet",
    "aten::_dirichlet_grad",
    "aten::binomial",
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::fake_quantize_per_channel_affine_cachemask",
    "aten::count_nonzero",
    "aten::index_reduce",
    "aten::index_reduce_",
    "aten::native_dropout_backward",
    "aten::_safe_softmax",
    "aten::linalg_eig",
    "aten::_linalg_eigvals",
    "aten::ormqr",
    "aten::linalg_lu",
    "aten::_linalg_det",
    "aten::_linalg_slogdet",
    "aten::scatter_reduce",
    "aten::_unsafe_masked_index",
    "aten::_unsafe_masked_index_put_accumulate",
}
COPY_WHAT_IS_OUT_OF_ORDER = {
    "aten::_softmax",
    "aten::_log_softmax",
    "aten::_softmax_backward_data",
    "aten::_log_softmax_backward_data",
    "aten::log_sigmoid_forward",
    "aten::gelu_backward",
    "aten::index_select",
    "aten::tril",
    "aten::triu",
    "aten::pixel_shuffle",
    "aten::max_pool2d_with_indices",
    "aten::avg_pool2d",
    "aten::_adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool2d_backward",
}
"""Operators that copy a transposed, sliced or expanded input first."""
RISKY_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
BINARY = (
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "atan2", "maximum", "minimum", "fmax",
    "fmin", "eq", "ne", "lt", "le", "gt", "ge", "clamp", "addcmul", "addcdiv", "lerp", "copysign", "hypot", "xlogy",
    "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor", "rsub",
)  # fmt: skip
COMPUTE_IN_ONE_TYPE = {f"aten::{name}{ending}" for name in BINARY for ending in ("", "_")}
SUM_IN_ANOTHER_TYPE = {"aten::sum", "aten::prod", "aten::nansum", "aten::mean", "aten::cumprod"}
ON_SPARSE = {
    "aten::mm", "aten::addmm", "aten::_sparse_addmm", "aten::t", "aten::transpose", "aten::clone", "aten::_to_copy",
    "aten::_coalesce", "aten::neg",
}  # fmt: skip
"""Operators on sparse tensors (COO) whose results are as large as the number of different entries says."""
TAKES_A_MASK = {
    "aten::index", "aten::masked_select", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
}  # fmt: skip
"""A mask of a probe holds for as many elements as that of the job, or could have: for all where nothing is known."""


class Signatures:
    """Collects the distinct calls of risky operators, each once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self._risky: dict[OpOverload, Hides] = {}

    def sign(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> int | None:
        """The number of this call's signature; None for operators that hide nothing."""
        hides = self._risky.get(func)
        if hides is None:
            hides = self._risky[func] = _when_it_hides(func._schema.name)
        if hides is _never or not hides(args, kwargs) or (_has_sparse(args) and not is_probed_on_sparse(func, args)):
            return None
        call = [str(func), encode(args), encode(kwargs), torch.is_grad_enabled()]
        if func._schema.name in TAKES_A_MASK:
            call.append(_numbers_true(args))
        text = json.dumps(call)
        return self.texts.setdefault(text, len(self.texts))


Hides = Callable[[Arguments, Keywords], bool]


def is_probed_on_sparse(func: OpOverload, args: Arguments) -> bool:
    """Whether a call with a sparse tensor can be made up: one of them, the others plain."""
    layouts = [a.layout for a in args if isinstance(a, torch.Tensor) and a.layout is not torch.strided]
    return layouts == [torch.sparse_coo] and func._schema.name in ON_SPARSE and not is_stolen(func)


def _when_it_hides(name: str) -> Hides:
    """In which calls an operator allocates more than it returns."""
    hides = _when_it_hides_of_plain(name)
    if name not in ON_SPARSE:
        return hides
    return lambda args, kwargs: _has_sparse(args) or hides(args, kwargs)


def _when_it_hides_of_plain(name: str) -> Hides:
    if name in RISKY:
        return _always
    if name in COPY_WHAT_IS_OUT_OF_ORDER:
        return _is_out_of_order
    if name in RISKY_PRODUCTS:
        return lambda args, kwargs: _has_half(args) or _is_expanded(args)
    if name in COMPUTE_IN_ONE_TYPE:
        return _differ_in_type
    if name == "aten::where":
        return lambda args, kwargs: _differ_in_type(args[1:], kwargs)
    if name in SUM_IN_ANOTHER_TYPE:
        return _sums_in_another_type
    return _has_mask if name in TAKES_A_MASK else _never


def _always(args: Arguments, kwargs: Keywords) -> bool:
    return True


def _never(args: Arguments, kwargs: Keywords) -> bool:
    return False


def _is_out_of_order(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether a tensor lies neither in the plain order nor in that with channels last."""
    return any(
        not a.is_contiguous() and not (a.dim() == 4 and a.is_contiguous(memory_format=torch.channels_last))
        for a in args
        if isinstance(a, torch.Tensor)
    )


def _differ_in_type(args: Arguments, kwargs: Keywords) -> bool:
    """Whether an operand may have to be copied into the type that is computed in."""
    types = {a.dtype for a in args if isinstance(a, torch.Tensor)}
    if len(types) > 1:
        return True
    whole = not next(iter(types)).is_floating_point if types else False
    return whole and any(isinstance(a, float) for a in args)


def _sums_in_another_type(args: Arguments, kwargs: Keywords) -> bool:
    own, asked = tensor_at(args, 0).dtype, kwargs.get("dtype")
    return (not own.is_floating_point and own is not torch.int64) or asked not in (None, own)


def _has_mask(args: Arguments, kwargs: Keywords) -> bool:
    return bool(masks_in(args))


def masks_in(args: Sequence[object]) -> list[torch.Tensor]:
    """The masks by which an operator selects."""
    given = args[1] if isinstance(args[1], (list, tuple)) else (args[1],)
    return [a for a in given if isinstance(a, torch.Tensor) and a.dtype in (torch.bool, torch.uint8)]


def _numbers_true(args: Arguments) -> list[int]:
    """How many elements each mask of a call selects: as many as there are values to be written, if several are."""
    masks = masks_in(args)
    values = args[2] if len(args) > 2 and isinstance(args[2], torch.Tensor) else None
    if len(masks) == 1 and values is not None and values.dim() == tensor_at(args, 0).dim() - masks[0].dim() + 1:
        return [values.shape[0] if values.shape[0] > 1 else _most_true(masks[0])]
    return [_most_true(mask) for mask in masks]


def _most_true(mask: torch.Tensor) -> int:
    """How many elements a mask selects, as far as that is known."""
    known = shadow_of(mask)
    if known is not None:
        with _disable_current_modes():
            return int(known.count_nonzero())
    return most_nonzero(mask)


def _has_sparse(args: tuple[object, ...]) -> bool:
    """Whether a tensor is not strided: what a probe would make up for it is another call."""
    return any(isinstance(a, torch.Tensor) and a.layout is not torch.strided for a in args)


def _has_half(args: tuple[object, ...]) -> bool:
    return any(isinstance(a, torch.Tensor) and a.dtype in (torch.bfloat16, torch.float16) for a in args)


def _is_expanded(args: tuple[object, ...]) -> bool:
    """Whether one value stands for many in some matrix: a product copies that matrix out first."""
    matrices = [a for a in args if isinstance(a, torch.Tensor) and a.dim() >= 2]
    return any(stride == 0 and size > 1 for a in matrices for size, stride in zip(a.shape, a.stride(), strict=True))


def encode(value: object) -> object:
    """Arguments as plain data; a tensor becomes its shape, strides and type."""
    if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
        return {"sparse": _entries_of(value)}
    if isinstance(value, torch.Tensor):
        strides = list(value.stride()) if value.layout is torch.strided else []
        return {"tensor": [list(value.shape), strides, str(value.dtype), value.requires_grad]}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": {name: encode(item) for name, item in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value)}
    return value if isinstance(value, (bool, int, float, str)) or value is None else None


def _entries_of(tensor: torch.Tensor) -> list[object]:
    """Shape, dimensions that are sparse, entries, how many of these are different, type, and whether in order."""
    indices = tensor._indices()
    shape, (num_sparse, count) = list(tensor.shape), indices.shape
    known, is_coalesced = shadow_of(indices), tensor.is_coalesced()
    num_different = min(count, math.prod(shape[:num_sparse]))
    if known is not None and not is_coalesced:
        with _disable_current_modes():
            num_different = _num_different(known, shape)
    return [shape, num_sparse, count, num_different, str(tensor.dtype), is_coalesced]


def _num_different(places: torch.Tensor, shape: list[int]) -> int:
    """How many different columns there are; one number for each is sorted much faster than the columns."""
    if math.prod(shape[: len(places)]) >= 2**63:
        return torch.unique(places, dim=1).shape[1]
    keys = torch.zeros(places.shape[1], dtype=torch.int64)
    for row, size in zip(places, shape, strict=False):
        keys.mul_(size).add_(row)
    return keys.unique().numel()


def _make_sparse(
    shape: list[int], num_sparse: int, count: int, num_different: int, dtype_name: str, is_coalesced: bool
) -> torch.Tensor:
    dtype = getattr(torch, dtype_name.removeprefix("torch."))
    places = torch.arange(count) % max(1, num_different)
    indices = torch.stack(torch.unravel_index(places, tuple(shape[:num_sparse])))
    values = torch.ones((count, *shape[num_sparse:]), dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)


def decode(value: object) -> object:
    """Plain data as arguments; tensors are made anew."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return _make_tensor(*value["tensor"])
    if "sparse" in value:
        return _make_sparse(*value["sparse"])
    if "dict" in value:
        return {name: decode(item) for name, item in value["dict"].items()}
    return getattr(torch, next(iter(value.values())).removeprefix("torch."))


def _make_tensor(shape: list[int], strides: list[int], dtype_name: str, requires_grad: bool) -> torch.Tensor:
    dtype = getattr(torch, dtype_name.removeprefix("torch."))
    tensor = torch.empty_strided(
        [1 if s == 0 else n for n, s in zip(shape, strides, strict=False)], strides, dtype=dtype
    )
    if dtype.is_floating_point:
        tensor.fill_(0.5)
        tensor.requires_grad_(requires_grad)
    else:
        tensor.zero_()
    return tensor.expand(shape) if 0 in strides else tensor


def bytes_of_signature(text: str) -> int:
    """Bytes of all tensors a call takes."""
    return _bytes_in(json.loads(text)[1])


def _bytes_in(value: object) -> int:
    if isinstance(value, dict) and "tensor" in value:
        shape, strides, dtype_name, _ = value["tensor"]
        elements = (
            1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False)) if all(shape) else 0
        )
        return elements * getattr(torch, dtype_name.removeprefix("torch.")).itemsize
    if isinstance(value, dict) and "sparse" in value:
        shape, num_sparse, count, _, dtype_name, _ = value["sparse"]
        item_bytes = math.prod(shape[num_sparse:]) * getattr(torch, dtype_name.removeprefix("torch.")).itemsize
        return count * (8 * num_sparse + item_bytes)
    items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return sum(_bytes_in(item) for item in items)


def flops_of_signature(text: str) -> float:
    """About how much arithmetic a call is: of products of matrices, convolutions and attention, which can be long."""
    name, args = json.loads(text)[:2]
    shapes = [value["tensor"][0] for value in args if isinstance(value, dict) and "tensor" in value]
    if ".convolution" in name and len(shapes) >= 2:
        picture, weight = shapes[-2:] if "backward" in name else shapes[:2]
        passes = 2 if "backward" in name else 1
        return 2.0 * passes * picture[0] * math.prod(picture[2:]) * math.prod(weight)
    if "scaled_dot_product" in name and len(shapes) >= 3:
        query, key = shapes[1:3] if "backward" in name else shapes[:2]
        return (10.0 if "backward" in name else 4.0) * math.prod(query) * key[-2]
    if name.split(".")[1] in ("mm", "addmm", "bmm", "baddbmm") and len(shapes) >= 2:
        left, right = shapes[-2:]
        return 2.0 * math.prod(left) * right[-1]
    return 0.0
