"""Operators of which it is known that they take other memory than is seen, and not how much: a prediction says so.

Found by running them on the phantom GPU (python -m benchmarks.accuracy.phantom_operators).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload

from memfit.predict.child.messages import UNSEEN
from memfit.predict.fake.kernels.reductions import TRANSFORMS
from memfit.predict.gpu_rules.sorting import MOST_SMALL, is_sort_known
from memfit.predict.observe.arguments import Arguments, integer_at, tensor_at
from memfit.predict.observe.storage_tracker import Tracker

aten = torch.ops.aten
NAMES = (
    "_unique2", "unique_consecutive", "unique_dim", "isin", "bincount", "histc", "histogram", "nanmedian", "mode",
    "masked_scatter", "masked_scatter_", "masked_select_backward", "_pdist_backward", "im2col", "col2im",
    "soft_margin_loss_backward", "affine_grid_generator",
    "linalg_inv_ex", "_linalg_solve_ex", "linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet",
    "linalg_cholesky_ex", "cholesky_inverse", "linalg_qr", "linalg_lstsq", "_linalg_svd", "_linalg_eigh", "linalg_eig",
    "linalg_ldl_factor_ex", "linalg_matrix_exp", "linalg_householder_product", "ormqr", "geqrf",
)  # fmt: skip
NOT_FOLLOWED = {
    overload
    for name in NAMES
    if (packet := getattr(aten, name, None)) is not None
    for overload in (getattr(packet, each) for each in packet.overloads())
}
GRADIENT_BY_ZEROS = {aten.cumprod.default, aten.prod.default, aten.prod.dim_int}
"""Their backwards ask where the input is zero; of a fake tensor, torch takes a path that serves zeros or none."""
WORK_AREA = "cuFFT's work area is one copy of the complex data; it may be none, or more for lengths with large primes"


def note_gradient_by_zeros(
    note: Callable[[str, str], None], tracker: Tracker, func: OpOverload, args: Arguments, result: object, start: int
) -> None:
    """List a call, on any device, whose gradient takes another path on fake tensors."""
    if func in GRADIENT_BY_ZEROS and tensor_at(args, 0).requires_grad:
        name = func._schema.name.removeprefix("aten::")
        note(
            UNSEEN, f"the gradient of {name} is followed as if zeros were possible, which takes more than without them"
        )


def note_not_followed(note: Callable[[str, str], None], func: OpOverload, args: Sequence[object]) -> None:
    """List a call on a GPU whose memory is not known, and on any device one whose gradient is not."""
    if func in GRADIENT_BY_ZEROS and tensor_at(args, 0).requires_grad:
        name = func._schema.name.removeprefix("aten::")
        note(
            UNSEEN, f"the gradient of {name} is followed as if zeros were possible, which takes more than without them"
        )
    if not args or not isinstance(args[0], torch.Tensor) or args[0].device.type != "cuda":
        return
    if func in TRANSFORMS:
        note(UNSEEN, WORK_AREA)
    elif func in NOT_FOLLOWED or _sorts_another_way(func, args) or _counts_words(func, args):
        name = func._schema.name.removeprefix("aten::")
        note(UNSEEN, f"{name} takes memory inside on a GPU that fake tensors do not show; --engine phantom sees it")


def _sorts_another_way(func: object, args: Sequence[object]) -> bool:
    """Long slices of half precision, very many or very long ones, and long lists of the largest."""
    given = tensor_at(args, 0)
    if not given.dim():
        return False
    if func is aten.topk.default:
        return integer_at(args, 1) > MOST_SMALL
    if func not in (aten.sort.default, aten.sort.stable):
        return False
    place = 1 if func is aten.sort.default else 2
    length = given.shape[integer_at(args, place) if len(args) > place else -1]
    num_slices = given.numel() // max(1, length)
    return not is_sort_known(num_slices, length, item_bytes=given.element_size())


def _counts_words(func: object, args: Sequence[object]) -> bool:
    """The gradient of an embedding that is scaled by how often a word was used."""
    return func is aten.embedding_dense_backward.default and bool(args[4])
