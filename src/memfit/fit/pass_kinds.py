"""Kinds of passes of one program, known by what they begin with; each gets a plan of its own.

A GAN trains its discriminator in one pass and its generator in another. A plan belongs to the modules that one kind of
pass calls, so that it is applied when such a pass begins and taken away when one of another kind does. A kind that is
not at work holds none of its modules: a program may drop a model and make a new one. It may also train other parts of
the same one from some step on (unfreezing layers, adding or pruning some): such passes are another kind.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from memfit.apply.checkpoints import AppliedPlan
from memfit.fit.fitted import FittedModel
from memfit.fit.job_of_pass import model_of
from memfit.fit.levers import carry_out
from memfit.fit.recorded_pass import Tape
from memfit.fit.replaced_results import LastResult
from memfit.fit.tensors_alive import optimizer_of
from memfit.model.tensors_in_arguments import tensors_in
from memfit.records.plan import Plan

MOST_KINDS = 8
"""A program with more has passes without a plan of their own."""


@dataclass(slots=True, eq=False)
class PassKind:
    """Passes that begin with the same module, given tensors with or without a history, and train the same parts."""

    begins: weakref.ref[torch.nn.Module]
    takes_gradients: bool
    tape: Tape | None = None
    """Of a pass that was recorded and is to be fitted when the next one of its kind begins."""
    last_result: LastResult = field(default_factory=LastResult)
    """What the call returned that began the recorded pass."""
    fitted: FittedModel | AppliedPlan | None = None
    """The plan while it is applied."""
    planned_bytes: int = 0
    """Of input, in the pass that was planned for."""
    recorded_bytes: int = 0
    waiting_bytes: int = 0
    """What graphs of other passes held when the recorded one began."""
    highest_beside_bytes: int | None = None
    """What the planned step was measured with above all that is there when it begins; None where there is no plan."""
    unsteppable: str = ""
    num_calls: int = 0
    """Of models that are trained, in the longest pass that was recorded."""
    num_fits: int = 0
    num_passes: int = 0
    """Under a plan."""
    follows: PassKind | None = None
    """The kind whose graphs passes of this one go on from: both have one plan, that of the first of them."""
    given_up: str = ""
    """Why no plan is made for it."""
    keeps_plan: bool = False
    """Whether its plan stays although the program keeps more: none was found that holds beside it."""
    _trained: tuple[int, ...] = ()
    """What the modules that are known of it train."""
    _plan: Plan | None = None
    _modules: list[weakref.ref[torch.nn.Module]] = field(default_factory=list)
    _is_exact: bool = True
    _said: dict[str, str] = field(default_factory=dict)

    @property
    def has_plan(self) -> bool:
        """Whether there is one, applied or not."""
        return self.fitted is not None or self._plan is not None

    def take(self, fitted: FittedModel, modules: list[torch.nn.Module]) -> None:
        """From now on passes of this kind run under this plan, which is applied."""
        self.fitted, self._plan = fitted, fitted.plan
        self.know(modules)
        if fitted.applied is not None:
            self._is_exact, self._said = fitted.applied.listeners.is_exact, fitted.applied.listeners.said
        self.num_fits += 1

    def know(self, modules: list[torch.nn.Module]) -> None:
        """From now on passes of this kind are those that train the same parts of these modules."""
        self._modules, self._trained = [weakref.ref(module) for module in modules], _trained_parts(modules)

    def trains_the_same(self) -> bool:
        """Whether a pass that begins now trains what passes of this kind do."""
        modules = [module for reference in self._modules if (module := reference()) is not None]
        return len(modules) == len(self._modules) and _trained_parts(modules) == self._trained

    def apply(self, disk: str | None) -> None:
        """Apply the plan again, where it is not."""
        modules = [module for reference in self._modules if (module := reference()) is not None]
        if self.fitted is not None or self._plan is None or len(modules) < len(self._modules):
            return
        model = model_of(modules)
        optimizer = optimizer_of([model]) if self._plan.applied_levers else None
        applied = carry_out(model, self._plan, disk, optimizer, is_exact=self._is_exact)
        applied.listeners.said = self._said  # what was said once is not said again
        self.fitted = applied

    def put_away(self) -> None:
        """Take the plan off; it can be applied again."""
        if self.fitted is not None:
            self.fitted.undo()
            self.fitted = None

    def forget_plan(self) -> None:
        """Take the plan off for good."""
        self.put_away()
        self._plan, self.highest_beside_bytes = None, None


class PassKinds:
    """All kinds of passes that a program was seen to make."""

    def __init__(self) -> None:
        self._kinds: list[PassKind] = []

    def __iter__(self) -> Iterator[PassKind]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def of(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> PassKind | None:
        """The kind of a pass that begins with this call; None where there are too many already."""
        given = [t for t in tensors_in((args, kwargs)) if not isinstance(t, torch.nn.Parameter)]
        takes_gradients = any(tensor.requires_grad for tensor in given)
        self._kinds = [kind for kind in self._kinds if kind.begins() is not None]
        for kind in self._kinds:
            if kind.begins() is module and kind.takes_gradients == takes_gradients and kind.trains_the_same():
                return kind
        if len(self._kinds) >= MOST_KINDS:
            return None
        self._kinds.append(PassKind(weakref.ref(module), takes_gradients))
        self._kinds[-1].know([module])
        return self._kinds[-1]

    def tape_to_fit(self, kind: PassKind) -> Tape | None:
        """The recorded pass that stands for a kind: of one that goes on from it, where there is one."""
        for each in self._kinds:
            if each.follows is kind and each.tape is not None and not each.tape.fault:
                return each.tape
        return kind.tape

    def followers_of(self, kind: PassKind) -> list[PassKind]:
        """Kinds that go on from the graphs of this one."""
        return [each for each in self._kinds if each.follows is kind]

    def whose_tape(self, tape: Tape) -> PassKind | None:
        """The kind that a tape was recorded for."""
        return next((kind for kind in self._kinds if kind.tape is tape), None)

    def like(self, kind: PassKind) -> PassKind | None:
        """Another kind with a plan that begins with the same module."""
        alike = [each for each in self._kinds if each is not kind and each.begins() is kind.begins()]
        return next((each for each in alike if each.has_plan), None)


def _trained_parts(modules: list[torch.nn.Module]) -> tuple[int, ...]:
    """What tells one choice of parameters that get gradients from another."""
    return tuple(id(p) for module in modules for p in module.parameters() if p.requires_grad and p.is_leaf)
