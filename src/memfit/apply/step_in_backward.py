"""Takes the optimizer's step for each parameter as soon as the backward has its gradient, and drops the gradient.

A hook on every parameter (`register_post_accumulate_grad_hook`) steps that parameter alone, with the options of its
group and the state of the user's own optimizer, and lets the gradient go: gradients of all parameters never live at
once, and what the step holds in passing is that of one parameter. `optimizer.step()` and `zero_grad()` then find no
gradients and have nothing left to do.

The weights and the state are those of the plain training, or an error is raised:

- Stepping one by one is compared with stepping together, on stand-ins, before anything else (`refuse_coupled`).
- While it is proven, the bits of a parameter are turned around where it would have been stepped: whatever still reads
  it in that backward comes out different.
- Between the backward and the moment at which the plain program would have no gradient either, whatever reads one
  is answered so: clipping, scaling, logging. The same holds for a second backward, a second step, gradients that are
  dropped without a step, options that are changed in between, and a call of the model in between.

Not seen is code that reads weights between the backward and the step other than by calling the model.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from memfit.errors import CannotPull, PlanBroken
from memfit.model.call_sites import add_layer, is_compiled
from memfit.model.step import RandomState
from memfit.model.tensors_in_arguments import bits_of

NAME = "step-in-backward"
NOT_STEPPED = "the optimizer's step cannot be taken in the backward"
NUM_TRIED = 4
"""So many of each group, at least, on which stepping one by one is compared with stepping together."""
NUM_ALIKE = 2
"""Of each shape, as long as all that are tried take no more than `TRIED_BYTES`: some optimizers stack what is alike."""
TRIED_BYTES = 8 << 20
SCALES = (1e-3, 1.0, 1e3)
"""Sizes of the gradients they are stepped with: an optimizer that clips by the norm of all shows at the large ones."""
_DESCRIPTOR: Any = torch.Tensor.grad
_CLEARING = {inspect.unwrap(torch.optim.Optimizer.zero_grad).__code__, torch.nn.Module.zero_grad.__code__}
"""Code that reads gradients only to drop them."""


# ---- may it be done at all? ------------------------------------------------------------------------------------------


def refuse_what_differs(optimizer: object, model: torch.nn.Module) -> None:
    """Refuse what would not compute the same when it is stepped parameter by parameter."""
    reason = _reason_against(optimizer, model)
    if reason:
        raise CannotPull(NOT_STEPPED, found=reason, hint="a larger budget")
    assert isinstance(optimizer, torch.optim.Optimizer)
    refuse_coupled(optimizer)


def _reason_against(optimizer: object, model: torch.nn.Module) -> str:
    if not isinstance(optimizer, torch.optim.Optimizer):
        return "there is no torch.optim.Optimizer to step"
    name = type(optimizer).__name__
    if not getattr(type(optimizer).step, "hooked", False):
        return f"{name} does not tell of its steps"
    if any(isinstance(value, torch.optim.Optimizer) for value in optimizer.__dict__.values()):
        return f"{name} steps another optimizer"
    if optimizer._optimizer_step_pre_hooks:
        return f"{name} has a hook of yours before its step, which would see other weights"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "gradients are exchanged between ranks after the backward has made them"
    if any(is_compiled(module) or hasattr(module, "_orig_mod") for module in model.modules()):
        return "parts of the model are compiled"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable: its gradients are needed later"
    return _reason_in_parameters(stepped_parameters(optimizer, model))


def _reason_in_parameters(parameters: Sequence[torch.Tensor]) -> str:
    if not parameters:
        return "the optimizer has no parameter of the model"
    for parameter in parameters:
        if type(parameter) is not torch.nn.Parameter:
            return f"a parameter is a {type(parameter).__name__}"
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            return "a parameter has a hook of yours that is called when its gradient is there"
        if parameter.untyped_storage().nbytes() != parameter.nbytes:
            return "a parameter shares its memory with other tensors"
    return ""


def stepped_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters of a model that an optimizer updates, each once."""
    own = {id(p) for p in model.parameters() if p.requires_grad}
    found = {id(p): p for group in optimizer.param_groups for p in group["params"] if id(p) in own}
    return list(found.values())


def refuse_coupled(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that does something else when parameters are stepped one by one: compared to the bit."""
    before = RandomState.now()
    generator = torch.Generator().manual_seed(0)
    try:
        together, apart = (_Trial(optimizer) for _ in range(2))
        for scale in SCALES:
            gradients = [torch.randn(p.shape, generator=generator) * scale for p in together.parameters]
            together.step(gradients)
            apart.step_one_by_one(gradients)
        reason = together.reason_against(apart)
        if not reason and not RandomState.now().same_as(before):
            reason = "its step draws random numbers"
    except (KeyError, AttributeError, TypeError, ValueError, IndexError, AssertionError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
    finally:
        before.put_back()
    if reason:
        raise CannotPull(
            f"{type(optimizer).__name__} cannot be stepped parameter by parameter",
            found=reason,
            hint="an optimizer that updates each parameter by its own gradient alone, or a larger budget",
        )


class _Trial:
    """Some parameters of every group, stood in for, with an optimizer of their own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.shadow = shadow_of(optimizer)
        self.shadow.state, self.shadow.param_groups = defaultdict(dict), []
        for group in optimizer.param_groups:
            chosen = _chosen(group["params"])
            stand_ins = [torch.nn.Parameter(p.detach().clone()) for p in chosen]
            for parameter, stand_in in zip(chosen, stand_ins, strict=True):
                if optimizer.state.get(parameter):
                    self.shadow.state[stand_in] = copy.deepcopy(optimizer.state[parameter])
            self.shadow.param_groups.append({**copy.deepcopy(_options(group)), "params": stand_ins})
        self.attributes = _attributes(self.shadow)
        self.options = [copy.deepcopy(_options(group)) for group in self.shadow.param_groups]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for group in self.shadow.param_groups for p in group["params"]]

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.to(parameter.device, parameter.dtype, copy=True)
        step_alone(self.shadow)

    def step_one_by_one(self, gradients: Sequence[torch.Tensor]) -> None:
        groups = self.shadow.param_groups
        pairs = [(group, p) for group in groups for p in group["params"]]
        for (group, parameter), gradient in reversed(list(zip(pairs, gradients, strict=True))):
            parameter.grad = gradient.to(parameter.device, parameter.dtype, copy=True)
            self.shadow.param_groups = [{**group, "params": [parameter]}]
            step_alone(self.shadow)
            parameter.grad = None
            if not same(_options(self.shadow.param_groups[0]), _options(group)):
                self.options = []  # what one parameter's step writes into its group, the next one's would read
        self.shadow.param_groups = groups

    def reason_against(self, apart: _Trial) -> str:
        """Why stepping one by one is not stepping together; empty when it is."""
        for name, trial in (("together", self), ("one by one", apart)):
            options = [_options(group) for group in trial.shadow.param_groups]
            if not same(options, trial.options):
                return f"its step changes the options of a group (stepped {name})"
            if not same(_attributes(trial.shadow), trial.attributes):
                return f"its step changes attributes of the optimizer (stepped {name})"
        for mine, theirs in zip(self.parameters, apart.parameters, strict=True):
            if not same(mine.detach(), theirs.detach()):
                return f"a parameter of shape {tuple(mine.shape)} comes out different when it is stepped alone"
            if not same(self.shadow.state.get(mine), apart.shadow.state.get(theirs)):
                return f"the state of a parameter of shape {tuple(mine.shape)} differs when it is stepped alone"
        return ""


def _chosen(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The smallest of every number of dimensions, the smallest of all, and some of each shape."""
    wanted = sorted((p for p in parameters if p.requires_grad), key=lambda p: p.numel())
    first = {p.dim(): p for p in reversed(wanted)}
    found = {id(p): p for p in (*first.values(), *wanted[:NUM_TRIED])}
    num_alike: dict[Any, int] = {}
    for parameter in wanted:
        num_alike[parameter.shape] = num_alike.get(parameter.shape, 0) + 1
        if num_alike[parameter.shape] <= NUM_ALIKE:
            if sum(p.nbytes for p in found.values()) + parameter.nbytes > TRIED_BYTES:
                break
            found[id(parameter)] = parameter
    return list(found.values())


def _options(group: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in group.items() if name != "params"}


def _noted(group: Mapping[str, object]) -> dict[str, object]:
    """Options as they are now; a learning rate that is a tensor may be written into."""
    return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in _options(group).items()}


def _attributes(shadow: torch.optim.Optimizer) -> dict[str, object]:
    """Attributes of an optimizer that a step could change, by value where they are plain."""
    skipped = {"state", "param_groups"}
    return {n: copy.copy(v) for n, v in shadow.__dict__.items() if n not in skipped and not callable(v)}


def same(one: object, other: object) -> bool:
    """Whether two nests of values are equal, tensors to the bit."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return False
        return one is other or (one.dtype == other.dtype and one.shape == other.shape and _equal_bits(one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or bool(one == other) or (one != one and other != other)


def _equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(bits_of(one.detach()), bits_of(other.detach()))


# ---- one parameter's step --------------------------------------------------------------------------------------------


def shadow_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer without hooks; state and groups are to be set."""
    shadow = object.__new__(type(optimizer))
    shadow.__dict__.update({n: v for n, v in optimizer.__dict__.items() if n not in ("step", "zero_grad")})
    for name in optimizer.__dict__:
        if name.endswith("_hooks"):
            shadow.__dict__[name] = OrderedDict()
    return shadow


def step_alone(shadow: Any) -> None:
    """The step without what torch puts around it: global hooks would count it (read in torch 2.13)."""
    type(shadow).step.__wrapped__(shadow)


class _Lone:
    """Steps one parameter of an optimizer, which keeps its state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._groups: dict[int, dict[str, Any]] = {}

    def group_of(self, parameter: torch.Tensor) -> dict[str, object]:
        """The group of a parameter; groups are replaced when a state is loaded."""
        group = self._groups.get(id(parameter))
        if group is None or not any(group is each for each in self.optimizer.param_groups):
            self._groups = {id(p): each for each in self.optimizer.param_groups for p in each["params"]}
            group = self._groups.get(id(parameter))
        if group is None:
            raise PlanBroken("a parameter has left its optimizer", hint="undo the plan before parameters are replaced")
        return group

    def step(self, parameter: torch.Tensor) -> None:
        group = self.group_of(parameter)
        shadow = shadow_of(self.optimizer)
        shadow.param_groups = [{**group, "params": [parameter]}]
        with torch.no_grad():
            step_alone(shadow)
        changed = [name for name, value in _options(group).items() if shadow.param_groups[0].get(name) is not value]
        if changed:
            raise PlanBroken(
                f"the step of {type(self.optimizer).__name__} changed options of its group: {', '.join(changed)}",
                found="the step is taken in the backward, parameter by parameter",
                hint=_UNDO,
            )


_UNDO = "train without step-in-backward: a larger budget, or memfit fit without --allow step-in-backward"


# ---- for the proof ---------------------------------------------------------------------------------------------------


Keep = Callable[[str, torch.Tensor], None]


@contextlib.contextmanager
def rehearsed(
    model: torch.nn.Module, parameters: Iterable[torch.Tensor], scratch_bytes: dict[int, int], keep: Keep | None
) -> Iterator[None]:
    """Run a backward as if parameters were stepped in it, and leave them as they were.

    Where a parameter would be stepped, its gradient is given to `keep` and dropped, what the step holds in passing is
    allocated and released, and the bits of the parameter are turned around until the end.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    turned: list[torch.Tensor] = []

    def accumulated(parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if keep is not None:
            keep(names[id(parameter)], gradient)
        torch.empty(scratch_bytes.get(id(parameter), 0), dtype=torch.uint8, device=parameter.device)
        parameter.grad = gradient = None
        if any(parameter is each for each in turned):
            raise CannotPull(NOT_STEPPED, found="a parameter gets its gradient in two parts")
        _turn(parameter)
        turned.append(parameter)

    handles = [parameter.register_post_accumulate_grad_hook(accumulated) for parameter in parameters]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter in turned:
            _turn(parameter)


def _turn(parameter: torch.Tensor) -> None:
    """Turn all bits of a parameter around, without a copy; its version counter says that it was written into."""
    bits = torch.empty(0, dtype=torch.uint8, device=parameter.device)
    bits.set_(parameter.untyped_storage(), 0, (parameter.untyped_storage().nbytes(),))  # type: ignore[call-overload]
    bits.bitwise_not_()
    torch.autograd.graph.increment_version(parameter)


# ---- in the training -------------------------------------------------------------------------------------------------


_OWNERS: dict[int, Any] = {}
"""By id of a guarded parameter: who answers for its gradient."""


def only_clears(frame: FrameType) -> bool:
    """Whether a gradient is read by `zero_grad`, to be dropped."""
    return frame.f_code in _CLEARING and frame.f_locals.get("set_to_none") is not False


def place_of(frame: FrameType) -> str:
    """Where somebody reads a gradient."""
    return f"in {frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}"


class GuardedParameter(torch.nn.Parameter):
    """The class of a parameter while its gradients are watched; copies and pickles of it are plain."""

    def _read(self) -> torch.Tensor | None:
        owner = _OWNERS.get(id(self))
        return _DESCRIPTOR.__get__(self) if owner is None else owner.read(self, sys._getframe(1))

    def _write(self, value: torch.Tensor | None) -> None:
        owner = _OWNERS.get(id(self))
        if owner is not None:
            owner.write(self, value)
        _DESCRIPTOR.__set__(self, value)

    def _drop(self) -> None:
        self._write(None)

    grad: Any = property(_read, _write, _drop)

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        with unguarded(self):
            return copy.deepcopy(self, memo)


def guard(parameter: torch.Tensor, owner: object) -> None:
    """Let an owner answer whoever reads or sets the gradient of a parameter."""
    _OWNERS[id(parameter)] = owner
    parameter.__class__ = GuardedParameter


def unguard(parameter: torch.Tensor) -> None:
    """Leave a parameter as it was."""
    _OWNERS.pop(id(parameter), None)
    parameter.__class__ = torch.nn.Parameter


@contextlib.contextmanager
def unguarded(parameter: torch.Tensor) -> Iterator[None]:
    """For a while, a parameter is a plain one: optimizers look at its type."""
    parameter.__class__ = torch.nn.Parameter
    try:
        yield
    finally:
        parameter.__class__ = GuardedParameter


class StepInBackward:
    """Steps the parameters of a model in its backward, from `start` to `undo`."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, say: Callable[[str], None] | None = None
    ) -> None:
        self.optimizer, self.model, self._say = optimizer, model, say or _warn
        self.parameters = stepped_parameters(optimizer, model)
        self._lone = _Lone(optimizer)
        self._waiting: dict[int, torch.Tensor] = {}
        """Stepped in the backward; the program has not called `step` yet."""
        self._done: dict[int, torch.Tensor] = {}
        """The program has called `step` and has not dropped the gradients yet."""
        self._options: dict[int, dict[str, object]] = {}
        """Of groups, as they were when their parameters were stepped."""
        self._has_said = False
        self._closers: list[Callable[[], None]] = []

    def start(self) -> None:
        """From now on, the backward steps."""
        for parameter in self.parameters:
            guard(parameter, self)
            if _DESCRIPTOR.__get__(parameter) is not None:
                self._done[id(parameter)] = parameter
            handle = parameter.register_post_accumulate_grad_hook(self._accumulated)
            self._closers += [handle.remove, lambda parameter=parameter: unguard(parameter)]
        self._closers.append(self.optimizer.register_step_pre_hook(self._before_step).remove)
        self._closers.append(self.optimizer.register_step_post_hook(self._after_step).remove)
        self._closers.append(add_layer(self.model, self._call))

    def undo(self) -> None:
        """The optimizer steps again when it is asked to."""
        while self._closers:
            self._closers.pop()()

    # ---- the backward ------------------------------------------------------------------------------------------------

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """The gradient of a parameter is there: step, and let it go."""
        parameter.__class__ = GuardedParameter  # also after a step of the optimizer that failed
        if id(parameter) in self._waiting:
            raise _broken("a second backward came before the optimizer's step", "gradients would have added up")
        if id(parameter) in self._done:
            raise _broken(
                "a backward came before the gradients of the last step were dropped", "zero_grad() is missing"
            )
        gradient = _DESCRIPTOR.__get__(parameter)
        if gradient is None:
            return
        if gradient.requires_grad:
            raise _broken("a gradient has a history of its own", "backward(create_graph=True)")
        group = self._lone.group_of(parameter)
        if id(group) not in self._options:
            self._options[id(group)] = _noted(group)
        del gradient
        with unguarded(parameter):
            self._lone.step(parameter)
        torch.autograd.graph.increment_version(parameter)
        _DESCRIPTOR.__set__(parameter, None)
        self._waiting[id(parameter)] = parameter

    # ---- what the program does in between ----------------------------------------------------------------------------

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if has_closure(args, kwargs):
            raise _broken("the optimizer's step was given a closure", "a function that runs the backward itself")
        if self._done and not self._waiting:
            raise _broken("the optimizer's step was called twice", "with the same gradients")
        for group in optimizer.param_groups:
            if not same(self._options.get(id(group), _options(group)), _options(group)):
                raise _broken("options of the optimizer were changed between the backward and its step", "as a new lr")
        if self._waiting and not self._has_said:
            self._has_said = True
            self._say(
                "the optimizer's step is taken in the backward, parameter by parameter: step() and zero_grad() have "
                "nothing left to do"
            )
        self._done.update(self._waiting)
        self._waiting.clear()
        self._options.clear()
        for parameter in self.parameters:
            parameter.__class__ = torch.nn.Parameter

    def _after_step(self, *_: object) -> None:
        for parameter in self.parameters:
            parameter.__class__ = GuardedParameter

    def read(self, parameter: torch.Tensor, frame: FrameType) -> torch.Tensor | None:
        """Answer who reads a gradient."""
        found = _DESCRIPTOR.__get__(parameter)
        if found is not None or not self._is_missing(parameter):
            return found
        if not only_clears(frame):
            raise _broken("a gradient was read after the backward", place_of(frame))
        self._dropped(parameter)
        return None

    def _is_missing(self, parameter: torch.Tensor) -> bool:
        """Whether the plain program would find a gradient."""
        return id(parameter) in self._waiting or id(parameter) in self._done

    def write(self, parameter: torch.Tensor, value: torch.Tensor | None) -> None:
        """Call back when a gradient is set."""
        if value is None:
            self._dropped(parameter)
        elif self._is_missing(parameter):
            raise _broken("a gradient was set after the backward", f"of shape {tuple(value.shape)}")

    def _dropped(self, parameter: torch.Tensor) -> None:
        if id(parameter) in self._waiting:
            raise _broken("gradients were dropped without a step of the optimizer", "zero_grad() after the backward")
        self._done.pop(id(parameter), None)

    def _call(self, proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if self._waiting:
            raise _broken("the model was called between the backward and the optimizer's step", "with the new weights")
        return proceed(*args, **kwargs)


class ProgramWatch:
    """Notes what a program does with gradients from the end of its backward, `start`, to its next pass, `stop`."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self.optimizer, self.parameters = optimizer, stepped_parameters(optimizer, model)
        self.parameters = [p for p in self.parameters if type(p) is torch.nn.Parameter]
        self.reason = ""
        self._num_steps = 0
        self._options: list[dict[str, object]] = []
        self._closers: list[Callable[[], None]] = []

    def start(self) -> None:
        """The backward is over."""
        self._options = [_noted(group) for group in self.optimizer.param_groups]
        for parameter in self.parameters:
            guard(parameter, self)
        self._closers.append(self.optimizer.register_step_pre_hook(self._before_step).remove)
        self._closers.append(self.optimizer.register_step_post_hook(self._after_step).remove)

    def stop(self) -> str:
        """Leave everything as it was; why the step cannot be taken in the backward, empty when it can."""
        while self._closers:
            self._closers.pop()()
        for parameter in self.parameters:
            unguard(parameter)
        if not self.reason and self._num_steps != 1:
            self.reason = f"the program called the optimizer's step {self._num_steps} times after one backward"
        return self.reason

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self._num_steps += 1
        if has_closure(args, kwargs):
            self._note("the program gives the optimizer's step a closure")
        if self._num_steps == 1 and not same(self._options, [_options(group) for group in optimizer.param_groups]):
            self._note("the program changes options of the optimizer between the backward and its step")
        for parameter in self.parameters:
            parameter.__class__ = torch.nn.Parameter

    def _after_step(self, *_: object) -> None:
        for parameter in self.parameters:
            parameter.__class__ = GuardedParameter

    def read(self, parameter: torch.Tensor, frame: FrameType) -> torch.Tensor | None:
        """Answer who reads a gradient."""
        if not only_clears(frame):
            self._note(f"the program reads gradients after its backward, {place_of(frame)}")
        return _DESCRIPTOR.__get__(parameter)

    def write(self, parameter: torch.Tensor, value: torch.Tensor | None) -> None:
        """Call back when a gradient is set."""
        if value is not None:
            self._note("the program sets gradients itself")
        elif not self._num_steps:
            self._note("the program drops gradients without a step of the optimizer")

    def _note(self, reason: str) -> None:
        self.reason = self.reason or reason


def has_closure(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether `step` was given a function to run."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None) is not None


def _broken(what: str, found: str) -> PlanBroken:
    """Said after some weights have been updated: the plain program would have done something else with gradients."""
    return PlanBroken(
        f"{what}, but the step was taken in the backward already",
        found=f"{found}; weights are those after the step",
        hint=_UNDO,
    )


def _warn(sentence: str) -> None:
    warnings.warn(f"memfit: {sentence}", RuntimeWarning, stacklevel=4)
