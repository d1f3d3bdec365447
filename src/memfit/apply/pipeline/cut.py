"""Stages of a live model: the model's own forward, entered at one module and left at another.

A stage runs the whole forward of the model, but computes only its own part. What comes before its first module runs
on the meta device, where tensors have no memory; at that module the received tensor takes the place of its input; at
the first module of the next stage the forward is left, with that module's input as the result. So any code between
modules works, without tracing. What a cut cannot carry is found by running the model once on the meta device, and
refused by name: weights that two stages share, modules that two stages call, and tensors beside the one that is sent
which a later stage reads.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.errors import UsageError
from memfit.version import PACKAGE_FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """What belongs to each stage, and what is sent between them."""

    starts: tuple[str, ...]
    """The first module of every stage but the first."""
    parameters: tuple[tuple[str, ...], ...]
    """Names of the parameters and buffers of every stage."""
    inputs: tuple[torch.Tensor, ...]
    """The tensor that every stage gets, on the meta device."""
    output: torch.Tensor
    """What the last one returns, on the meta device."""

    @property
    def num_stages(self) -> int:
        """How many there are."""
        return len(self.starts) + 1


class _Left(Exception):
    """The forward has come to the next stage; carries what that one gets."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        super().__init__("left")


class _Reads(TorchDispatchMode):
    """Which stage makes and reads each tensor, while the model runs on the meta device."""

    def __init__(self, named: dict[str, torch.Tensor], given: torch.Tensor) -> None:
        super().__init__()
        self.stage = 0
        self.inside: list[str] = []
        """The modules that are running, outermost first."""
        self.readers: dict[str, set[int]] = {name: set() for name in named}
        """By the name of a parameter or buffer: the stages that read it."""
        self.carried: dict[str, None] = {}
        """Tensors that a later stage reads beside the one that it is sent, in words."""
        self.sent: torch.Tensor | None = None
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._made: dict[int, tuple[torch.Tensor, int, str]] = {id(given): (given, 0, "nothing: it is the input")}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        for tensor in _tensors_in((args, kwargs or {})):
            self._note_read(tensor, func)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors_in(result):
            self._made.setdefault(id(tensor), (tensor, self.stage, self.inside[-1] if self.inside else "the model"))
        return result

    def _note_read(self, tensor: torch.Tensor, func: object) -> None:
        name = self._names.get(id(tensor))
        if name is not None:
            self.readers[name].add(self.stage)
        _, stage, maker = self._made.get(id(tensor), (tensor, self.stage, ""))
        if stage < self.stage and tensor is not self.sent:
            reader = self.inside[-1] if self.inside else "the model"
            shape = " x ".join(map(str, tensor.shape)) or "a number"
            self.carried[f"the result of {maker} ({shape}), read in {reader} by {func}{_own_line()}"] = None


def _own_line() -> str:
    """' at model.py:24': the innermost line that is neither torch's nor memfit's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not _is_library(name):
            return f" at {name.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))


def find_stages(model: nn.Module, starts: Sequence[str], micro_batch: torch.Tensor) -> StageParts:
    """Run the model once on the meta device and say what each stage holds and gets; refuse what cannot be cut."""
    modules = _modules_at(model, starts)
    named = _all_on_meta(model)
    inputs = [on_meta(micro_batch, keep_grad=False)]
    reads = _Reads(named, inputs[0])
    is_start = {module: index for index, module in enumerate(modules, start=1)}

    def enter(path: str, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        reads.inside.append(path or "the model")
        index = is_start.get(module, 0)
        if index:
            if index != reads.stage + 1:
                _refuse_order(starts, index, reads.stage)
            reads.stage, reads.sent = index, sent_tensor(args, kwargs, path)
            inputs.append(reads.sent)

    def leave(module: nn.Module, args: object, result: object) -> None:
        reads.inside.pop()

    with ExitStack() as stack:
        for path, module in model.named_modules():
            hook = partial(enter, path)
            stack.callback(module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(reads)
        output = _without_values(model, named, inputs[0])
    if reads.stage != len(starts):
        raise UsageError(
            "the model never came to this stage", found=starts[reads.stage], hint="cut at modules it calls"
        )
    _refuse_carried(reads.carried, starts)
    _refuse_shared(model, reads.readers, starts)
    return StageParts(
        starts=tuple(starts), parameters=_owned(reads.readers, len(starts) + 1), inputs=tuple(map(detached, inputs)),
        output=detached(_one_tensor(output, "the model")),
    )  # fmt: skip


def _without_values(model: nn.Module, named: dict[str, torch.Tensor], given: torch.Tensor) -> object:
    """The model on the meta device; one whose forward asks for values is refused, with the line."""
    try:
        return functional_call(model, named, (given,), tie_weights=False)
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_library(f.filename)]
        line = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "unknown"
        what = f"the forward of the model asks for values at {line}, and a stage runs what comes before it without any"
        hint = "no .item(), tolist() or branch on a tensor in front of the last cut"
        raise UsageError(what, found=str(error).splitlines()[0], hint=hint) from None


_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, PACKAGE_FOLDER + os.sep, "<")


def _is_library(name: str) -> bool:
    """Whether a file is torch's or memfit's own, whatever the folders above a user's file are called."""
    return name.startswith(_LIBRARIES)


def _owned(readers: dict[str, set[int]], num_stages: int) -> tuple[tuple[str, ...], ...]:
    """Names by stage; what nothing reads goes with the rest of its module, or to the first stage."""
    of_module: dict[str, int] = {}
    for name, stages in readers.items():
        if stages:
            of_module.setdefault(name.rpartition(".")[0], min(stages))
    found: list[list[str]] = [[] for _ in range(num_stages)]
    for name, stages in readers.items():
        found[min(stages) if stages else of_module.get(name.rpartition(".")[0], 0)].append(name)
    return tuple(map(tuple, found))


class StageModule(nn.Module):
    """One stage: the model's forward from one cut to the next."""

    def __init__(self, model: nn.Module, parts: StageParts, index: int) -> None:
        super().__init__()
        self._model = [model]
        """In a list, so that only this stage's own parameters are registered here."""
        self._parts, self._index = parts, index
        own = dict(_tensors_of(model))
        for name in parts.parameters[index]:
            tensor = own[name]
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name.replace(".", "/"), tensor)
            else:
                self.register_buffer(name.replace(".", "/"), tensor)
        self._foreign = {
            name: on_meta(tensor, keep_grad=False)
            for name, tensor in own.items()
            if name not in set(parts.parameters[index])
        }

    def forward(self, received: torch.Tensor) -> torch.Tensor:
        """From the received tensor to the one that is sent, or the model's own result."""
        try:
            with self._entered(received) as given:
                result = functional_call(self._model[0], self._foreign, (given,), tie_weights=False)
        except _Left as left:
            return left.tensor
        return _one_tensor(result, "the model")

    @contextmanager
    def _entered(self, received: torch.Tensor) -> Iterator[torch.Tensor]:
        """The input of the whole model, with hooks where this stage begins and ends."""
        starts, index = self._parts.starts, self._index
        with_grad = torch.is_grad_enabled()

        def begin(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            torch.set_grad_enabled(with_grad)
            return put_in(args, kwargs, received, starts[index - 1])

        def leave(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            raise _Left(sent_tensor(args, kwargs, starts[index]))

        model = self._model[0]
        with ExitStack() as stack:
            stack.callback(torch.set_grad_enabled, with_grad)
            if index < len(starts):
                _hook(stack, model.get_submodule(starts[index]), leave)
            if index == 0:
                yield received
                return
            _hook(stack, model.get_submodule(starts[index - 1]), begin)
            torch.set_grad_enabled(False)
            yield self._parts.inputs[0]


def _hook(stack: ExitStack, module: nn.Module, hook: Callable[..., object]) -> None:
    stack.callback(module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True).remove)


def release_foreign(model: nn.Module, parts: StageParts, own: Sequence[int]) -> None:
    """Give up the memory of everything that stages on other ranks hold."""
    kept = {name for index in own for name in parts.parameters[index]}
    for name, tensor in list(_tensors_of(model)):
        if name not in kept:
            path, _, last = name.rpartition(".")
            holder = model.get_submodule(path)
            empty = on_meta(tensor, keep_grad=True)
            if isinstance(tensor, nn.Parameter):
                holder._parameters[last] = nn.Parameter(empty, requires_grad=tensor.requires_grad)
            else:
                holder._buffers[last] = empty


# ---- tensors ---------------------------------------------------------------------------------------------------------


def on_meta(tensor: torch.Tensor, *, keep_grad: bool) -> torch.Tensor:
    """A tensor of the same kind without memory."""
    empty = torch.empty_like(tensor, device="meta")
    return empty.requires_grad_(tensor.requires_grad) if keep_grad and tensor.is_floating_point() else empty


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape without a graph."""
    return tensor.detach()


def sent_tensor(args: tuple[object, ...], kwargs: dict[str, object], name: str) -> torch.Tensor:
    """The one tensor that a stage is given; whatever else it is given must not be a tensor."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if not tensors:
        raise UsageError(f"{name} is given no tensor", hint="cut where one tensor is handed on")
    return tensors[0]


def put_in(
    args: tuple[object, ...], kwargs: dict[str, object], received: torch.Tensor, name: str
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments with the received tensor in the place of their first one; other tensors are refused by name."""
    first = sent_tensor(args, kwargs, name)
    others = [f"argument {place}" for place, value in enumerate(args) if _is_meta(value) and value is not first]
    others += [key for key, value in kwargs.items() if _is_meta(value) and value is not first]
    if others:
        what = f"{name} is given tensors of an earlier stage beside the one that is sent: {', '.join(others)}"
        raise UsageError(what, hint="cut where one tensor is handed on, or make them anew inside of the blocks")
    changed = tuple(received if value is first else value for value in args)
    return changed, {key: received if value is first else value for key, value in kwargs.items()}


def _is_meta(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def _one_tensor(result: object, name: str) -> torch.Tensor:
    if isinstance(result, torch.Tensor):
        return result
    raise UsageError(
        f"{name} returns {type(result).__name__}, and a pipeline sends one tensor", hint="return the tensor of the loss"
    )


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _all_on_meta(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: on_meta(tensor, keep_grad=False) for name, tensor in _tensors_of(model)}


# ---- what is refused -------------------------------------------------------------------------------------------------


def _modules_at(model: nn.Module, starts: Sequence[str]) -> list[nn.Module]:
    known = dict(model.named_modules())
    missing = [path for path in starts if path not in known]
    if missing:
        hint = "names as in model.named_modules(): " + ", ".join(list(known)[1:6])
        raise UsageError(f"the model has no module {missing[0]}", hint=hint)
    return [known[path] for path in starts]


def _refuse_order(starts: Sequence[str], index: int, segment: int) -> None:
    what = f"{starts[index - 1]} is called before {starts[segment] if segment < len(starts) else 'its turn'}"
    raise UsageError(f"the stages are not called one after another: {what}", hint="cut in the order of the forward")


def _refuse_carried(carried: dict[str, None], starts: Sequence[str]) -> None:
    """A tensor that skips a cut would have to be sent along."""
    if carried:
        what = f"{len(carried)} tensors cross a cut beside the one that is sent: {'; '.join(list(carried)[:3])}"
        raise UsageError(what, found=f"cut at {', '.join(starts)}", hint="cut where a single tensor is handed on")


def _refuse_shared(model: nn.Module, readers: dict[str, set[int]], starts: Sequence[str]) -> None:
    """Weights that two stages read cannot be divided."""
    twice = sorted(name for name, stages in readers.items() if len(stages) > 1)
    if twice:
        what = f"more than one stage reads these tensors: {', '.join(twice[:4])}"
        raise UsageError(what, found=f"cut at {', '.join(starts)}", hint="cut so that one stage alone reads them")
    places: dict[int, list[str]] = {}
    for name, tensor in _tensors_of(model):
        places.setdefault(id(tensor), []).append(name)
    for names in places.values():
        stages = {stage for name in names for stage in readers[name]}
        if len(names) > 1 and len(stages) > 1:
            what = f"{' and '.join(names)} are one tensor, which lies on both sides of a cut"
            raise UsageError(what, hint="untie them: every stage would have a copy with a gradient of its own")
