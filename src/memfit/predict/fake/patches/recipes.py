"""Recipes of torch that take another way for subclasses of tensors than for tensors: fake tensors take the usual one.

`one_hot` compares with all classes instead of writing ones; `ctc_loss` keeps the lengths where they are instead of
reading them. Both are decided in C++ by the type of the arguments (torch 2.13: Onehot.cpp, LossCTC.cpp).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

import torch
import torch.nn.functional as functional
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.fake.kernels.fast_path import stand_for_nested
from memfit.predict.fake.values.values import Shadow
from memfit.predict.observe.known_values import shadow_of

KEEPS_PADDING = "an encoder that leaves the padding out in evaluation (nested tensors) was followed with it"
Lengths = torch.Tensor | Sequence[int]


@contextlib.contextmanager
def usual_recipes(mode: FakeTensorMode, shadow: Shadow) -> Iterator[None]:
    """Within, `one_hot` and `ctc_loss` do with fake tensors what they do with others."""
    one_hot = functional.one_hot
    ctc_loss: Callable[..., torch.Tensor] = torch.ctc_loss

    def written(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if (
            not isinstance(tensor, FakeTensor)
            or num_classes < 1
            or tensor.dtype is not torch.int64
            or not tensor.numel()
        ):
            return one_hot(tensor, num_classes)
        rows = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
        return rows.scatter_(-1, tensor.unsqueeze(-1), 1)

    def by_lengths(
        scores: torch.Tensor, targets: torch.Tensor, input_lengths: Lengths, target_lengths: Lengths,
        blank: int = 0, reduction: int = 1, zero_infinity: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        if not isinstance(scores, FakeTensor):
            return ctc_loss(scores, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
        num_targets = scores.shape[1] if scores.dim() == 3 else 1
        room = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // max(1, num_targets))
        steps = _lengths(shadow, input_lengths, scores.shape[0], "inputs")
        lengths = _lengths(shadow, target_lengths, room, "targets", is_most=targets.dim() == 2)
        losses, _ = torch.ops.aten._ctc_loss.default(scores, targets, steps, lengths, blank, zero_infinity)
        if zero_infinity:
            losses = torch.where(losses == float("inf"), torch.zeros((), device=losses.device), losses)
        if reduction == 1:
            return (losses / torch.tensor(lengths, dtype=losses.dtype).to(losses.device).clamp_min(1)).mean()
        return losses.sum() if reduction == 2 else losses

    with patch.object(functional, "one_hot", written), patch.object(torch, "ctc_loss", by_lengths), _padded(shadow):
        yield


@contextlib.contextmanager
def _padded(shadow: Shadow) -> Iterator[None]:
    """Within, batches of different lengths keep their padding: fake tensors know no nested ones.

    `nn.TransformerEncoder` leaves the padding out in evaluation, where it is given a mask of it.
    """
    nested: Callable[..., torch.Tensor] = torch.ops.aten._nested_tensor_from_mask.default
    padded: Callable[..., torch.Tensor] = torch.Tensor.to_padded_tensor

    def with_padding(tensor: torch.Tensor, mask: torch.Tensor, mask_check: bool = True) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor):
            return nested(tensor, mask, mask_check)
        shadow.note("upper bound", KEEPS_PADDING)
        stand_for_nested(True)
        return tensor.clone()

    def as_it_is(tensor: torch.Tensor, padding: float, output_size: Sequence[int] | None = None) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor) or tensor.is_nested:
            return padded(tensor, padding, output_size)
        stand_for_nested(False)
        return tensor.clone()

    with (
        patch.object(torch, "_nested_tensor_from_mask", with_padding),
        patch.object(torch.Tensor, "to_padded_tensor", as_it_is),
    ):
        yield


def _lengths(shadow: Shadow, lengths: Lengths, room: int, name: str, *, is_most: bool = True) -> list[int]:
    """What a tensor of lengths holds; where it is not known, `room`, which may be the most that is possible."""
    if not isinstance(lengths, torch.Tensor):
        return [int(length) for length in lengths]
    known = shadow_of(lengths)
    if known is None:
        kind = "upper bound" if is_most else "assumed value"
        shadow.note(kind, f"the lengths of the {name} of a CTC loss are not known; each was taken as {room}")
        return [room] * lengths.numel()
    with _disable_current_modes():
        return [int(length) for length in known.flatten()]
