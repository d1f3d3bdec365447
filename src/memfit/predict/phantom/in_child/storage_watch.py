"""Phase, module and storages of a program on the phantom GPU, watched without changing an allocation.

No dispatch mode is active, because one changes how autograd adds gradients. Modules are followed by wrapping their
call; in the backward, hooks on the tensors that cross a module's edge say whose part begins (they return nothing, so
the engine goes on with the gradient it had). Where the program is, is handed to the allocator as a number which it
keeps with each event (`torch._C._cuda_setMemoryMetadata`, read in torch 2.14).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memfit.predict.observe.phase_and_module import phase_now, tensors_anywhere
from memfit.predict.observe.source_files import kind_of_file
from memfit.predict.phantom.in_child.host_copies import what_it_stands_for
from memfit.predict.phantom.snapshot_timeline import Place, StorageClaim
from memfit.predict.snapshot.recorded import RecordedFrame
from memfit.records.timeline import Category, Phase

_set_metadata: Callable[[str], None] | None = getattr(torch._C, "_cuda_setMemoryMetadata", None)
R = TypeVar("R")
can_note_places = _set_metadata is not None


class RunWatch:
    """Follows one run."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.claims: list[StorageClaim] = []
        self.num_updates: dict[int, int] = {}
        self.step_seconds: list[float] = []
        self.step_processor_seconds: list[float] = []
        self.on_update: Callable[[Optimizer], None] | None = None
        self.has_searched = False
        """Whether an optimizer made iterations of its own, as many as values let it."""
        self.on_backward: Callable[[], None] | None = None
        self.on_root: Callable[[object], None] | None = None
        """Called with the inputs of an outermost module with parameters."""
        self.step = 0
        self._forced: Phase | None = "setup"
        self._backward_line: str | None = None
        self._stack: list[str] = []
        self._roots: dict[int, tuple[weakref.ref[torch.nn.Module], dict[int, str]]] = {}
        """Outermost modules by identity, with the names of what is in them; a job frees its models when it likes."""
        self._names: dict[int, str] = {}
        """Those of the outermost module that was called last."""
        self._kinds: dict[str, int] = {}
        self._frames: dict[int, tuple[int, str, RecordedFrame]] = {}
        self._owners: dict[int, str] = {}
        self._since = time.perf_counter(), time.process_time()
        self._unfollowed: Any = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within, the run is followed."""
        with contextlib.ExitStack() as stack:
            before = register_optimizer_step_pre_hook(self._before_update)
            stack.callback(before.remove)
            after = register_optimizer_step_post_hook(self._after_update)
            stack.callback(after.remove)
            stack.enter_context(patch.object(torch.nn.Module, "__call__", self._wrapped_call(torch.nn.Module.__call__)))
            for name in ("backward", "grad"):
                original = getattr(torch.autograd, name)
                stack.enter_context(patch.object(torch.autograd, name, self._wrapped_backward(original)))
            self.move()
            yield

    # ---- where the program is ----------------------------------------------------------------------------------

    def phase(self) -> Phase:
        """The phase of what happens now."""
        return phase_now(
            in_backward=self._backward_line is not None,
            in_module=bool(self._stack),
            with_gradients=torch.is_grad_enabled(),
            forced=self._forced,
        )

    def move(self, module: str | None = None) -> None:
        """The program went somewhere else: a new place."""
        name = module if module is not None else self._stack[-1] if self._stack else ""
        self.places.append(Place(self.step, self.phase(), name, self._backward_line or ""))
        if _set_metadata is not None:
            _set_metadata(str(len(self.places) - 1))

    @contextlib.contextmanager
    def force(self, phase: Phase | None) -> Iterator[None]:
        """Within, everything outside a backward belongs to this phase."""
        before, self._forced = self._forced, phase
        self.move()
        try:
            yield
        finally:
            self._forced = before
            self.move()

    def begin_step(self, step: int) -> None:
        """The next step begins."""
        self.step, self._forced = step, None
        self.move()

    def line(self) -> str:
        """'file.py:12' of the innermost frame that is the user's own."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if self._kind(frame.f_code.co_filename) == 0:
                return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def main_line(self) -> str:
        """The same of the main thread, asked from another one."""
        frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and self._kind(frame.f_code.co_filename) != 0:
            frame = frame.f_back
        return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""

    def where(self) -> tuple[str, str]:
        """The line outside torch that is running, and the user's own line behind it."""
        frame: Any = sys._getframe(1)
        asked_in = ""
        while frame is not None:
            kind = self._kind(frame.f_code.co_filename)
            if kind < 2:
                place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                asked_in = asked_in or place
                if kind == 0:
                    return asked_in, place
            frame = frame.f_back
        return asked_in, ""

    def line_of_frames(self, frames: Iterable[RecordedFrame]) -> str:
        """The same for the frames of an event; a library's line when none is the user's own."""
        fallback = ""
        for frame in frames:
            known = self._frames.get(id(frame))  # one object stands for a line in all stacks of a record
            if known is None:
                known = (*self._place_of_frame(frame), frame)
                self._frames[id(frame)] = known  # with the frame, so that its identity stays its own
            kind, line, _ = known
            if line and kind == 0:
                return line
            fallback = fallback or line
        return fallback

    def _place_of_frame(self, frame: RecordedFrame) -> tuple[int, str]:
        """Whose file it is and, unless it is torch's, 'file.py:12'."""
        name, kind = frame["filename"], self._kind(frame["filename"])
        has_line = kind == 1 or (kind == 0 and name.endswith(".py"))
        return kind, f"{os.path.basename(name)}:{frame['line']}" if has_line else ""

    def _kind(self, filename: str) -> int:
        kind = self._kinds.get(filename)
        if kind is None:
            kind = self._kinds[filename] = kind_of_file(filename)
        return kind

    # ---- modules -----------------------------------------------------------------------------------------------

    def _wrapped_call(self, original: Callable[..., R]) -> Callable[..., R]:
        watch = self

        def call(module: torch.nn.Module, *args: object, **kwargs: object) -> R:
            if torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            name = watch._enter(module, args, kwargs)
            watch._stack.append(name)
            watch.move()
            try:
                result = original(module, *args, **kwargs)
                watch._hook(result, name)
                return result
            finally:
                watch._stack.pop()
                watch.move()

        return call

    def _enter(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        if self._stack:
            self._hook(args, self._stack[-1])
            return self._names.get(id(module)) or f"{self._stack[-1]}.{type(module).__name__}"
        if self._forced == "setup":
            self._forced = None
        if self.on_root is not None and self._forced != "data" and next(iter(module.parameters()), None) is not None:
            self.on_root((args, kwargs))  # neither a transform of the data nor a loss is an evaluation
        known = self._roots.get(id(module))
        if known is None or known[0]() is not module:
            known = self._take_up(module)
        self._names = known[1]
        for tensor in tensors_anywhere((args, kwargs)):
            if not tensor.requires_grad:
                self.claim(tensor, "input")
        return type(module).__name__

    def _take_up(self, root: torch.nn.Module) -> tuple[weakref.ref[torch.nn.Module], dict[int, str]]:
        """An outermost module is called for the first time: its parameters and buffers say what they are."""
        names = {id(child): path for path, child in root.named_modules() if path}
        known = self._roots[id(root)] = weakref.ref(root), names
        for path, child in root.named_modules():
            name = path or type(root).__name__
            # not child.parameters(recurse=False): a script may have a method `parameters` of its own
            for parameter in (each for each in child._parameters.values() if each is not None):
                self._owners[id(parameter)] = name  # an identity may have been another's that is gone
                self.claim(parameter, "parameter", name)
            for buffer in (each for each in child._buffers.values() if each is not None):
                self.claim(buffer, "buffer", name)
        return known

    def _hook(self, values: object, name: str) -> None:
        """When the gradient of one of these is there, the backward is in this module."""
        with torch._C.DisableTorchFunction():  # what we ask of tensors ourselves is not recorded
            for tensor in tensors_anywhere(values):
                if tensor.grad_fn is not None and not hasattr(tensor, "_memfit_place"):
                    tensor._memfit_place = name  # pyright: ignore[reportAttributeAccessIssue]
                    tensor.register_hook(lambda gradient, name=name: self.move(name) if self._backward_line else None)

    # ---- backward and update -----------------------------------------------------------------------------------

    def _wrapped_backward(self, original: Callable[..., R]) -> Callable[..., R]:
        watch = self

        def backward(*args: object, **kwargs: object) -> R:
            if watch.on_backward is not None and watch._backward_line is None:
                watch.on_backward()
            before, watch._backward_line = watch._backward_line, watch.line() or "?"
            watch.move("")
            try:
                return original(*args, **kwargs)
            finally:
                watch._backward_line = before
                watch.move()

        return backward

    def _before_update(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        with torch._C.DisableTorchFunction():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    owner = self._owners.get(id(parameter), "")
                    self.claim(parameter, "parameter", owner)
                    if parameter.grad is not None:
                        self.claim(parameter.grad, "gradient", owner)
        self._forced = "update"
        self.move()
        if len(args) < 2 and kwargs.get("closure") is None:
            # an update reads no small integers on the GPU: following its many small calls would only take time
            self._unfollowed = torch._C.DisableTorchFunction()
            self._unfollowed.__enter__()

    def _after_update(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._unfollowed is not None:
            self._unfollowed.__exit__(None, None, None)
            self._unfollowed = None
        self._forced = None
        self.move()
        with torch._C.DisableTorchFunction():
            for parameter, state in optimizer.state.items():
                for tensor in tensors_anywhere(state):
                    self.claim(tensor, "optimizer state", self._owners.get(id(parameter), ""))
        self.has_searched |= isinstance(optimizer, torch.optim.LBFGS)
        self.num_updates[id(optimizer)] = self.num_updates.get(id(optimizer), 0) + 1
        now, before = (time.perf_counter(), time.process_time()), self._since
        self.step_seconds.append(now[0] - before[0])
        self.step_processor_seconds.append(now[1] - before[1])
        self._since = now
        if self.on_update is not None:
            self.on_update(optimizer)
        self.move()

    def claim(self, tensor: torch.Tensor, category: Category, module: str = "") -> None:
        """Say what a tensor's storage is."""
        tensor = what_it_stands_for(tensor)
        part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)  # of a sharded tensor, what this rank holds
        if part.is_cuda and part.layout is torch.strided and type(part) in (torch.Tensor, torch.nn.Parameter):
            address = part.untyped_storage().data_ptr()
            self.claims.append(StorageClaim(len(self.places), address, category, module))
