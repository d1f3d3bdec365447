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
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as distributed

from memfit.predict.observe.phase_and_module import tensors_anywhere
from memfit.predict.phantom.in_child.values import Values
from memfit.predict.ranks.torch_collective_values import (
    ALIKE,
    RULES,
    Known,
    Result,
    all_gather_base,
    all_to_all_base,
    is_followed,
    reduced,
)
from memfit.predict.ranks.torch_finished_work import OwningWork
from memfit.predict.ranks.torch_rank_listener import RankFacts

Note = Callable[[str, str], None]
R = TypeVar("R")


@contextlib.contextmanager
def carrying_values(values: Values, note: Note, facts: RankFacts) -> Iterator[None]:
    """Within, collectives give the values that they would if all ranks were alike."""
    carrier = Carrier(values, note, facts)
    group: Any = distributed.ProcessGroup
    with contextlib.ExitStack() as stack:
        for name, rule in {"send": _nothing_arrives, **RULES}.items():
            if hasattr(group, name):
                stack.enter_context(patch.object(group, name, carrier.wrapped(getattr(group, name), rule)))
        values.functional = carrier.functional
        stack.callback(setattr, values, "functional", None)
        yield


class Carrier:
    """Writes the results of collectives where their values are known, and forgets them where not."""

    def __init__(self, values: Values, note: Note, facts: RankFacts) -> None:
        self._values, self._note, self._facts = values, note, facts

    def wrapped(
        self, original: Callable[..., R], rule: Callable[..., Iterable[Result]]
    ) -> Callable[..., R | OwningWork]:
        """A method of the process group that also carries values."""

        def call(group: distributed.ProcessGroup, *args: object, **kwargs: object) -> R | OwningWork:
            size = group.size()
            self._facts.note_communicator(group)
            with torch._C.DisableTorchFunction(), torch.no_grad():
                results = [self._found(*result) for result in rule(size, group.rank(), *args, **kwargs)]
            work = original(group, *args, **kwargs)
            self._put(results, size)
            tensors = list(tensors_anywhere(args))
            return OwningWork(tensors, list(tensors_anywhere(args[0]))) if work is not None and tensors else work

        return call

    def functional(self, name: str, args: tuple[object, ...], result: object) -> bool:
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
        if any(part is None for part in known) or not is_followed(target):
            return target, None
        return target, make([part for part in known if part is not None]).to(target.dtype)

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not tensor.is_cuda:
            return tensor if is_followed(tensor) else None
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


def _nothing_arrives(*args: object, **kwargs: object) -> Iterator[Result]:
    """Sending changes nothing here."""
    yield from ()


# ---- functional collectives: given their result, then the operator's arguments ---------------------------------------


def _group(name: str) -> tuple[int, int]:
    """Size of a group and the rank in it, by its name."""
    resolve: Any = distributed.distributed_c10d._resolve_process_group  # pyright: ignore[reportPrivateImportUsage]
    group = resolve(name)
    return group.size(), group.rank()


def _functional_reduce(result: torch.Tensor, source: torch.Tensor, op: str, group: str) -> tuple[int, list[Result]]:
    size, _ = _group(group)
    return size, [(result, [source], reduced(op, size))]


def _functional_gather(result: torch.Tensor, source: torch.Tensor, size: int, group: str) -> tuple[int, list[Result]]:
    return size, list(all_gather_base(size, 0, result, source))


def _functional_exchange(
    result: torch.Tensor, source: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int], group: str
) -> tuple[int, list[Result]]:
    size, rank = _group(group)
    return size, list(all_to_all_base(size, rank, result, source, out_splits, in_splits))


def _functional_scatter(
    result: torch.Tensor, source: torch.Tensor, op: str, size: int, group: str
) -> tuple[int, list[Result]]:
    _, rank = _group(group)
    reduce = reduced(op, size)
    return size, [(result, [source], lambda known: reduce([known[0].reshape(size, -1)[rank]]))]


def _functional_broadcast(
    result: torch.Tensor, source: torch.Tensor, root: int, group: str
) -> tuple[int, list[Result]]:
    size, rank = _group(group)
    return 1 if root == rank else size, [(result, [source], lambda known: known[0].clone())]


def _waited(result: torch.Tensor, source: torch.Tensor) -> tuple[int, list[Result]]:
    return 1, [(result, [source], lambda known: known[0].clone())]


FUNCTIONAL: dict[str, Callable[..., tuple[int, list[Result]]]] = {
    "all_reduce": _functional_reduce, "all_gather_into_tensor": _functional_gather,
    "all_to_all_single": _functional_exchange, "reduce_scatter_tensor": _functional_scatter,
    "broadcast": _functional_broadcast, "wait_tensor": _waited,
}  # fmt: skip
