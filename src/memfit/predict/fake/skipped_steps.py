"""Long training loops after the steps that are predicted: their repeated steps are passed over, to reach an evaluation.

A step whose shapes repeat holds what the steps before it held. Once enough of them were followed, a call of a model
with arguments seen before is not run: its results are made as they were, joined to their inputs by one autograd node.
When the backward reaches that node, the parameters that had gradients have them again; an optimizer that was followed
before changes nothing. A call with other shapes is run, and so is one that begins with more live bytes than those that
were run, by what matters. What is passed over is listed.

Optimizers that search (L-BFGS) call the model many times in one step and keep something of each: they are taken to
make all the iterations they may, and their calls are passed over likewise.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast

import torch
from torch.utils import _pytree

from memfit.predict.child.messages import UNSEEN
from memfit.predict.fake.repeated_calls import Key, Leaf, geometry_of, has_own_hooks, key_of
from memfit.predict.observe.storage_tracker import Tracker
from memfit.units import format_bytes

ALIKE = 2
"""Calls that are run before others with the same shapes are passed over."""
NEGLIGIBLE = 2e-3
"""Share of the highest live bytes by which a call may begin higher than those that were run."""
SEARCHES = "the optimizer was taken to make all the iterations that it may in a step, and to keep all it may keep"
FOR_TIME = "calls of the model in later iterations of the optimizer were passed over, for time"
R = TypeVar("R")
Keeper = torch.nn.Module | torch.optim.Optimizer
Results = tuple[tuple[Leaf, ...], _pytree.TreeSpec, tuple[bool, ...]]
"""Leaves, tensors by their geometry; how they are nested; and which tensors need gradients."""
Sizes = tuple[tuple[int, str], ...]
"""Bytes and devices of storages."""
Seen = tuple[int, Results, int, Sizes]
"""How many calls were alike, what they gave, the live bytes that the last began with, and what its graph keeps."""


class PassedSteps:
    """Knows what the calls of models gave during the steps, and answers for them later."""

    def __init__(self, tracker: Tracker, note: Callable[[str, str], None]) -> None:
        self._tracker, self._note = tracker, note
        self._seen: weakref.WeakKeyDictionary[torch.nn.Module, dict[Key, Seen]] = weakref.WeakKeyDictionary()
        self._trained: weakref.WeakKeyDictionary[Keeper, set[int]] = weakref.WeakKeyDictionary()
        """Identities of parameters that had a gradient at an update, by the optimizer or module that keeps them alive.

        An identity is used again once its parameter is gone; a tensor with weak references cannot be moved."""
        self._followed: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        """How many steps in a row each optimizer made with as many gradients, and with how many."""
        self._begun: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        """The most live bytes that a step of each optimizer began with that was run."""
        self.is_passing = self._searches = False
        self.is_possible = True
        """False where a script asks for gradients of its own (`autograd.grad`), which need the true graph."""
        self.on_step: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
        self.is_late: Callable[[], bool] = lambda: False
        """Whether the prediction has taken so long that iterations of a search are no longer followed."""
        self._higher_bytes = 0
        self._graphs: weakref.WeakSet[_Graph] = weakref.WeakSet()
        """Of results that were made again and are alive."""
        self._chooses: weakref.WeakKeyDictionary[torch.nn.Module, set[Key]] = weakref.WeakKeyDictionary()
        """Calls that kept more or less than the one before: a path through the model that is drawn, or that grows."""
        self.calls_of_step: list[Key] = []
        """What the calls since the last step looked like, run or passed over."""
        self.was_passed = False
        """Whether one of them was passed over."""

    # ---- calls of models -------------------------------------------------------------------------------------------

    def run(self, module: torch.nn.Module, inputs: object, call: Callable[[], R]) -> R:
        """The result of a call with gradients: run, or made again."""
        key = None if has_own_hooks(module) else key_of(module, inputs)
        if key is not None:
            key = (*key, tuple(parameter.requires_grad for parameter in module.parameters()))
        if key is None or next(iter(module.parameters()), None) is None:
            return call()
        self.calls_of_step.append((id(module), *key))
        seen = self._seen.setdefault(module, {})
        absent_bytes = sum(graph.absent_bytes for graph in self._graphs)
        known, live_bytes = seen.get(key), self._tracker.log.live_bytes + absent_bytes
        repeats = known is not None and key not in self._chooses.get(module, ())
        if known is not None and repeats and self._may_pass(known, live_bytes) and self._was_trained(module):
            self._note("script", "steps after those that are predicted were passed over, since their shapes repeat")
            self.was_passed = True
            return cast("R", self._made_again(module, inputs, known))
        self.hold_graphs()
        num_births = len(self._tracker.log.births)
        result = call()
        shown = _results_of(result)
        if shown is None:
            seen.pop(key, None)
        else:
            kept = self._kept_beside(result, num_births)
            alike = known[0] if known is not None and known[1][:2] == shown[:2] else 0
            if known is not None and alike and sorted(known[3]) != sorted(kept):
                self._chooses.setdefault(module, set()).add(key)
            seen[key] = alike + 1, shown, live_bytes, kept
        return result

    def _may_pass(self, known: Seen, live_bytes: int) -> bool:
        """Whether a call that was run before can tell nothing new."""
        may = (self.is_passing or self._searches) and self.is_possible and known[0] >= ALIKE
        higher_bytes = live_bytes - known[2]
        if not may or higher_bytes <= NEGLIGIBLE * self._tracker.log.highest_bytes:
            return may
        if self._searches and self.is_late():
            self._higher_bytes = max(self._higher_bytes, higher_bytes)
            return True
        return False

    def _was_trained(self, module: torch.nn.Module) -> bool:
        """Whether it is known which parameters get gradients; of a model that is not trained, none."""
        trained = self.trained
        free = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return not free or any(id(parameter) in trained for parameter in free)

    def note_unseen(self) -> None:
        """List by how much calls began higher that were passed over for time."""
        if self._higher_bytes:
            self._note(UNSEEN, f"{FOR_TIME}; they begin up to {format_bytes(self._higher_bytes)} higher")

    def hold_graphs(self) -> None:
        """Something is run while results are alive that were made again: what their graphs would hold is held."""
        for graph in list(self._graphs):
            graph.hold()

    def _kept_beside(self, result: object, num_births: int) -> Sizes:
        """What a call left alive beside its result, for the backward."""
        log, leaves = self._tracker.log, _pytree.tree_leaves(result)
        given = {self._tracker.uid_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        kept = sorted(self._tracker.living_since(num_births) - given)
        return tuple((log.births[uid].num_bytes, log.births[uid].device) for uid in kept)

    def _made_again(self, module: torch.nn.Module, inputs: object, known: Seen) -> object:
        leaves, nest, needs_gradient = known[1]
        graph = _Graph(known[3], inputs)
        self._graphs.add(graph)
        given = [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        with self._tracker.outside.made_here():
            anchor = torch.empty((), requires_grad=True)
        made = _StandIn.apply(graph, lambda: self._give_gradients(module), leaves, needs_gradient, anchor, *given)
        tensors = iter(made)
        found = [next(tensors) if isinstance(leaf, tuple) else leaf for leaf in leaves]
        return _pytree.tree_unflatten(found, nest)

    def _give_gradients(self, module: torch.nn.Module) -> None:
        """The backward of a call that was not run: parameters that were trained before have gradients again."""
        trained = self.trained
        for parameter in module.parameters():
            if parameter.grad is None and parameter.requires_grad and id(parameter) in trained:
                parameter.grad = torch.empty_like(parameter)
                self._tracker.see(parameter.grad, "given", "gradient")

    # ---- updates ---------------------------------------------------------------------------------------------------

    def note_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer made a step; its gradients are still there."""
        num_steps, before = self._followed.get(optimizer, (0, 0))
        num_gradients = _num_gradients(optimizer)
        self._followed[optimizer] = (num_steps + 1 if num_gradients == before else 1), num_gradients
        self.note_trained(optimizer, (parameter for group in optimizer.param_groups for parameter in group["params"]))
        for module in self._seen:  # a model outlives its optimizer where each epoch makes a new one
            self.note_trained(module, module.parameters())

    def note_backward(self) -> None:
        """A backward is done: models that no optimizer of torch trains have their gradients now."""
        for module in list(self._seen):
            if not self._trained.get(module):
                self.note_trained(module, module.parameters())

    @property
    def trained(self) -> set[int]:
        """Identities of living parameters that had a gradient at an update."""
        return set[int]().union(*self._trained.values())

    def note_trained(self, keeper: Keeper, parameters: Iterable[torch.Tensor]) -> None:
        """Remember which of these have gradients, for as long as the optimizer or module lives that keeps them."""
        held = {id(parameter): parameter.grad is not None for parameter in parameters}
        before = self._trained.get(keeper, set()) & held.keys()
        self._trained[keeper] = before | {identity for identity, has_gradient in held.items() if has_gradient}

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Within, the steps of optimizers that were followed are passed over while others are."""
        changed: dict[Any, Callable[..., object]] = {}
        make: Callable[..., None] = torch.optim.Optimizer.__init__
        passed = self

        def made(self: torch.optim.Optimizer, *args: object, **kwargs: object) -> None:
            make(self, *args, **kwargs)
            kind: Any = next(base for base in type(self).__mro__ if "step" in base.__dict__)
            if kind not in changed:
                changed[kind] = kind.step
                kind.step = passed._stepping(kind.step)

        torch.optim.Optimizer.__init__ = made
        try:
            yield
        finally:
            torch.optim.Optimizer.__init__ = make
            for kind, step in changed.items():
                kind.step = step

    def _knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer made steps with as many gradients as now (its state is there), and with as much beside
        them: a checkpoint that was loaded, a best state that is kept."""
        num_steps, num_gradients = self._followed.get(optimizer, (0, 0))
        if num_steps < ALIKE or num_gradients != _num_gradients(optimizer):
            return False
        higher_bytes = self._tracker.log.live_bytes - self._begun.get(optimizer, 0)
        return higher_bytes <= NEGLIGIBLE * self._tracker.log.highest_bytes

    def _stepping(self, original: Callable[..., object]) -> Callable[..., object]:
        passed = self

        def step(optimizer: torch.optim.Optimizer, *args: object, **kwargs: object) -> object:
            if isinstance(optimizer, torch.optim.LBFGS):
                return passed._search(original, optimizer, args, kwargs)
            if not (passed.is_passing and passed.is_possible and passed._knows(optimizer)):
                passed._begun[optimizer] = max(passed._begun.get(optimizer, 0), passed._tracker.log.live_bytes)
                return original(optimizer, *args, **kwargs)
            passed.on_step(optimizer)
            closure = cast("Callable[[], object] | None", args[0] if args else kwargs.get("closure"))
            return None if closure is None else closure()

        step.hooked = True  # type: ignore[attr-defined]  # torch 2.13: as the optimizer's own wrapper says
        step.__wrapped__ = original  # type: ignore[attr-defined]
        return step

    def _search(
        self,
        original: Callable[..., object],
        optimizer: torch.optim.LBFGS,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """A step of L-BFGS: no tolerance is ever reached."""
        self._note("upper bound", SEARCHES)
        groups = optimizer.param_groups
        names = ("tolerance_grad", "tolerance_change")
        before = [{name: group[name] for name in names} for group in groups]
        for group in groups:
            group.update(dict.fromkeys(names, -math.inf))
        self._searches = True
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            self._searches = False
            for group, kept in zip(groups, before, strict=True):
                group.update(kept)


def _num_gradients(optimizer: torch.optim.Optimizer) -> int:
    return sum(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


class _Graph:
    """What the graph behind a result that was made again would keep alive until its backward."""

    def __init__(self, sizes: Sizes, inputs: object) -> None:
        self._sizes, self._inputs, self._held = sizes, inputs, list[torch.Tensor]()

    @property
    def absent_bytes(self) -> int:
        """What it would hold and does not."""
        return 0 if self._held else sum(num_bytes for num_bytes, _ in self._sizes)

    def hold(self) -> None:
        """Hold as much; done once, when something is run that finds it alive."""
        if not self._held:
            self._held = [torch.empty(size, dtype=torch.uint8, device=device) for size, device in self._sizes]

    def release(self) -> None:
        """The backward has passed."""
        self._sizes, self._inputs, self._held = (), None, []


class _Context(Protocol):
    """What autograd hands to both sides of a function, and what is put on it."""

    graph: _Graph
    on_backward: Callable[[], None]
    shapes: list[tuple[tuple[int, ...], torch.dtype, torch.device]]

    def mark_non_differentiable(self, *args: torch.Tensor) -> None: ...


class _StandIn(torch.autograd.Function):
    """Results of a call that is not run, joined to what it was given."""

    @staticmethod
    def forward(
        ctx: _Context,
        graph: _Graph,
        on_backward: Callable[[], None],
        leaves: tuple[Leaf, ...],
        needs_gradient: tuple[bool, ...],
        anchor: torch.Tensor,
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.graph = graph
        ctx.on_backward, ctx.shapes = on_backward, [(tuple(t.shape), t.dtype, t.device) for t in given]
        made = tuple(
            torch.empty_strided(leaf[0], leaf[1], dtype=leaf[3], device=leaf[4])
            for leaf in leaves
            if isinstance(leaf, tuple)
        )
        ctx.mark_non_differentiable(*(t for t, needs in zip(made, needs_gradient, strict=True) if not needs))
        return made

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.graph.release()
        with torch.no_grad():
            ctx.on_backward()
            return None, None, None, None, None, *(torch.empty(s, dtype=d, device=place) for s, d, place in ctx.shapes)


def _results_of(value: object) -> Results | None:
    """A result by the geometry of its tensors, and which of them need gradients; None where it cannot be made again."""
    shown = geometry_of(value)
    if shown is None:
        return None
    tensors = [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    needs = tuple(tensor.requires_grad for tensor in tensors)
    makes = all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors if tensor.requires_grad)
    return (*shown, needs) if any(needs) and makes else None
