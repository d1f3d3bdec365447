"""Connectionist temporal classification, whose memory depends on the longest target: torch has no fake kernel for it.

The forward keeps one number for each sample, time step and state; there are two states for each symbol of the longest
target and one more (lengths come as numbers: patches/recipes.py). The backward makes as many once more while it works.
Read in torch 2.13 (LossCTC.cpp, LossCTC.cu); compared with real runs on the CPU and with torch 2.14 on the phantom GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload

from memfit.predict.fake.kernels.kernel_call import Inside
from memfit.predict.fake.kernels.workspaces import note_inside
from memfit.predict.observe.arguments import Arguments, Keywords, integers_at, tensor_at
from memfit.predict.observe.storage_tracker import Tracker

aten = torch.ops.aten
FORWARD, BACKWARD = aten._ctc_loss.default, aten._ctc_loss_backward.default
CHOICES = tuple(
    overload
    for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")
    if (packet := getattr(aten, name, None)) is not None
    for overload in (getattr(packet, each) for each in packet.overloads())
)
Note = Callable[[str, str], None]
Answer = Callable[[OpOverload, Arguments, Keywords, object], object]


def answers(note: Note) -> dict[OpOverload, Answer]:
    """What to answer instead of fake kernels."""

    def choose(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> bool:
        if tensor_at(args, 1).dtype is torch.int32 and tensor_at(args, 0).device.type == "cuda":
            note("library", "torch's own kernel is taken for the CTC loss; with targets of int32 it may be cuDNN's")
        return False

    def forward(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> tuple[torch.Tensor, torch.Tensor]:
        scores, lengths = tensor_at(args, 0), integers_at(args, 3)
        num_steps, samples = scores.shape[0], scores.shape[1:-1]
        states = 2 * max(lengths, default=0) + 1
        return scores.new_empty(samples), scores.new_empty((samples[0] if samples else 1, num_steps, states))

    def backward(func: OpOverload, args: Arguments, kwargs: Keywords, real: object) -> torch.Tensor:
        return torch.empty_like(tensor_at(args, 1), memory_format=torch.contiguous_format)

    return {**dict.fromkeys(CHOICES, choose), FORWARD: forward, BACKWARD: backward}


def note_states(tracker: Tracker, func: OpOverload, args: Arguments, result: object, start: int) -> None:
    """The states of the way back, while the gradient is made; a GPU is also sent lengths and where targets begin."""
    if func is BACKWARD:
        states = tensor_at(args, 6)
        sent = (8 * states.shape[0],) * 3 if states.device.type == "cuda" else ()
        note_inside(tracker, Inside(0, (*sent, states.nbytes), until=1), str(func), start, str(states.device))
