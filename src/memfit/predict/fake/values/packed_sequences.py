"""Packed sequences on fake tensors: lengths that torch reads from memory are known values.

`pack_padded_sequence` and what follows it decide shapes by the values of a small CPU tensor, the number of texts at
every place. Those values are kept beside the fake tensor. torch's own recipes for recurrent layers and for the
gradient of packing are run with a real tensor in its place; padding, which also writes lengths into memory, is
written out again here, step by step as torch takes it (read in torch 2.13). On a GPU the layers are one call of
cuDNN (`fake/kernels/recurrent.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from memfit.predict.fake.kernels.kernel_call import Inside
from memfit.predict.fake.kernels.workspaces import note_inside
from memfit.predict.gpu_rules.packing import blocks_of, copied_bytes
from memfit.predict.observe.arguments import Arguments, several, tensor_at
from memfit.predict.observe.known_values import integers_of, keep_shadow, shadow_of
from memfit.predict.observe.storage_tracker import Tracker

aten = torch.ops.aten
PACK, PAD, UNPACK = (
    aten._pack_padded_sequence.default,
    aten._pad_packed_sequence.default,
    aten._pack_padded_sequence_backward.default,
)
LAYERS = (aten.lstm.data, aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data)
_registered: list[torch.library.Library] = []


def register_packed() -> None:
    """Send what reads lengths from memory to functions that know them; real tensors go the way they would go."""
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    for func, run in RECIPES.items():
        for key in ("AutogradCPU", "AutogradCUDA"):
            if key == "AutogradCPU" or func not in LAYERS:
                library.impl(func._schema.name + _overload(func), run, key)
    _registered.append(library)


def _overload(func: OpOverload) -> str:
    return f".{func._schema.overload_name}" if func._schema.overload_name else ""


def pack(source: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A packed batch; where lengths are not known, every text is as long as the longest can be."""
    if lengths.device.type != "cpu":
        found = f"{lengths.dim()}D {lengths.device} tensor"
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got {found}")
    texts, places = source.shape[:2] if batch_first else (source.shape[1], source.shape[0])
    known = shadow_of(lengths)
    with _disable_current_modes():
        values = torch.full((texts,), places) if known is None else known
        _, batch_sizes = PACK(torch.zeros(places, texts, dtype=torch.bool), values, False)
        num_rows = int(batch_sizes.sum())
    fake_sizes = torch.empty(len(batch_sizes), dtype=torch.int64, device="cpu")
    keep_shadow(fake_sizes, batch_sizes)
    return source.new_empty((num_rows, *source.shape[2:])), fake_sizes


def _with_real_sizes(func: OpOverload, place: int) -> Callable[..., object]:
    """torch's own recipe, with the real numbers of texts at this place of its arguments."""

    def run(*args: object) -> object:
        kept = shadow_of(args[place])
        changed = args if kept is None else (*args[:place], kept, *args[place + 1 :])
        return _own_recipe(func, changed)

    return run


def _own_recipe(func: OpOverload, args: Arguments) -> object:
    """torch's compiled recipe; `decompose` would take one written for its compiler (torch 2.13)."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> Sequence[torch.Tensor]:
    """Blocks of places are copied into a full tensor, one after the other."""
    if not isinstance(batch_sizes, FakeTensor):
        return several(_own_recipe(PAD, (data, batch_sizes, batch_first, padding_value, total_length)))
    sizes = integers_of(batch_sizes)
    if 0 < total_length < len(sizes):
        longest = f"length {len(sizes)} and total_length={total_length}"
        raise RuntimeError(
            f"Expected total_length to be at least the length of the longest sequence, but got {longest}"
        )
    shape = (total_length if total_length > 0 else len(sizes), sizes[0], *data.shape[1:])
    output = torch.full(shape, padding_value, dtype=data.dtype, device=data.device)
    row = place = 0
    for places, texts in blocks_of(sizes):
        rows = data.narrow(0, row, places * texts)
        part = output.narrow(0, place, places).narrow(1, 0, texts)
        part.copy_(rows.view(places, texts, *data.shape[1:]))
        row, place = row + places * texts, place + places
    return (output.transpose(0, 1) if batch_first else output), _lengths(sizes)


def _lengths(sizes: list[int]) -> torch.Tensor:
    """How long every text is."""
    fake = torch.empty(sizes[0], dtype=torch.int64, device="cpu")
    with _disable_current_modes():
        keep_shadow(fake, torch.tensor([sum(size > text for size in sizes) for text in range(sizes[0])]))
    return fake


RECIPES: dict[OpOverload, Callable[..., object]] = {
    PAD: _pad,
    UNPACK: _with_real_sizes(UNPACK, 2),
    **{layer: _with_real_sizes(layer, 1) for layer in LAYERS},
}


def answer_recipe(func: OpOverload, args: Arguments, kwargs: object, real: object) -> object:
    """The same, where autograd does not take operators apart (inference mode)."""
    return RECIPES[func](*args)


def note_packing(tracker: Tracker, func: OpOverload, args: Arguments, result: object, start: int) -> None:
    """Blocks that are copied live until they are joined."""
    if func is not PACK:
        return
    source = tensor_at(args, 0).transpose(0, 1) if args[2] else tensor_at(args, 0)
    sizes = integers_of(several(result)[1])
    copies = copied_bytes(source.shape, source.stride(), sizes, source.element_size())
    if copies:
        note_inside(tracker, Inside(1, copies, until=2), str(func), start, str(source.device))
