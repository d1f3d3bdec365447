"""How is a plan carried out by a live model, exactly as it was decided, and taken away again?

The first module of a checkpointed run gets a forward that runs all stages of the run under nested, non-reentrant
checkpoints; the other modules of the run hand their input through. Where the last stage says so, its last module is
left outside: it keeps nothing but the output, and a second run of it would be for nothing. The class, the parameters
and the state dict of the model stay as they are: only the attribute `forward` of some modules is set. A copy of the
model, or a pickle of it, is plain.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from memfit.apply.torch_recompute import buffers_on, contexts_for, shelves_of
from memfit.apply.torch_stages import GLUE, same_argument
from memfit.errors import MemfitError, PlanBroken
from memfit.records.plan import Checkpoint, Keep, Node, Stage, stages_of

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


# ---- the forward that replaces a module's own ------------------------------------------------------------------


class PlannedForward:
    """The `forward` of one module under a plan; knows how to become the plain one in a copy."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        self.module, self.call = module, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return plain_forward(memo[id(self.module)]) if id(self.module) in memo else plain_forward(self.module)

    def __reduce__(self) -> Any:
        return plain_forward, (self.module,)


def plain_forward(module: torch.nn.Module) -> Any:
    """The forward that the class of a module defines."""
    return types.MethodType(type(module).forward, module)


class Run:
    """One checkpointed run of stages: what its first module does, and what the others hand through."""

    def __init__(
        self, node: Checkpoint, stages: Sequence[LiveStage], on_call: Tell | None, on_stage: Tell | None
    ) -> None:
        self.node = node
        self.stages = stages
        modules = [m for index in stages_of((node,)) for m in stages[index].modules]
        names = [n for index in stages_of((node,)) for n in stages[index].names]
        self.names = {id(module): name for module, name in zip(modules, names, strict=True)}
        self.modules = modules[:-1] if self._outside(node) is not None else modules
        self.plain = {id(module): module.forward for module in self.modules}
        self.on_call, self.on_stage = on_call, on_stage
        self.expected: list[tuple[list[Any], int, dict[int, Any], Any]] = []
        self._shelves: dict[int, Any] = {}
        """By the id of a node, which lives as long as the run."""

    def forward_of(self, position: int) -> Callable[..., Any]:
        """What the module at this place does when it is called."""
        return self._whole_run if position == 0 else self._hand_through(position)

    def _whole_run(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        at = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)), None)
        if at is None or not torch.is_grad_enabled():
            self.expected = []  # nothing is kept for a backward, so every module runs by itself
            return self.plain[id(self.modules[0])](*args, **kwargs)
        shapes: dict[int, Any] = {}
        call = _Caller(self, leaves, spec, at, shapes)
        result = self._checkpointed(self.node, call, leaves[at])
        self.expected = [(leaves, at, shapes, result)] * (len(self.modules) - 1)
        return _in_shape(shapes[0], result) if 0 in shapes else result

    def _checkpointed(self, node: Checkpoint, call: _Caller, value: Any) -> Any:
        """Run a checkpoint; only the tensor that comes in is given to it, so that hooks outside may move it."""
        buffers = buffers_on(self._shelves_of(node))

        def inside(x: torch.Tensor) -> Any:
            return self._nodes(node.inside, call, x, self._outside(node))

        def contexts() -> tuple[Any, Any]:
            first, again = contexts_for(buffers)
            return first, again if self.on_stage is None else _Telling(again, self.on_stage, _name_of(node))

        return checkpoint(inside, value, use_reentrant=False, context_fn=contexts, preserve_rng_state=True)

    def _shelves_of(self, node: Checkpoint) -> Any:
        if id(node) not in self._shelves:
            modules = [m for index in stages_of((node,)) for m in self.stages[index].modules]
            self._shelves[id(node)] = shelves_of(modules)
        return self._shelves[id(node)]

    def _outside(self, node: Checkpoint) -> torch.nn.Module | None:
        """The module that runs after a checkpoint although it belongs to its last stage; None for most."""
        last = self.stages[list(stages_of((node,)))[-1]]
        return last.modules[-1] if last.ends_before_last else None

    def _nodes(self, nodes: Sequence[Node], call: _Caller, value: Any, outside: torch.nn.Module | None) -> Any:
        for node in nodes:
            if isinstance(node, Keep):
                value = self._stage(node.stage, call, value, outside)
            else:
                value = self._checkpointed(node, call, value)
                after = self._outside(node)
                if after is not None and after is not outside:
                    value = call(after, value)
        return value

    def _stage(self, index: int, call: _Caller, value: Any, outside: torch.nn.Module | None) -> Any:
        if self.on_stage is not None:
            self.on_stage(f"start {index}")
        for module in self.stages[index].modules:
            if module is not outside:
                value = call(module, value)
        if self.on_stage is not None:
            self.on_stage(f"end {index}")
        return value

    def _hand_through(self, position: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.expected:
                return self.plain[id(self.modules[position])](*args, **kwargs)
            leaves, at, shapes, result = self.expected.pop()
            now, _ = tree_flatten((args, kwargs))
            self._check(position, leaves, now, at, result)
            return _in_shape(shapes[position], result)

        return forward

    def _check(self, position: int, then: list[Any], now: list[Any], at: int, result: Any) -> None:
        same = len(then) == len(now) and now[at] is result
        same = same and all(same_argument(a, b) for i, (a, b) in enumerate(zip(then, now, strict=True)) if i != at)
        if not same:
            self.expected = []
            raise PlanBroken(
                f"{self.names[id(self.modules[position])]} is not called as it was when the plan was made",
                found="another input, or other arguments, than the block before it",
                hint="plan again with memfit fit, or undo the plan",
            )


class _Caller:
    """Calls modules of a run with the arguments of the first, the running tensor in place of its first tensor."""

    def __init__(self, run: Run, leaves: list[Any], spec: Any, at: int, shapes: dict[int, Any]) -> None:
        self.run, self.spec, self.at, self.shapes = run, spec, at, shapes
        self.leaves = [None if i == at else leaf for i, leaf in enumerate(leaves)]
        self.positions = {id(module): position for position, module in enumerate(run.modules)}

    def __call__(self, module: torch.nn.Module, value: torch.Tensor) -> Any:
        leaves = [value if i == self.at else leaf for i, leaf in enumerate(self.leaves)]
        args, kwargs = tree_unflatten(leaves, self.spec)
        if self.run.on_call is not None:
            self.run.on_call(self.run.names[id(module)])
        returned = self.run.plain[id(module)](*args, **kwargs)
        out, spec = tree_flatten(returned)
        at = [i for i, leaf in enumerate(out) if isinstance(leaf, torch.Tensor)]
        if len(at) != 1:
            return returned
        self.shapes[self.positions[id(module)]] = ([None if i == at[0] else v for i, v in enumerate(out)], spec, at[0])
        return out[at[0]]


class _Telling:
    """The context of a second run that tells when it begins and when it is over."""

    def __init__(self, inner: Any, tell: Tell, name: str) -> None:
        self.inner, self.tell, self.name = inner, tell, name

    def __enter__(self) -> None:
        self.inner.__enter__()
        self.tell(f"again {self.name}")

    def __exit__(self, *failure: Any) -> Any:
        try:
            return self.inner.__exit__(*failure)
        finally:
            self.tell(f"ready {self.name}")


def _name_of(node: Checkpoint) -> str:
    """'3' for a checkpoint around stage 3 alone, '3-7' for one around several."""
    covered = list(stages_of((node,)))
    return str(covered[0]) if isinstance(node.inside[0], Keep) and len(covered) == 1 else f"{covered[0]}-{covered[-1]}"


def _in_shape(shape: tuple[list[Any], Any, int], value: Any) -> Any:
    """A tensor in the containers that a module returns."""
    leaves, spec, at = shape
    return tree_unflatten([value if i == at else leaf for i, leaf in enumerate(leaves)], spec)


# ---- applying and undoing --------------------------------------------------------------------------------------


@dataclass(slots=True)
class AppliedPlan:
    """A plan that a model carries out; `undo` takes it away."""

    model: torch.nn.Module
    stages: list[LiveStage]
    nodes: tuple[Node, ...]
    changed: list[torch.nn.Module] = field(default_factory=list)
    closers: list[Callable[[], None]] = field(default_factory=list)

    def undo(self) -> None:
        """Leave the model as it was."""
        for module in self.changed:
            module.__dict__.pop("forward", None)
        self.changed.clear()
        while self.closers:
            self.closers.pop()()

    def __enter__(self) -> AppliedPlan:
        return self

    def __exit__(self, *_: Any) -> None:
        self.undo()

    def set_forward(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        """Give a module another forward, until the plan is undone."""
        module.forward = PlannedForward(module, call)
        if module not in self.changed:
            self.changed.append(module)


def apply_nodes(
    model: torch.nn.Module,
    stages: Sequence[Stage],
    nodes: tuple[Node, ...],
    on_call: Tell | None = None,
    on_stage: Tell | None = None,
) -> AppliedPlan:
    """Make a model carry out the checkpoints of a plan.

    Within checkpoints, `on_call` is told the name of every module that runs, and `on_stage` is told 'start 3', 'end 3'
    for every run of stage 3, 'again 3' and 'ready 3' around the second run of a checkpoint.
    """
    live = live_stages(model, stages)
    applied = AppliedPlan(model, live, nodes)
    try:
        for node in nodes:
            if isinstance(node, Checkpoint):
                run = Run(node, live, on_call, on_stage)
                for position, module in enumerate(run.modules):
                    applied.set_forward(module, run.forward_of(position))
    except BaseException:
        applied.undo()
        raise
    return applied
