"""Notes everything that a call of a module may change, and lays it back for a second run of the call.

Noted are the attributes of the modules (counters, caches, tensors that are replaced), their registered parameters and
buffers with the buffers' contents, lists, dictionaries, sets and plain objects that hang on them, on the arguments of
the call (the key-value cache of a language model), or that a hook or a replaced forward has closed over. Contents of
containers are noted by reference. Names of torch's own layers are not watched: their forwards set no attributes.
Hooks are noted as well: a library may install them in the first forward, beside a flag that says so, and the flag
must not be laid back without them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from operator import is_, is_not
from typing import Any, TypeGuard

import torch

from memfit.errors import PlanBroken
from memfit.model.memo_by_class import memo_by_class
from memfit.model.tensors_in_arguments import version_of
from memfit.model.written_parameters import ParameterValues, any_written, written_among

MOST_OBJECTS = 4000
"""Objects that hang on modules or arguments are followed up to this many around a call that is made twice."""
ALL_OBJECTS = 10_000_000
"""And up to this many where a step is put back, or what hangs on a model is counted."""
DEEPEST = 8
PLAIN = (bool, int, float, complex, str, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType,
          types.ModuleType, types.MethodType, torch.dtype, torch.device, torch.Size)  # fmt: skip
_CACHED = type(functools.lru_cache(lambda: None))
_OWN = frozenset(torch.nn.Module().__dict__) | {"_compiled_call_impl"}
"""Attributes that torch itself keeps in every module."""
_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
          "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks")  # fmt: skip
_installed_by_models: set[types.CodeType] = set()
"""Code of hooks that a step which memfit ran installed itself, and that were taken away after it."""


# ---- one container -----------------------------------------------------------------------------------------------


def _content(container: Iterable[object]) -> dict[object, object] | list[object]:
    """What a container holds now, by reference."""
    return dict(container) if isinstance(container, dict) else list(container)


def unchanged(container: Any, content: Any) -> bool:
    """Whether a container holds what it held; asked for some ten containers around every call of a block."""
    if len(container) != len(content):
        return False
    if isinstance(container, dict):
        return all(map(is_, container.values(), content.values())) and all(map(is_, container, content))
    if not content:
        return True
    return all(map(is_, container, content)) if isinstance(container, (list, deque)) else set(content) == container


def lay(container: Any, content: Any) -> None:
    """Let a container hold again what it held."""
    if unchanged(container, content):
        return
    if isinstance(container, dict):
        for name in [name for name in container if name not in content]:
            del container[name]
        container.update(content)
        if any(map(is_not, container, content)):  # a cache that drops its oldest entry knows its entries' order
            container.clear()
            container.update(content)
    elif isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        (container.extend if isinstance(container, deque) else container.update)(content)


def _is_container(value: object) -> TypeGuard[list[object] | dict[object, object] | set[object] | deque[object]]:
    return isinstance(value, (list, dict, set, deque)) and not isinstance(value, torch.Size)


# ---- random generators that belong to a module -------------------------------------------------------------------


def _draws(value: object) -> bool:
    """Whether an object draws random numbers from a state that can be read; that of the system has none."""
    return isinstance(value, _generator_kinds()) and not isinstance(value, random.SystemRandom)


def _generator_kinds() -> tuple[type, ...]:
    """Kinds of objects that draw random numbers from a state of their own; NumPy's where somebody has loaded it."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return (torch.Generator, random.Random)
    theirs = numpy_random.Generator, numpy_random.BitGenerator, numpy_random.RandomState
    return (torch.Generator, random.Random, *theirs)


def _get_state(generator: object) -> object:
    if isinstance(generator, random.Random):
        return generator.getstate()
    holder: Any = getattr(generator, "bit_generator", generator)
    return holder.state if hasattr(holder, "state") else holder.get_state()


def _set_state(generator: object, state: Any) -> None:
    holder: Any = getattr(generator, "bit_generator", generator)
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(holder, "state"):
        holder.state = state
    else:
        holder.set_state(state)


# ---- what hangs on something -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Noted:
    """Containers with what they held, tensors with their versions, random generators with their states."""

    places: list[tuple[Any, Any]] = field(default_factory=list)
    tensors: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    generators: list[tuple[Any, Any]] = field(default_factory=list)
    """Of torch, NumPy and Python."""

    def still_there(self) -> bool:
        """Whether every container holds what it held."""
        return all(starmap(unchanged, self.places))

    def written(self) -> bool:
        """Whether a tensor was written into."""
        return any(version_of(tensor) != version for tensor, version in self.tensors)

    def holds_the_same(self, other: Noted) -> bool:
        """Whether the containers are those of another note, with the contents of that note."""
        return self.places is other.places

    def lay(self) -> None:
        """Let every container hold again what it held."""
        for container, content in self.places:
            lay(container, content)
        self.lay_generators()

    def lay_generators(self) -> None:
        """Let every random generator go on from where it was."""
        for generator, state in self.generators:
            _set_state(generator, state)

    def now(self) -> Noted:
        """The same containers, with tensors and generators as they are now."""
        tensors = [(tensor, version_of(tensor)) for tensor, _ in self.tensors]
        return Noted(self.places, tensors, [(each, _get_state(each)) for each, _ in self.generators])


def note(
    roots: Iterable[object], shelves: Iterable[MutableMapping[str, object]] = (), most_objects: int = MOST_OBJECTS
) -> Noted:
    """Note the containers and objects that can be reached from some values, and these dictionaries."""
    noted, seen = Noted(), set[int]()
    waiting: list[tuple[Any, int]] = [(value, 0) for value in roots]
    for shelf in shelves:
        if id(shelf) not in seen:
            seen.add(id(shelf))
            noted.places.append((shelf, dict(shelf)))
            waiting.extend((value, 1) for name, value in shelf.items() if name not in _OWN)
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, PLAIN) or id(value) in seen or depth > DEEPEST or len(seen) > most_objects:
            continue
        seen.add(id(value))
        waiting.extend((below, depth + 1) for below in _open(value, noted))
    return noted


def _open(value: object, noted: Noted) -> Iterable[object]:
    """Note a value, and say what lies in it."""
    if isinstance(value, torch.Tensor):
        noted.tensors.append((value, version_of(value)))
        return ()
    if _draws(value):
        noted.generators.append((value, _get_state(value)))
        return ()
    if isinstance(value, torch.nn.Module) or type(value).__name__.endswith("Config"):
        return ()
    if isinstance(value, (tuple, frozenset)):
        return value
    if isinstance(value, _CACHED):  # what it has kept; its own table is not to be touched
        return _kept_by(value)
    below: list[Any] = []
    if _is_container(value):
        noted.places.append((value, _content(value)))
        below.extend(value.values() if isinstance(value, dict) else value)
    inner = getattr(value, "__dict__", None)
    if isinstance(inner, dict):
        noted.places.append((inner, dict(inner)))
        below.extend(inner.values())
    return below


def _kept_by(cache: object) -> list[object]:
    """What a `functools.lru_cache` has kept: in a list where it has a bound, else in its table."""
    found: list[object] = []
    for each in gc.get_referents(cache):
        if isinstance(each, dict):
            found += each.values() if each is not getattr(cache, "__dict__", None) else ()
        else:
            found.append(each)
    return found


def closed_over(function: object) -> list[object]:
    """What a function carries with it: cells, defaults, bound arguments, the object of a method."""
    found: list[Any] = [*(getattr(function, "__defaults__", None) or ())]
    found += (getattr(function, "__kwdefaults__", None) or {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            found.append(cell.cell_contents)
    found += [getattr(function, name) for name in ("__self__", "func", "args", "keywords") if hasattr(function, name)]
    return found


class OwnTensors(torch.nn.Module):
    """The parameters and buffers of a module itself, without those of the modules below it."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._parameters, self._buffers = module._parameters, module._buffers


def modules_beside(module: torch.nn.Module, roots: Iterable[object]) -> list[torch.nn.Module]:
    """The outermost modules that hang on a module, or on what is given, and are not in its tree.

    They lie in lists, dictionaries and objects, or belong to functions: a teacher that is to have no place in the state
    dict, a loss with weights of its own. Of a parent, which has the module in its own tree, the other parts are taken
    where it is reached from what is given (a loss that is its method); a parent that the module knows is left out.
    """
    found: dict[int, torch.nn.Module] = {}
    known = {id(each) for each in module.modules()}
    waiting: list[tuple[Any, int, bool]] = [(value, 0, True) for value in roots]
    waiting += [(value, 1, False) for each in module.modules() for value in _set_on(each)]
    seen: set[int] = set()
    while waiting:
        value, depth, is_given = waiting.pop()
        if id(value) in seen or depth > DEEPEST or len(seen) > MOST_OBJECTS:
            continue
        seen.add(id(value))
        if not isinstance(value, torch.nn.Module):
            waiting += [(below, depth + 1, is_given) for below in _reached_from(value)]
        elif id(value) in known or _is_stateless_script(value):
            continue
        elif not any(each is module for each in value.modules()):
            found[id(value)] = value
            known.update(id(each) for each in value.modules())
            waiting += [(below, depth + 1, is_given) for each in value.modules() for below in _set_on(each)]
        elif is_given:
            found[id(value)] = OwnTensors(value)
            waiting += [(child, depth + 1, True) for child in value.children()]
    inner = {id(below) for each in found.values() for below in each.modules() if below is not each}
    return [each for each in found.values() if id(each) not in inner]


def _is_stateless_script(module: torch.nn.Module) -> bool:
    """Whether it runs in TorchScript, where tables of modules are others, and has nothing that a run could change."""
    is_script = isinstance(module, torch.jit.ScriptModule)
    return is_script and not any(True for _ in (*module.parameters(), *module.buffers()))


def _set_on(module: torch.nn.Module) -> list[object]:
    """Attributes of a module that torch keeps no table of."""
    return [value for name, value in module.__dict__.items() if name not in _OWN or name == "forward"]


def _reached_from(value: object) -> Iterable[object]:
    """What lies in a value that is no module, as far as it can hold modules."""
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        is_torchs = (getattr(value, "__module__", None) or "").partition(".")[0] == "torch"
        return [] if is_torchs else [*closed_over(value), *named_by(value)]
    if isinstance(value, (torch.Tensor, torch.optim.Optimizer, *PLAIN)) or type(value).__name__.endswith("Config"):
        return ()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (tuple, frozenset)) or _is_container(value):
        return value
    inner = getattr(value, "__dict__", None)
    return inner.values() if isinstance(inner, dict) else ()


@memo_by_class
def _caches_of(kind: type) -> tuple[weakref.ref[object], ...]:
    """The caches of a class: each `functools.lru_cache` that a method is, has closed over, or calls by name."""
    classes = [each for each in kind.__mro__ if issubclass(each, torch.nn.Module) and each is not torch.nn.Module]
    methods = [getattr(method, "__func__", method) for each in classes for method in vars(each).values()]
    functions = [method for method in methods if isinstance(method, (types.FunctionType, _CACHED))]
    found = [value for function in functions for value in (function, *closed_over(function), *named_by(function))]
    return tuple(weakref.ref(value) for value in found if isinstance(value, _CACHED))


def named_by(function: object) -> list[object]:
    """What a function calls by names of its file."""
    if not isinstance(function, types.FunctionType):
        return []
    return [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]


# ---- hooks -------------------------------------------------------------------------------------------------------


class HookTables:
    """The hooks of some modules at one moment."""

    def __init__(self, tables: Sequence[dict[int, Callable[..., object]]]) -> None:
        self.tables, self.contents = tables, [dict(table) for table in tables]
        self._lengths = list(map(len, tables))

    def still_there(self) -> bool:
        """Whether no hook was added or removed since."""
        return list(map(len, self.tables)) == self._lengths

    def lay(self) -> None:
        """Let the modules have these hooks again."""
        if not self.still_there():
            for table, content in zip(self.tables, self.contents, strict=True):
                lay(table, content)

    def remember_added(self) -> None:
        """Note the code of hooks that were added since: the model installs them itself, and will again."""
        for table, content in zip(self.tables, self.contents, strict=True):
            _installed_by_models.update(filter(None, (_code_of(table[key]) for key in table if key not in content)))


def _code_of(hook: object) -> types.CodeType | None:
    return getattr(hook, "__code__", None)


# ---- the modules of one block ------------------------------------------------------------------------------------


def _is_torchs_own(module: torch.nn.Module) -> bool:
    plain = type(module).__module__.startswith("torch.nn.modules.") and "forward" not in module.__dict__
    return plain and not module._forward_hooks and not module._forward_pre_hooks


class Watch:
    """The state of a module and all below it; what is expensive to find is kept until it changes."""

    def __init__(self, module: torch.nn.Module, most_objects: int = MOST_OBJECTS) -> None:
        self.module, self.most_objects = module, most_objects
        self._is_tried = False
        self._find()

    def _find(self) -> None:
        self.modules = list(self.module.modules())
        self.modules += [below for each in modules_beside(self.module, ()) for below in each.modules()]
        shelves: list[MutableMapping[str, Any]] = []
        self._trees = [(m._modules, dict(m._modules)) for m in self.modules if m._modules]
        for each in self.modules:
            if _is_torchs_own(each):
                shelves += [shelf for shelf in (each._parameters, each._buffers) if shelf]
            else:  # what is empty now may be filled by a forward that registers a buffer
                shelves += [each._parameters, each._buffers, each.__dict__]
        self._buffers = [m._buffers for m in self.modules if m._buffers or not _is_torchs_own(m)]
        below = [m for m in self.modules if m is not self.module]
        self._hooks = [(d, tuple(d)) for m in below for d in (m._forward_hooks, m._forward_pre_hooks)]
        self._hook_tables = HookTables([m.__dict__[name] for m in self.modules for name in _HOOKS])
        self._roots, modules = self._carried()
        self._shelves = [*shelves, *(module.__dict__ for module in modules)]
        self._noted: Noted | None = None

    def _carried(self) -> tuple[list[object], list[torch.nn.Module]]:
        """What hooks below and replaced forwards have closed over: values, and modules from elsewhere."""
        functions = [m.__dict__["forward"] for m in self.modules if "forward" in m.__dict__]
        functions += [hook for hooks, _ in self._hooks for hook in hooks.values()]
        values = [value for function in functions for value in closed_over(function)]
        kinds = {type(m) for m in self.modules if not _is_torchs_own(m)}
        values += [cache for kind in kinds for each in _caches_of(kind) if (cache := each()) is not None]
        here = {id(m) for m in self.modules}
        elsewhere = [v for v in values if isinstance(v, torch.nn.Module) and id(v) not in here]
        return values, elsewhere

    def refresh(self) -> None:
        """Find everything again where modules were replaced."""
        if not all(unchanged(tree, content) for tree, content in self._trees):
            self._find()

    def has_new_hooks(self) -> bool:
        """Whether a forward hook was added below since this watch was made, other than by the model itself."""
        added = [hooks[key] for hooks, known in self._hooks if hooks for key in hooks if key not in known]
        if added and all(_code_of(hook) in _installed_by_models for hook in added):
            self._find()
            return False
        return bool(added)

    def hooks(self) -> HookTables:
        """The hooks of all modules now; the same object as long as none is added or removed."""
        if not self._hook_tables.still_there():
            self._hook_tables = HookTables(self._hook_tables.tables)
        return self._hook_tables

    def attributes(self) -> Noted:
        """What the modules hold; found again only when it changes."""
        if self._noted is None or not self._noted.still_there():
            self._noted = note(self._roots, self._shelves, self.most_objects)
        return self._noted.now()

    def buffers(self) -> list[torch.Tensor]:
        """The buffers that lie there now, and parameters that runs write into, each once."""
        found = {id(b): b for shelf in self._buffers for b in shelf.values() if b is not None}
        found |= {id(p): p for p in written_among(self.parameters())} if any_written() else {}
        return list(found.values())

    def forget(self) -> None:
        """Hold nothing of what was found: tensors with graphs among it would live until the next call."""
        self._noted = None

    def shelves(self) -> Sequence[MutableMapping[str, object]]:
        """The dictionaries of the modules themselves."""
        return self._shelves

    def parameters(self) -> list[torch.Tensor]:
        """The parameters that lie there now."""
        return [p for m in self.modules for p in m._parameters.values() if p is not None]

    @contextlib.contextmanager
    def leaving_parameters_alone(self, name: str) -> Iterator[None]:
        """Around a second run: if it is the first that is made, refuse what it writes into parameters unnoticed."""
        before = None if self._is_tried else ParameterValues(self.parameters())
        self._is_tried = True
        yield
        if before is not None and before.have_changed():
            raise PlanBroken(
                f"{name} writes into its own parameters when it is run again",
                found="a plan that was made elsewhere does not know that they are to be put back",
                hint="memfit.fit_to_budget on this very model finds and keeps them",
            )


@dataclass(slots=True)
class State:
    """Everything that was noted before a run."""

    attributes: Noted
    buffers: list[tuple[torch.Tensor, torch.Tensor]]
    """A buffer and a copy of what it held."""
    hooks: HookTables
    given: Noted | None = None

    @classmethod
    def now(cls, watch: Watch, given: Sequence[object] = ()) -> State:
        """Note the state of modules, and of objects among the arguments of a call."""
        objects = [value for value in given if not isinstance(value, (torch.Tensor, *PLAIN))]
        attributes = watch.attributes()
        return cls(
            attributes,
            [(buffer, buffer.detach().clone()) for buffer in watch.buffers()],
            watch.hooks(),
            note(objects) if objects else None,
        )

    def lay(self, now: State | None = None) -> None:
        """Make it the current state; `now` is what was just noted, so that what is the same is not compared again."""
        if now is not None and self.attributes.holds_the_same(now.attributes):
            self.attributes.lay_generators()
        else:
            self.attributes.lay()
        self.hooks.lay()
        if self.given is not None:
            self.given.lay()
        self.lay_buffers()

    def lay_buffers(self) -> None:
        """Let every buffer hold again what it held."""
        # Through `.data`: a backward may hold the buffer, and must not see a change that is undone.
        for buffer, value in self.buffers:
            buffer.data.copy_(value)

    def wrote_into_a_tensor(self) -> bool:
        """Whether a tensor that is neither parameter nor buffer was written into since."""
        fixed = {id(buffer) for buffer, _ in self.buffers}
        noted = [*self.attributes.tensors, *(self.given.tensors if self.given is not None else ())]
        return any(version_of(t) != v for t, v in noted if id(t) not in fixed and not isinstance(t, torch.nn.Parameter))


@contextlib.contextmanager
def laid_back(watch: Watch, state: State, given: Sequence[object]) -> Iterator[None]:
    """Run with the state of an earlier moment, and leave the present one."""
    now = State.now(watch, given)
    state.lay(now)
    try:
        yield
    finally:
        now.lay()
