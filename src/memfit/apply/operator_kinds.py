"""Facts about operators of torch: what one writes into, whether it draws, whether it makes the same when run again.

They are asked for at every operator of every forward, so that what depends on the operator alone is read once. The
storage of a tensor, and which of torch's operators change something without saying so, were read in torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from memfit.model.tensors_in_arguments import FLAT, leaves_of

BATCH_NORMS = frozenset({"aten::native_batch_norm"})
"""Change running statistics without saying so (read in torch 2.13)."""
KEPT = re.compile(r"aten::(set_|resize|cudnn_batch_norm|miopen_batch_norm|_cudnn_rnn|miopen_rnn|_cudnn_init_dropout)")
"""Change what they are given, or a state of their own, without saying so: never run again."""
SHAPES_ONLY = frozenset({"aten::empty_like", "aten::empty.memory_format", "aten::empty_strided", "aten::new_empty"})
"""Read nothing but the shape of what they are given."""
storage_address: Callable[[torch.Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]
"""Where torch's own record of a storage lies (read in torch 2.13)."""
TENSORS = (torch.Tensor, torch.nn.Parameter)


class OperatorKind:
    """What is true of every call of one operator."""

    __slots__ = (
        "draws", "func", "is_batch_norm", "is_detach", "is_mutable", "may_repeat", "name", "shapes_only",
        "takes_a_tensor_first",
    )  # fmt: skip

    def __init__(self, func: torch._ops.OpOverload) -> None:
        self.func, self.name = func, func.name()
        self.is_mutable = bool(func._schema.is_mutable)
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        """Whether it reads torch's random generator."""
        self.may_repeat = self.name.startswith("aten::") and not KEPT.match(self.name)
        """What operators of others do is unknown."""
        self.is_batch_norm, self.is_detach = self.name in BATCH_NORMS, self.name == "aten::detach"
        self.shapes_only = self.name in SHAPES_ONLY
        arguments = func._schema.arguments
        self.takes_a_tensor_first = bool(arguments) and isinstance(arguments[0].type, torch.TensorType)


_kinds: dict[int, OperatorKind] = {}


def kind_of(func: torch._ops.OpOverload) -> OperatorKind:
    """What is known of an operator; it is held, so that its place in memory stays its own."""
    found = _kinds.get(id(func))
    if found is None:
        found = _kinds[id(func)] = OperatorKind(func)
    return found


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but a window on its storage."""
    if type(tensor) not in TENSORS or tensor.layout != torch.strided:
        return False
    return not tensor.is_conj() and not tensor.is_neg() and not tensor.is_quantized


def tensors_of_call(args: tuple[object, ...], kwargs: dict[str, object]) -> list[torch.Tensor]:
    """The tensors among the arguments of an operator."""
    return [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def is_constant(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether nothing that a call makes needs a gradient."""
    if not torch.is_grad_enabled() or kind_of(func).is_detach:
        return True
    first = args[0] if args else None
    if isinstance(first, torch.Tensor) and first.requires_grad:  # so it is nearly always
        return False
    return not any(tensor.requires_grad for tensor in tensors_of_call(args, kwargs))


def can_be_repeated(kind: OperatorKind, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether an operator, run again with the same arguments, makes the same."""
    if not kind.may_repeat:
        return False
    for leaf in args if is_flat(args, kwargs) else leaves_of((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            if not is_plain(leaf) or (kind.draws and leaf.device.type != "cpu"):
                return False
        elif isinstance(leaf, torch.Generator):
            return False
    return True


def is_flat(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether all tensors among some arguments are arguments themselves, as it nearly always is."""
    if kwargs:
        return False
    return all(type(leaf) in FLAT or (type(leaf) is list and _numbers_only(leaf)) for leaf in args)


def _numbers_only(values: list[object]) -> bool:
    return all(type(value) is int for value in values)


def fresh(result: object, known: set[int]) -> list[torch.Tensor]:
    """The first tensor on every storage that an operator made."""
    if isinstance(result, torch.Tensor):
        return [result] if is_plain(result) and storage_address(result) not in known else []
    found: dict[int, torch.Tensor] = {}
    for leaf in leaves_of(result):
        if isinstance(leaf, torch.Tensor) and is_plain(leaf):
            address = storage_address(leaf)
            if address not in known:
                found.setdefault(address, leaf)
    return list(found.values())


def empty_like(like: torch.Tensor) -> tuple[torch._ops.OpOverload, list[object], dict[str, object]]:
    """A call that makes an empty tensor of the same shape without reading anything."""
    arguments: list[object] = [list(like.size()), list(like.stride())]
    return torch.ops.aten.empty_strided.default, arguments, {"dtype": like.dtype, "device": like.device}


def without_statistics(kind: OperatorKind, args: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of an operator for its second run: a batch norm in training must not move its statistics twice."""
    if kind.is_batch_norm and len(args) > 5 and args[5]:
        return (*args[:3], None, None, *args[5:])
    return args
