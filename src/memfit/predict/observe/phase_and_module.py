"""Current phase, module and source line of the traced program, in forward and backward.

Modules: `nn.Module.__call__` is wrapped, so that a stack of paths is always known. In the backward there is no such
stack: on leaving a module, the autograd nodes behind its results that have no name yet are named after it (on
entering, those behind its inputs after its caller); the engine says which node is running. Each node is visited
once. An operator in a backward with a module on the stack belongs to a recomputation.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch

from memfit.predict.observe.later.lines_that_ran import LinesThatRan
from memfit.predict.observe.source_files import kind_of_file
from memfit.records.timeline import Phase
from memfit.version import PACKAGE_FOLDER

LABEL = "memfit"
_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_DATA_FOLDER = os.path.join(_TORCH_FOLDER, "utils", "data") + os.sep
_OWN_FOLDER = PACKAGE_FOLDER + os.sep
NOWHERE = (-1, "")
R = TypeVar("R")
_STUDIES = ("optuna", "hyperopt", "skopt")
_EVALUATES = re.compile(r"\bno_grad\b|\binference_mode\b|\.eval\(\)")


class Places:
    """Knows where the program is."""

    def __init__(self) -> None:
        self.step = 0
        self.forced: Phase | None = "setup"
        self.in_backward = False
        self._roots: list[tuple[weakref.ref[torch.nn.Module], str, bool]] = []
        """Outermost modules, their classes, and whether they have parameters; a module is not kept alive by it."""
        self._stacks = threading.local()
        self._names: list[dict[int, list[str]]] = []
        self._kinds: dict[str, int] = {}
        self._main = threading.main_thread().ident
        self.saw_forward = False
        self.ran = LinesThatRan()
        self.run_root: Callable[[torch.nn.Module, object, Callable[[], object]], object] | None = None
        """Runs an outermost module: given the module, its inputs, and the call itself."""
        self.run_within: Callable[[torch.nn.Module, object, Callable[[], object]], object] | None = None
        """The same for a module within an outermost one."""

    @property
    def _stack(self) -> list[tuple[bool, tuple[int, str]]]:
        """The modules that this thread is in, outermost first: whether called with gradients, and the place."""
        try:
            return self._stacks.modules
        except AttributeError:
            self._stacks.modules = []
            return self._stacks.modules

    # ---- phase -------------------------------------------------------------------------------------------------------

    def here(self) -> tuple[Phase, tuple[int, str], str]:
        """Phase, module and line of the running operator."""
        phase = self.phase()
        module = self._backward_module() if phase == "backward" else self._stack[-1][1] if self._stack else NOWHERE
        return phase, module, self.line()

    def phase(self) -> Phase:
        """The phase of the running operator."""
        stack = self._stack
        with_gradients = stack[-1][0] if stack else torch.is_grad_enabled()  # off within a function of its own
        return phase_now(
            in_backward=self.in_backward, in_module=bool(stack), with_gradients=with_gradients, forced=self.forced
        )

    @contextmanager
    def force(self, phase: Phase | None) -> Iterator[None]:
        """Within, everything outside a backward belongs to this phase."""
        before, self.forced = self.forced, phase
        try:
            yield
        finally:
            self.forced = before

    # ---- modules -----------------------------------------------------------------------------------------------------

    @contextmanager
    def follow_modules(self, on_root: Callable[[torch.nn.Module, object], None] | None = None) -> Iterator[None]:
        """Wrap every module call; `on_root(module, inputs)` is called when an outermost module is entered."""
        original = torch.nn.Module.__call__
        places = self

        def call(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
            is_root = not places._stack
            if is_root and on_root is not None:
                on_root(module, (args, kwargs))
            forced = places.forced
            if is_root and forced == "setup":
                places.forced = None
            place = places._enter(module, (args, kwargs))
            places._stack.append((torch.is_grad_enabled(), place))
            try:
                run = places.run_root if is_root else places.run_within
                if run is not None:
                    result = run(module, (args, kwargs), lambda: original(module, *args, **kwargs))
                else:
                    result = original(module, *args, **kwargs)
                places._label(result, place)
                return result
            finally:
                places._stack.pop()

        torch.nn.Module.__call__ = call
        try:
            yield
        finally:
            torch.nn.Module.__call__ = original

    def _enter(self, module: torch.nn.Module, inputs: object) -> tuple[int, str]:
        if not self._stack:
            return self.root_of(module), ""
        (root, parent) = self._stack[-1][1]
        self._label(inputs, (root, parent))
        names = self._names[root].get(id(module))
        if names is None:
            return root, f"{parent}.{type(module).__name__}".lstrip(".")
        below = f"{parent}." if parent else ""
        return root, next((name for name in names if name.startswith(below)), names[0])

    def living_roots(self) -> list[torch.nn.Module]:
        """The outermost modules that were called and still are there."""
        return [module for known, _, _ in self._roots if (module := known()) is not None]

    def root_of(self, module: torch.nn.Module) -> int:
        """The number of an outermost module; a new one is taken up."""
        for index, (known, _, _) in enumerate(self._roots):
            if known() is module:
                return index
        names: dict[int, list[str]] = {}
        for name, child in module.named_modules(remove_duplicate=False):
            names.setdefault(id(child), []).append(name)
        has_parameters = next(iter(module.parameters()), None) is not None
        self._roots.append((weakref.ref(module), type(module).__name__, has_parameters))
        self._names.append(names)
        return len(self._roots) - 1

    def knows_root(self, module: object) -> bool:
        """Whether this module was an outermost one before."""
        return any(known() is module for known, _, _ in self._roots)

    def root_names(self) -> list[str]:
        """How each outermost module is called: in brackets when it is the only one with parameters."""
        is_alone = sum(has_parameters for _, _, has_parameters in self._roots) == 1
        return [f"({name})" if is_alone and has_parameters else name for _, name, has_parameters in self._roots]

    def _label(self, values: object, place: tuple[int, str]) -> None:
        """Name the autograd nodes behind these values that have no name yet."""
        waiting = [tensor.grad_fn for tensor in tensors_anywhere(values) if tensor.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            metadata: Any = node.metadata
            if LABEL in metadata:
                continue
            metadata[LABEL] = place
            waiting.extend(parent for parent, _ in node.next_functions if parent is not None)

    def _backward_module(self) -> tuple[int, str]:
        node = torch._C._current_autograd_node()
        if node is None:
            return NOWHERE
        metadata: Any = node.metadata
        return metadata.get(LABEL, NOWHERE)

    # ---- source lines ------------------------------------------------------------------------------------------------

    def line(self) -> str:
        """'file.py:12' of the innermost frame that is the user's own."""
        own = self._line_of(sys._getframe(1))
        if own or threading.get_ident() == self._main or self._main is None:
            return own
        return self._line_of(sys._current_frames().get(self._main))  # a thread of torch's own, in a backward

    def noting(self, original: Callable[..., R]) -> Callable[..., R]:
        """A function of torch that remembers the lines it is called from."""

        def noted(*args: object, **kwargs: object) -> R:
            self.ran.note(sys._getframe(1))
            return original(*args, **kwargs)

        return noted

    def _line_of(self, frame: FrameType | None) -> str:
        fallback = ""
        while frame is not None:
            filename = frame.f_code.co_filename
            kind = self._kinds.get(filename)
            if kind is None:
                kind = self._kinds[filename] = kind_of_file(filename)
            if kind == 0:
                self.ran.note(frame)
                return f"{os.path.basename(filename)}:{frame.f_lineno}"
            if kind == 1 and not fallback:
                fallback = f"{os.path.basename(filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return fallback


def is_for_order() -> bool:
    """Whether a data loader or its sampler is asking, for a seed or the order of the data; not somebody they call."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(_DATA_FOLDER):
            return True
        if not filename.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<")):
            return False
        frame = frame.f_back
    return False


def tensors_anywhere(value: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors in containers and in the fields of plain objects, a few levels down."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 5:
        if isinstance(value, Mapping):
            value = value.values()
        elif hasattr(value, "__dataclass_fields__") or type(value).__name__ == "SimpleNamespace":
            value = vars(value).values() if hasattr(value, "__dict__") else ()
        elif not isinstance(value, (list, tuple)):
            return
        for item in value:
            yield from tensors_anywhere(item, depth + 1)


def phase_now(*, in_backward: bool, in_module: bool, with_gradients: bool, forced: Phase | None) -> Phase:
    """The phase of a program that is here; within a backward a module runs only to be recomputed."""
    if in_backward:
        return "recompute" if in_module else "backward"
    if forced is not None:
        return forced
    if not with_gradients:
        return "evaluation" if in_module else "other"
    return "forward"


def is_called_by_library() -> bool:
    """Whether the code that called torch is a library's: of a loop there, no file of the user's says what follows."""
    frame = sys._getframe(1)
    while frame is not None:
        kind = kind_of_file(frame.f_code.co_filename)
        if kind < 2:
            return kind == 1
        frame = frame.f_back
    return False


def is_called_by_study() -> bool:
    """Whether a library that searches for settings has called the code that called torch."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _STUDIES:
            return True
        frame = frame.f_back
    return False


def is_drawn_by_tensorboard() -> bool:
    """Whether a writer for TensorBoard wants the graph of a model, to draw it."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "add_graph" and "tensorboard" in frame.f_code.co_filename.lower():
            return True
        frame = frame.f_back
    return False


def speaks_of_evaluation(script: str, modules_before: set[str]) -> bool:
    """Whether the files of a job, its script and its own modules, speak of running a model without gradients."""
    new = [module for name, module in list(sys.modules.items()) if name not in modules_before]
    files = {getattr(module, "__file__", None) for module in new}
    own = {script, *(name for name in files if name and name.endswith(".py") and kind_of_file(name) == 0)}
    return any(_EVALUATES.search(_text_of(name)) for name in own if name)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
