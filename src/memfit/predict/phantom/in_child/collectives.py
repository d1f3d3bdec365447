"""Collectives of rank 0 of N on the phantom GPU: integers as if all ranks were alike.

torch's fake process group moves nothing that matters: a sum keeps this rank's values, an exchange leaves its result
unset. Where the values that this rank sends are known (small integers, masks, and what is computed from them), the
result is known too once every other rank is assumed to send the same: split sizes of an exchange of tokens, counters,
shapes, pickled objects. The methods of the process group are wrapped (`torch._C._distributed_c10d.ProcessGroup`, read
in torch 2.10 to 2.15), and the functional collectives (`torch.ops._c10d_functional`) are answered by their names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as distributed

from memfit.predict.phantom.in_child.values import MOST_FLOATS, WHOLE, Values

ALIKE = "every other rank is taken to send the same values as this one"
Note = Callable[[str, str], None]
Known = list[torch.Tensor]
Result = tuple[torch.Tensor, Sequence[torch.Tensor], Callable[[Known], torch.Tensor]]
"""What is written, what it is made of, and how."""


@contextlib.contextmanager
def carrying_values(values: Values, note: Note) -> Iterator[None]:
    """Within, collectives give the values that they would if all ranks were alike."""
    carrier = Carrier(values, note)
    group: Any = distributed.ProcessGroup
    with contextlib.ExitStack() as stack:
        for name, rule in RULES.items():
            if hasattr(group, name):
                stack.enter_context(patch.object(group, name, carrier.wrapped(getattr(group, name), rule)))
        values.functional = carrier.functional
        stack.callback(setattr, values, "functional", None)
        yield


class Carrier:
    """Writes the results of collectives where their values are known, and forgets them where not."""

    def __init__(self, values: Values, note: Note) -> None:
        self._values, self._note = values, note

    def wrapped(self, original: Any, rule: Callable[..., Iterable[Result]]) -> Any:
        """A method of the process group that also carries values."""

        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            size = group.size()
            with torch._C.DisableTorchFunction(), torch.no_grad():
                results = [self._found(*result) for result in rule(size, group.rank(), *args, **kwargs)]
            work = original(group, *args, **kwargs)
            self._put(results, size)
            return work

        return call

    def functional(self, name: str, args: Any, result: Any) -> bool:
        """A functional collective was called: carry its values. False for any other function."""
        rule = FUNCTIONAL.get(name)
        if rule is None:
            return False
        with torch._C.DisableTorchFunction(), torch.no_grad():
            size, results = rule(result, *args)
            self._put([self._found(*part) for part in results], size)
        return True

    def _found(
        self, target: torch.Tensor, sources: Sequence[torch.Tensor], make: Callable[[Known], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The target and its values; None where a source is unknown, or too large to be followed."""
        known = [self._known(source) for source in sources]
        if any(part is None for part in known) or not _is_followed(target):
            return target, None
        return target, make([part for part in known if part is not None]).to(target.dtype)

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not tensor.is_cuda:
            return tensor if _is_followed(tensor) else None
        return self._values.twins.view(tensor)

    def _put(self, results: list[tuple[torch.Tensor, torch.Tensor | None]], size: int) -> None:
        assumed = ALIKE if size > 1 else ""
        for target, found in results:
            if found is None:
                if target.is_cuda:
                    self._values.twins.forget(target)
            elif target.is_cuda:
                self._values.twins.keep(target, found.reshape(target.shape), assumed)
            else:
                target.copy_(found.reshape(target.shape))
                if assumed:
                    self._note("ranks", assumed)


def _is_followed(tensor: torch.Tensor) -> bool:
    """Integers, and few floats: more of those are activations or weights, whose values are not asked for."""
    return tensor.dtype in WHOLE or tensor.numel() <= MOST_FLOATS


# ---- rules: the methods of a process group, by their first arguments -------------------------------------------------


def _reduced(op: object, size: int) -> Callable[[Known], torch.Tensor]:
    """The reduction of the same values over all ranks."""
    name = str(op).rsplit(".", 1)[-1].upper()

    def make(known: Known) -> torch.Tensor:
        if name == "SUM":
            return known[0] * size
        if name == "PRODUCT":
            return known[0] ** size
        return torch.zeros_like(known[0]) if name == "BXOR" and size % 2 == 0 else known[0].clone()

    return make


def _op_of(options: Any, rest: tuple[Any, ...]) -> Any:
    """The operator of a reduction: of its options, given itself, or a sum."""
    for value in (options, *rest):
        if isinstance(value, distributed.ReduceOp | distributed.ReduceOp.RedOpType):
            return getattr(value, "op", value)
        if hasattr(value, "reduceOp"):
            return getattr(value.reduceOp, "op", value.reduceOp)
    return distributed.ReduceOp.SUM


def _listed(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _all_reduce(
    size: int, rank: int, tensors: object, options: object = None, *rest: object, **_: object
) -> Iterator[Result]:
    for tensor in _listed(tensors):
        yield tensor, [tensor], _reduced(_op_of(options, rest), size)


def _broadcast(
    size: int, rank: int, tensors: object, options: object = None, *_: object, **__: object
) -> Iterator[Result]:
    """Nothing changes for the rank that sends."""
    root = getattr(options, "rootRank", options if isinstance(options, int) else 0)
    for tensor in _listed(tensors) if root != rank else ():
        yield tensor, [tensor], lambda known: known[0].clone()


def _all_gather(size: int, rank: int, outputs: Any, inputs: Any, *_: Any, **__: Any) -> Iterator[Result]:
    nested = [outputs] if outputs and isinstance(outputs[0], torch.Tensor) else outputs
    for parts, source in zip(nested, _listed(inputs), strict=False):
        for part in parts:
            yield part, [source], lambda known: known[0].clone()


def _all_gather_base(
    size: int, rank: int, outputs: object, inputs: object, *_: object, **__: object
) -> Iterator[Result]:
    for output, source in zip(_listed(outputs), _listed(inputs), strict=True):
        yield output, [source], lambda known: known[0].reshape(-1).repeat(size)


def _scatter(size: int, rank: int, outputs: Any, inputs: Any, *_: Any, **__: Any) -> Iterator[Result]:
    for output, parts in zip(_listed(outputs), inputs, strict=False):
        yield output, [parts[rank]], lambda known: known[0].clone()


def _reduce_scatter(
    size: int, rank: int, outputs: Any, inputs: Any, options: Any = None, *rest: Any, **_: Any
) -> Iterator[Result]:
    for output, parts in zip(_listed(outputs), inputs, strict=False):
        yield output, [parts[rank]], _reduced(_op_of(options, rest), size)


def _reduce_scatter_base(
    size: int, rank: int, outputs: object, inputs: object, options: object = None, *rest: object, **_: object
) -> Iterator[Result]:
    for output, source in zip(_listed(outputs), _listed(inputs), strict=True):
        reduce = _reduced(_op_of(options, rest), size)
        yield output, [source], lambda known, reduce=reduce: reduce([known[0].reshape(size, -1)[rank]])


def _all_to_all(size: int, rank: int, outputs: Any, inputs: Any, *_: Any, **__: Any) -> Iterator[Result]:
    for output in outputs:
        yield output, [inputs[rank]], lambda known, output=output: _rows(known[0].reshape(-1), output.numel())


def _all_to_all_base(
    size: int, rank: int, output: Any, source: Any, out_splits: Any = (), in_splits: Any = (), *_: Any, **__: Any
) -> Iterator[Result]:
    yield output, [source], lambda known: _exchanged(known[0], output, size, rank, out_splits, in_splits)


def _exchanged(
    sent: torch.Tensor, output: torch.Tensor, size: int, rank: int, out_splits: Any, in_splits: Any
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


def _received(size: int, rank: int, tensors: object, *_: object, **__: object) -> Iterator[Result]:
    """What another rank sends to this one alone is unknown."""
    for tensor in _listed(tensors):
        if tensor.is_cuda:
            yield tensor, [tensor.new_empty(0)], lambda known: known[0]


RULES: dict[str, Callable[..., Iterable[Result]]] = {
    "allreduce": _all_reduce, "allreduce_coalesced": _all_reduce, "reduce": _all_reduce, "broadcast": _broadcast,
    "allgather": _all_gather, "gather": _all_gather, "scatter": _scatter, "reduce_scatter": _reduce_scatter,
    "alltoall": _all_to_all, "recv": _received, "recv_anysource": _received,
    **dict.fromkeys(
        ("_allgather_base", "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced"),
        _all_gather_base,
    ),
    **dict.fromkeys(
        (
            "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single",
            "reduce_scatter_single_coalesced",
        ),
        _reduce_scatter_base,
    ),
    **dict.fromkeys(("alltoall_base", "all_to_all_single"), _all_to_all_base),
}  # fmt: skip
"""Some have other names from torch 2.14 on."""


# ---- functional collectives: given their result, then the operator's arguments ---------------------------------------


def _group(name: str) -> tuple[int, int]:
    """Size of a group and the rank in it, by its name."""
    resolve: Any = distributed.distributed_c10d._resolve_process_group  # pyright: ignore[reportPrivateImportUsage]
    group = resolve(name)
    return group.size(), group.rank()


def _functional_reduce(result: Any, source: Any, op: str, group: str) -> tuple[int, list[Result]]:
    size, _ = _group(group)
    return size, [(result, [source], _reduced(op, size))]


def _functional_gather(result: object, source: object, size: int, group: str) -> tuple[int, list[Result]]:
    return size, list(_all_gather_base(size, 0, result, source))


def _functional_exchange(
    result: object, source: object, out_splits: object, in_splits: object, group: str
) -> tuple[int, list[Result]]:
    size, rank = _group(group)
    return size, list(_all_to_all_base(size, rank, result, source, out_splits, in_splits))


def _functional_scatter(result: Any, source: Any, op: str, size: int, group: str) -> tuple[int, list[Result]]:
    _, rank = _group(group)
    reduce = _reduced(op, size)
    return size, [(result, [source], lambda known: reduce([known[0].reshape(size, -1)[rank]]))]


def _functional_broadcast(result: Any, source: Any, root: int, group: str) -> tuple[int, list[Result]]:
    size, rank = _group(group)
    return 1 if root == rank else size, [(result, [source], lambda known: known[0].clone())]


def _waited(result: Any, source: Any) -> tuple[int, list[Result]]:
    return 1, [(result, [source], lambda known: known[0].clone())]


FUNCTIONAL: dict[str, Callable[..., tuple[int, list[Result]]]] = {
    "all_reduce": _functional_reduce, "all_gather_into_tensor": _functional_gather,
    "all_to_all_single": _functional_exchange, "reduce_scatter_tensor": _functional_scatter,
    "broadcast": _functional_broadcast, "wait_tensor": _waited,
}  # fmt: skip
