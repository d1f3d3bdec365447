"""Values of small tensors after a collective, as if all ranks were alike; both engines.

torch's fake process group moves nothing that matters: a sum keeps this rank's values, an exchange leaves its result
unset. Where the values that this rank sends are known, the result is known too once every other rank is assumed to
send the same: split sizes of an exchange of tokens, counters, shapes. The rules are by the names of the methods of a
process group (`torch._C._distributed_c10d.ProcessGroup`, read in torch 2.10 to 2.15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch
import torch.distributed as distributed

ALIKE = "every other rank is taken to send the same values as this one"
Known = list[torch.Tensor]
Tensors = torch.Tensor | Sequence[torch.Tensor]
Result = tuple[torch.Tensor, Sequence[torch.Tensor], Callable[[Known], torch.Tensor]]
"""What is written, what it is made of, and how."""
MOST_FLOATS = 1 << 14
"""More floats than these are not followed."""
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_followed(tensor: torch.Tensor) -> bool:
    """Integers, and few floats: more of those are activations or weights, whose values are not asked for."""
    return tensor.dtype in WHOLE or tensor.numel() <= MOST_FLOATS


def reduced(op: object, size: int) -> Callable[[Known], torch.Tensor]:
    """The reduction of the same values over all ranks."""
    name = str(op).rsplit(".", 1)[-1].upper()

    def make(known: Known) -> torch.Tensor:
        if name == "SUM":
            return known[0] * size
        if name == "PRODUCT":
            return known[0] ** size
        return torch.zeros_like(known[0]) if name == "BXOR" and size % 2 == 0 else known[0].clone()

    return make


def _op_of(options: object, rest: tuple[object, ...]) -> object:
    """The operator of a reduction: of its options, given itself, or a sum."""
    for value in (options, *rest):
        if isinstance(value, distributed.ReduceOp | distributed.ReduceOp.RedOpType):
            return getattr(value, "op", value)
        wrapped = getattr(value, "reduceOp", None)
        if wrapped is not None:
            return getattr(wrapped, "op", wrapped)
    return distributed.ReduceOp.SUM


def _listed(value: Tensors) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _all_reduce(
    size: int, rank: int, tensors: Tensors, options: object = None, *rest: object, **_: object
) -> Iterator[Result]:
    for tensor in _listed(tensors):
        yield tensor, [tensor], reduced(_op_of(options, rest), size)


def _broadcast(
    size: int, rank: int, tensors: Tensors, options: object = None, *_: object, **__: object
) -> Iterator[Result]:
    """Nothing changes for the rank that sends."""
    root = getattr(options, "rootRank", options if isinstance(options, int) else 0)
    for tensor in _listed(tensors) if root != rank else ():
        yield tensor, [tensor], lambda known: known[0].clone()


def _all_gather(
    size: int, rank: int, outputs: Sequence[Tensors], inputs: Tensors, *_: object, **__: object
) -> Iterator[Result]:
    nested = [outputs] if outputs and isinstance(outputs[0], torch.Tensor) else outputs
    for parts, source in zip(cast("Sequence[Sequence[torch.Tensor]]", nested), _listed(inputs), strict=False):
        for part in parts:
            yield part, [source], lambda known: known[0].clone()


def all_gather_base(
    size: int, rank: int, outputs: Tensors, inputs: Tensors, *_: object, **__: object
) -> Iterator[Result]:
    for output, source in zip(_listed(outputs), _listed(inputs), strict=True):
        yield output, [source], lambda known: known[0].reshape(-1).repeat(size)


def _scatter(
    size: int, rank: int, outputs: Tensors, inputs: Sequence[Sequence[torch.Tensor]], *_: object, **__: object
) -> Iterator[Result]:
    for output, parts in zip(_listed(outputs), inputs, strict=False):
        yield output, [parts[rank]], lambda known: known[0].clone()


def _reduce_scatter(
    size: int,
    rank: int,
    outputs: Tensors,
    inputs: Sequence[Sequence[torch.Tensor]],
    options: object = None,
    *rest: object,
    **_: object,
) -> Iterator[Result]:
    for output, parts in zip(_listed(outputs), inputs, strict=False):
        yield output, [parts[rank]], reduced(_op_of(options, rest), size)


def _reduce_scatter_base(
    size: int, rank: int, outputs: Tensors, inputs: Tensors, options: object = None, *rest: object, **_: object
) -> Iterator[Result]:
    for output, source in zip(_listed(outputs), _listed(inputs), strict=True):
        reduce = reduced(_op_of(options, rest), size)
        yield output, [source], lambda known, reduce=reduce: reduce([known[0].reshape(size, -1)[rank]])


def _all_to_all(
    size: int, rank: int, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *_: object, **__: object
) -> Iterator[Result]:
    for output in outputs:
        yield output, [inputs[rank]], lambda known, output=output: _rows(known[0].reshape(-1), output.numel())


def all_to_all_base(
    size: int,
    rank: int,
    output: torch.Tensor,
    source: torch.Tensor,
    out_splits: Sequence[int] = (),
    in_splits: Sequence[int] = (),
    *_: object,
    **__: object,
) -> Iterator[Result]:
    yield output, [source], lambda known: _exchanged(known[0], output, size, rank, out_splits, in_splits)


def _exchanged(
    sent: torch.Tensor,
    output: torch.Tensor,
    size: int,
    rank: int,
    out_splits: Sequence[int],
    in_splits: Sequence[int],
) -> torch.Tensor:
    """What arrives from each rank is what this one sends to itself, as long as what is expected from that rank."""
    mine = sent.split(list(in_splits))[rank] if in_splits else sent.chunk(size)[rank]
    rows = list(out_splits) if out_splits else [output.shape[0] // size] * size
    return torch.cat([_rows(mine, count) for count in rows])


def _rows(part: torch.Tensor, count: int) -> torch.Tensor:
    """These rows, over and over, until there are enough; zeros where there is none to repeat."""
    if not part.shape[0]:
        return part.new_zeros(count, *part.shape[1:])
    return part[torch.arange(count) % part.shape[0]]


def received(size: int, rank: int, tensors: Tensors, *_: object, **__: object) -> Iterator[Result]:
    """What another rank sends to this one alone is unknown."""
    for tensor in _listed(tensors):
        if tensor.is_cuda:
            yield tensor, [tensor.new_empty(0)], lambda known: known[0]


RULES: dict[str, Callable[..., Iterable[Result]]] = {
    "allreduce": _all_reduce, "allreduce_coalesced": _all_reduce, "reduce": _all_reduce, "broadcast": _broadcast,
    "allgather": _all_gather, "gather": _all_gather, "scatter": _scatter, "reduce_scatter": _reduce_scatter,
    "alltoall": _all_to_all, "recv": received, "recv_anysource": received,
    **dict.fromkeys(
        ("_allgather_base", "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced"),
        all_gather_base,
    ),
    **dict.fromkeys(
        (
            "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single",
            "reduce_scatter_single_coalesced",
        ),
        _reduce_scatter_base,
    ),
    **dict.fromkeys(("alltoall_base", "all_to_all_single"), all_to_all_base),
}  # fmt: skip
"""Some have other names from torch 2.14 on."""
