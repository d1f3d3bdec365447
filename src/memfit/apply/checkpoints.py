"""Makes a live model carry out the checkpoints of a plan, and takes them away again.

Around the calls of every module of a checkpoint stands a layer (`model/call_sites.py`). The user's code calls the
modules as it always does; the layer carries out each call and, where the plan says so, drops what the call saves
(`recompute.py`). Calls that follow one another as planned share a frame; any other call begins a frame of its own,
so that the model computes what it would without a plan, whatever its code decides. Where a plan says that a stage ends
before its last module, that module is left alone. The class, `forward`, the hooks, the parameters and the state dict of
the model stay as they are, and a copy or a pickle of it is plain.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.modules import module as torch_module

from memfit.apply.recompute import CallMaker, Frame, Region, Trail
from memfit.errors import MemfitError
from memfit.model.call_sites import add_layer, is_compiled, layers_of, within_a_transform
from memfit.model.module_state import Watch
from memfit.model.random_and_autocast import Drawing
from memfit.model.stages import GLUE
from memfit.model.tensors_in_arguments import leaves_of
from memfit.records.plan import Checkpoint, Keep, Node, Stage, stages_of
from memfit.units import format_bytes

Tell = Callable[[str], None]


@dataclass(slots=True)
class LiveStage:
    """A stage with its modules; none for glue."""

    name: str
    modules: list[torch.nn.Module]
    names: list[str]
    ends_before_last: bool = False
    """Whether a checkpoint that ends with this stage leaves its last module outside."""

    @property
    def is_glue(self) -> bool:
        """Whether it runs between modules."""
        return not self.modules


def live_stages(model: torch.nn.Module, stages: Sequence[Stage]) -> list[LiveStage]:
    """The modules that the stages of a chain name."""
    live = []
    for stage in stages:
        names = [] if stage.kind == GLUE else stage.name.split(" + ")
        modules = [_module(model, name) for name in names]
        live.append(LiveStage(stage.name, modules, names, stage.ending is not None and len(modules) > 1))
    return live


def _module(model: torch.nn.Module, name: str) -> torch.nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise MemfitError(
            "the plan is for another model",
            found=f"there is no module {name!r} in {type(model).__name__}",
            hint="plan again with memfit fit",
        ) from None


# ---- one checkpoint of a plan ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Member:
    """One module of a run."""

    module: torch.nn.Module
    name: str
    stage: int
    is_first: bool
    """Of its stage, as far as the run covers it."""
    is_last: bool


class Run:
    """One checkpoint with its modules in order, and the frame that their calls are put into."""

    def __init__(self, node: Checkpoint, live: Sequence[LiveStage], listeners: Listeners) -> None:
        self.listeners = listeners
        self.members: list[_Member] = []
        self.region = self._region(node, live, _outside(node, live))
        self._local = threading.local()

    def _region(self, node: Checkpoint, live: Sequence[LiveStage], outside: torch.nn.Module | None) -> Region:
        """Number the modules of a checkpoint; one that is outside of an inner checkpoint belongs to the outer."""
        items: list[int | Region] = []
        for inner in node.inside:
            if isinstance(inner, Keep):
                items += self._add(inner.stage, live[inner.stage], outside)
                continue
            after = _outside(inner, live)
            items.append(self._region(inner, live, after))
            if after is not None and after is not outside:
                last = list(stages_of((inner,)))[-1]
                items.append(self._put(_Member(after, live[last].names[-1], last, is_first=False, is_last=True)))
        return Region(_name_of(node), items)

    def _add(self, index: int, stage: LiveStage, outside: torch.nn.Module | None) -> list[int]:
        pairs = [(m, n) for m, n in zip(stage.modules, stage.names, strict=True) if m is not outside]
        last = len(pairs) - 1
        return [self._put(_Member(m, n, index, at == 0, at == last)) for at, (m, n) in enumerate(pairs)]

    def _put(self, member: _Member) -> int:
        self.members.append(member)
        return len(self.members) - 1

    def frame_for(self, position: int, args: object) -> Frame:
        """The frame that a call belongs to: the open one if it goes on as planned, else a new one."""
        known: weakref.ref[Frame] | None = getattr(self._local, "frame", None)
        frame = known() if known is not None else None
        if frame is not None and frame.is_open and frame.last_position < position and frame.reads(args):
            return frame
        trail: Trail | None = getattr(self._local, "trail", None)
        # A frame that saved nothing dies at once: there is nothing to run again, and nothing to warn of.
        has_died = frame is None and trail is not None and trail.num_saved == 0 and trail.position == position - 1
        if position > 0 and not has_died:
            self.listeners.say(
                "order",
                f"{self.members[position].name} is not called with what the block before it returned, as it was when "
                "the plan was made: blocks are recomputed in shorter runs, and the step may take more than the budget",
            )
        tell = self.listeners.on_stage
        frame = Frame(self.region, self.listeners.on_call, tell, self.listeners.is_exact)
        self._local.frame, self._local.trail = weakref.ref(frame), frame.trail
        return frame


def _outside(node: Checkpoint, live: Sequence[LiveStage]) -> torch.nn.Module | None:
    """The module that runs after a checkpoint although it belongs to its last stage; None for most."""
    last = live[list(stages_of((node,)))[-1]]
    return last.modules[-1] if last.ends_before_last else None


def _name_of(node: Checkpoint) -> str:
    """'3' for a checkpoint around stage 3 alone, '3-7' for one around several."""
    covered = list(stages_of((node,)))
    return str(covered[0]) if isinstance(node.inside[0], Keep) and len(covered) == 1 else f"{covered[0]}-{covered[-1]}"


@dataclass(slots=True)
class Listeners:
    """Callbacks while a plan is carried out."""

    on_call: Tell | None = None
    on_stage: Tell | None = None
    is_exact: bool = True
    """Whether values of second runs are compared with the first; not where the model does not agree with itself."""
    said: dict[str, str] = field(default_factory=dict)
    """By its kind, what was said of calls that were not as planned: they may take more than the budget."""

    def say(self, kind: str, what: str) -> None:
        """Warn once of each kind."""
        if kind not in self.said:
            self.said[kind] = what
            warnings.warn(f"memfit: {what}", RuntimeWarning, stacklevel=2)


# ---- the layer around a module -----------------------------------------------------------------------------------


class PlannedCall:
    """The layer around the calls of one module of a run."""

    def __init__(self, run: Run, position: int, input_bytes: int | None) -> None:
        self.run, self.member, self.input_bytes = run, run.members[position], input_bytes
        self.module = self.member.module
        self.watch = Watch(self.module)
        stage = (self.member.stage, self.member.is_first, self.member.is_last)
        self.make = CallMaker(position, self.member.name, stage, self.watch, Drawing(), self._say_kept)
        self._lock, self._armed, self._num_swapped = threading.Lock(), threading.local(), 0
        self._plain: Callable[..., object] | None = None

    def __call__(self, proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not self._may_drop():
            return proceed(*args, **kwargs)
        if is_compiled(self.module):
            return self._in_frame(proceed, args, kwargs)
        if _has_hooks(self.module):
            return self._within_hooks(proceed, args, kwargs)
        return self._in_frame(self.module.forward, args, kwargs)

    def _may_drop(self) -> bool:
        """Whether a backward may follow, and hooks below are those of the plan."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return False
        if within_a_transform():
            return False
        self.watch.refresh()
        if self.watch.has_new_hooks():
            self._say_kept("a hook was added inside it after the plan was made")
            return False
        return True

    def _in_frame(self, forward: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        self._check_size(args, kwargs)
        frame = self.run.frame_for(self.make.position, (args, kwargs))
        tell = self.run.listeners.on_stage
        if tell is not None and self.member.is_first:
            tell(f"start {self.member.stage}")
        output = frame.run(self.make, forward, args, kwargs)
        if tell is not None and self.member.is_last:
            tell(f"end {self.member.stage}")
        return output

    def _within_hooks(
        self, proceed: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Let hooks around the module run once and by themselves: only its forward is in the frame."""
        with self._lock:
            if self._num_swapped == 0:
                self._plain = self.module.__dict__.get("forward")
                self.module.__dict__["forward"] = self._forward
            self._num_swapped += 1
        self._armed.on = True
        try:
            return proceed(*args, **kwargs)
        finally:
            self._armed.on = False
            with self._lock:
                self._num_swapped -= 1
                if self._num_swapped == 0 and self.module.__dict__.get("forward") == self._forward:
                    self._restore()

    def _restore(self) -> None:
        if self._plain is None:
            del self.module.__dict__["forward"]
        else:
            self.module.__dict__["forward"] = self._plain
        self._plain = None

    def _forward(self, *args: object, **kwargs: object) -> object:
        plain = self._plain or type(self.module).forward.__get__(self.module)
        if not getattr(self._armed, "on", False):
            return plain(*args, **kwargs)
        self._armed.on = False
        return self._in_frame(plain, args, kwargs)

    def _check_size(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not self.input_bytes:
            return
        first = next((leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
        if first is not None and first.nbytes > self.input_bytes:
            self.run.listeners.say(
                "size",
                f"{self.member.name} is given {format_bytes(first.nbytes)}, {format_bytes(self.input_bytes)} when the "
                "plan was made: the step may take more than the budget; fit again with the largest batch",
            )

    def _say_kept(self, why: str) -> None:
        self.run.listeners.say(
            f"kept {self.member.name}",
            f"{self.member.name} is not recomputed in this call: {why}; the step may take more than the budget",
        )


def _has_hooks(module: torch.nn.Module) -> bool:
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own) or bool(torch_module._has_any_global_hook())


def carries_plan(module: torch.nn.Module) -> bool:
    """Whether a plan stands around the calls of a module."""
    return any(isinstance(layer, PlannedCall) or hasattr(layer, "of_a_plan") for layer in layers_of(module))


# ---- applying and undoing ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AppliedPlan:
    """A plan that a model carries out; `undo` takes it away."""

    model: torch.nn.Module
    stages: list[LiveStage]
    nodes: tuple[Node, ...]
    listeners: Listeners = field(default_factory=Listeners)
    closers: list[Callable[[], None]] = field(default_factory=list)
    calls: list[PlannedCall] = field(default_factory=list)
    """One for each module of a checkpoint."""

    def undo(self) -> None:
        """Leave the model as it was."""
        while self.closers:
            self.closers.pop()()

    def __enter__(self) -> AppliedPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def apply_nodes(
    model: torch.nn.Module,
    stages: Sequence[Stage],
    nodes: tuple[Node, ...],
    on_call: Tell | None = None,
    on_stage: Tell | None = None,
    is_exact: bool = True,
    uncalled: Sequence[str] = (),
) -> AppliedPlan:
    """Make a model carry out the checkpoints of a plan.

    Within checkpoints, `on_call` gets the name of every module that runs, and `on_stage` gets 'start 3', 'end 3'
    for every run of stage 3, 'again 3' and 'ready 3' around the second run of a checkpoint. Blocks that are `uncalled`
    in the chain are recomputed alone.
    """
    live = live_stages(model, stages)
    alone = [LiveStage(name, [_module(model, name)], [name]) for name in uncalled]
    nodes = (*nodes, *(Checkpoint(inside=(Keep(stage=len(live) + i),)) for i in range(len(alone))))
    live += alone
    applied = AppliedPlan(model, live, nodes, Listeners(on_call, on_stage, is_exact))
    try:
        for node in nodes:
            if isinstance(node, Checkpoint):
                run = Run(node, live, applied.listeners)
                for position, member in enumerate(run.members):
                    size = _planned_input_bytes(stages, member) if position == 0 else None
                    applied.calls.append(PlannedCall(run, position, size))
                    applied.closers.append(add_layer(member.module, applied.calls[-1]))
    except BaseException:
        applied.undo()
        raise
    return applied


def _planned_input_bytes(stages: Sequence[Stage], member: _Member) -> int | None:
    """What the first module of a run was given when the plan was made; None when that is unknown."""
    known = 0 < member.stage < len(stages)
    return stages[member.stage - 1].output_bytes if known else None
