"""Judges whether a statement of a job that was not seen to run may call a model or train one.

Names are resolved to what they stand for now, without calling anything: no property is evaluated. A call counts when it
is one of a model, of a method of one, of something that holds one or is given one, or leads there through functions of
the user's own files; and where gradients are asked for, or an optimizer is made. A few names are known to be harmless.
"""

from __future__ import annotations

import ast
import inspect
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import torch

from memfit.predict.observe.later.lines_that_ran import is_own_file

UNKNOWN = object()
"""What a name stands for that is not there yet, or cannot be read without running something."""
MOST_DEPTH = 4
"""Functions that are followed into each other."""
HARMLESS = frozenset(
    """
    save dump dumps save_pretrained push_to_hub save_model save_state save_checkpoint num_parameters count_parameters
    state_dict load_state_dict print len isinstance issubclass type id str repr list tuple dict set sum max min hasattr
    getattr setattr vars dir callable iter next enumerate zip sorted unwrap_model watch get_num_params append add log
    info debug warning close finish flush print_trainable_parameters get_model clip_grad_norm_ clip_grad_value_ step
    zero_grad update_parameters synchronize named_parameters parameters numel size free_memory end_training
    """.split()  # noqa: SIM905
)
_LIKELY = frozenset(("fit", "train", "learn", "evaluate", "predict", "test", "validate", "generate", "sample"))
"""Methods of something unknown that may train or run a model."""
_GIVES_ITSELF = frozenset(("eval", "train", "to", "cuda", "cpu", "half", "float", "double", "requires_grad_"))
_ASK_FOR_GRADIENTS: frozenset[object] = frozenset(
    (
        torch.autograd.grad, torch.autograd.backward, torch.func.grad, torch.func.grad_and_value, torch.func.vjp,
        torch.func.jvp, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian, torch.func.functional_call,
        torch.autograd.functional.jacobian, torch.autograd.functional.hessian, torch.autograd.functional.vjp,
        torch.autograd.functional.jvp, torch.autograd.functional.hvp, torch.autograd.functional.vhp,
    )
)  # fmt: skip
_CHANGES_TRAINING = frozenset(("requires_grad_", "add_param_group"))


@dataclass(frozen=True)
class Made:
    """Something of a class, made by a statement that did not run yet."""

    kind: type


def may_run_a_model(node: ast.AST, names: Mapping[str, object], depth: int = 0) -> int:
    """The line of the first call that may reach a model or train one, or of what changes what is trained; else 0."""
    for part in _walk(node):
        if isinstance(part, ast.Call) and _Scope(names, depth).reaches(part):
            return part.lineno
        if isinstance(part, ast.Assign) and any(_frees_a_parameter(target, part.value) for target in part.targets):
            return part.lineno
    return 0


def with_assigned(node: ast.stmt, names: Mapping[str, object]) -> Mapping[str, object]:
    """The names after a statement that did not run: what it makes of a known class is known by its class."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return names
    made = _Scope(names, 0).resolve(node.value)
    new: dict[str, object] = {target.id: made for target in node.targets if isinstance(target, ast.Name)}
    return ChainMap(new, *(names.maps if isinstance(names, ChainMap) else [dict(names)])) if new else names


def resolve_in(names: Mapping[str, object], node: ast.expr) -> object:
    """What an expression stands for with these names: the object, what a class will make of it, or UNKNOWN."""
    return _Scope(names, 0).resolve(node)


def body_of_call(names: Mapping[str, object], call: ast.Call) -> tuple[Iterable[ast.stmt], Mapping[str, object]]:
    """The statements of the user's own function that a call runs, and the names in it; none of other functions."""
    return _Scope(names, 0).body_of(call)


def is_model(value: object) -> bool:
    """Whether this is, or will be, a module with parameters."""
    if isinstance(value, Made):
        return issubclass(value.kind, torch.nn.Module)
    return isinstance(value, torch.nn.Module) and next(iter(value.parameters()), None) is not None


def _frees_a_parameter(target: ast.expr, value: ast.expr) -> bool:
    is_false = isinstance(value, ast.Constant) and value.value is False
    return isinstance(target, ast.Attribute) and target.attr == "requires_grad" and not is_false


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is below it, without bodies of functions and classes that it only defines."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _walk(child)


class _Scope:
    """Resolves expressions in one set of names."""

    def __init__(self, names: Mapping[str, object], depth: int) -> None:
        self._names, self._depth = names, depth

    # ---- what an expression stands for -----------------------------------------------------------------------------

    def resolve(self, node: ast.expr) -> object:
        """The object, or UNKNOWN."""
        if isinstance(node, ast.Name):
            builtins = self._names.get("__builtins__", {})
            table = vars(builtins) if isinstance(builtins, ModuleType) else builtins
            found = self._names.get(node.id, UNKNOWN)
            return table.get(node.id, UNKNOWN) if found is UNKNOWN and isinstance(table, dict) else found
        if isinstance(node, ast.Attribute):
            return attribute_of(self.resolve(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return _element_of(self.resolve(node.value), node.slice)
        if isinstance(node, ast.Call):
            return self._result_of(node)
        return UNKNOWN

    def _result_of(self, node: ast.Call) -> object:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _GIVES_ITSELF:
            owner = self.resolve(node.func.value)
            if is_model(owner):
                return owner
        kind = self.resolve(node.func)
        return Made(kind) if isinstance(kind, type) else UNKNOWN

    # ---- what a call may reach -------------------------------------------------------------------------------------

    def reaches(self, call: ast.Call) -> bool:
        """Whether a call may run or train a model."""
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        target = self.resolve(func)
        owner = self.resolve(func.value) if isinstance(func, ast.Attribute) else None
        if name == "backward" or name in _CHANGES_TRAINING or _asks_for_gradients(target):
            return not _is_only_frozen(call)
        if is_model(target) or (isinstance(target, type) and issubclass(target, torch.optim.Optimizer)):
            return True
        if isinstance(target, type):
            return self._is_made_of_a_model(target, call)
        if isinstance(target, torch.nn.Module):
            return False
        if name in HARMLESS or (isinstance(owner, torch.nn.Module) and _is_of_every_module(name)):
            return False
        own = _own_function(target)
        if own is not None:
            return self._leads_there(own, call, owner)
        if is_model(owner) or _holds_a_model(owner) or self._is_given_a_model(call) or self._is_given_a_way(call):
            return True
        return target is UNKNOWN and isinstance(func, ast.Attribute) and owner is UNKNOWN and name in _LIKELY

    def _is_made_of_a_model(self, kind: type, call: ast.Call) -> bool:
        """Whether making an object of a class may run or copy a model: an average of one, a trainer."""
        make = _own_function(inspect.getattr_static(kind, "__init__", None))
        if make is not None:
            return self._leads_there(make, call, Made(object))
        return self._is_given_a_model(call) or self._is_given_a_way(call)

    def _is_given_a_model(self, call: ast.Call) -> bool:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return any(is_model(self.resolve(value)) for value in given)

    def _is_given_a_way(self, call: ast.Call) -> bool:
        """Whether a function of the user's own that may run a model is handed on (`vmap(loss)`, `map(evaluate, x)`)."""
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        functions = (
            _own_function(self.resolve(value)) for value in given if isinstance(value, (ast.Name, ast.Attribute))
        )
        none_given = ast.Call(func=call.func, args=[], keywords=[])
        return any(self._leads_there(own, none_given, None) for own in functions if own is not None)

    def _leads_there(self, function: FunctionType, call: ast.Call, owner: object) -> bool:
        """Whether a function of the user's own may run a model when it is called like this."""
        definition = definition_of(function)
        if definition is None or self._depth >= MOST_DEPTH:
            return self._is_given_a_model(call) or is_model(owner)
        names = self._names_in(function, definition, call, owner)
        return any(may_run_a_model(statement, names, self._depth + 1) for statement in definition.body)

    def body_of(self, call: ast.Call) -> tuple[Iterable[ast.stmt], Mapping[str, object]]:
        """The statements of the user's own function that is called, and the names in it; none of another one."""
        func = call.func
        owner = self.resolve(func.value) if isinstance(func, ast.Attribute) else None
        function = _own_function(self.resolve(func))
        definition = definition_of(function) if function is not None else None
        if function is None or definition is None:
            return (), {}
        return definition.body, self._names_in(function, definition, call, owner)

    def _names_in(
        self, function: FunctionType, definition: ast.FunctionDef, call: ast.Call, owner: object
    ) -> Mapping[str, object]:
        return ChainMap(self._given(definition, call, owner), _closure_of(function), function.__globals__)

    def _given(self, definition: ast.FunctionDef, call: ast.Call, owner: object) -> dict[str, object]:
        parameters = [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)]
        given: dict[str, object] = dict.fromkeys(parameters, UNKNOWN)
        if parameters and owner is not None and not isinstance(owner, ModuleType):
            given[parameters.pop(0)] = owner
        given |= {name: self.resolve(value) for name, value in zip(parameters, call.args, strict=False)}
        return given | {keyword.arg: self.resolve(keyword.value) for keyword in call.keywords if keyword.arg}


def attribute_of(owner: object, name: str) -> object:
    """An attribute as it is stored, never computed."""
    if owner is UNKNOWN:
        return UNKNOWN
    if isinstance(owner, Made):
        owner = owner.kind
    if isinstance(owner, torch.nn.Module):
        for table in ("_modules", "_parameters", "_buffers"):
            if name in owner.__dict__.get(table, {}):
                return owner.__dict__[table][name]
    found = inspect.getattr_static(owner, name, UNKNOWN)
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    return (
        UNKNOWN if isinstance(found, property) or (hasattr(type(found), "__get__") and not callable(found)) else found
    )


def _element_of(container: object, place: ast.expr) -> object:
    """An element of a list, tuple, dictionary or list of modules; any model in it where its place is not known."""
    if isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)):
        container = dict(container.named_children())
    if not isinstance(container, (list, tuple, dict)):
        return UNKNOWN
    values = list(container.values() if isinstance(container, dict) else container)
    if isinstance(place, ast.Constant):
        try:
            return container[place.value]  # type: ignore[index, call-overload]  # as the job asks
        except (LookupError, TypeError):
            pass
    return next((value for value in values if is_model(value)), UNKNOWN)


def _holds_a_model(owner: object) -> bool:
    """Whether an object that is no module has a model among its attributes."""
    if owner is None or isinstance(owner, (ModuleType, type, torch.nn.Module, torch.optim.Optimizer)):
        return False
    fields = getattr(type(owner), "__dict__", None) and inspect.getattr_static(owner, "__dict__", None)
    values = vars(owner).values() if fields is not None and hasattr(owner, "__dict__") else ()
    return any(is_model(value) for value in values)


def _asks_for_gradients(target: object) -> bool:
    return isinstance(target, FunctionType) and target in _ASK_FOR_GRADIENTS


def _is_of_every_module(name: str) -> bool:
    return hasattr(torch.nn.Module, name) and name not in ("forward", "__call__")


def _is_only_frozen(call: ast.Call) -> bool:
    """`requires_grad_(False)`."""
    return any(isinstance(value, ast.Constant) and value.value is False for value in call.args)


def _own_function(target: object) -> FunctionType | None:
    """The function in a file of the user's that a callable runs."""
    if isinstance(target, MethodType):
        target = target.__func__
    if isinstance(target, BuiltinFunctionType):
        return None
    target = inspect.unwrap(target) if isinstance(target, FunctionType) else target
    return target if isinstance(target, FunctionType) and is_own_file(target.__code__.co_filename) else None


def _closure_of(function: FunctionType) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found


# ---- source ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def tree_of(filename: str) -> ast.Module:
    """The syntax tree of a file, empty where it cannot be read."""
    try:
        with open(filename, encoding="utf-8-sig", errors="replace") as stream:
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


@lru_cache(maxsize=256)
def _definitions_in(filename: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """Functions of a file by name and first line, that of a decorator where there is one."""
    found: dict[tuple[str, int], ast.FunctionDef] = {}
    for node in ast.walk(tree_of(filename)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name, first] = node
    return found


def definition_of(function: FunctionType | object) -> ast.FunctionDef | None:
    """Where a function stands in its file."""
    code = getattr(function, "__code__", function)
    name, first = getattr(code, "co_name", ""), getattr(code, "co_firstlineno", 0)
    return _definitions_in(getattr(code, "co_filename", "")).get((name, first))


def calls_in(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """All calls in these."""
    for node in nodes:
        yield from (part for part in _walk(node) if isinstance(part, ast.Call))
