"""Stages of the chain: which module calls form one, and across which boundaries a checkpoint may reach.

Stages are the children of the dominant `ModuleList` or `Sequential`, in the order of their calls. A call is opened,
so that its children become stages, when it is a `Sequential`, when more than half of all bytes are made in it
and there is a container below, or when it is a stack: nearly all that it makes is made by the blocks of a `ModuleList`,
called one after another, as in the encoder and in the decoder of a translation model. What runs between stages is
glue: it is kept, for it cannot be run again without its parent.

Two stages are joined when the one tensor that the first returns is the very object that the second is given, nothing
else reads it, and both are called in the same way otherwise. A stage that writes into its input, or returns a view
of it, is fused with the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from memfit.errors import UsageError
from memfit.model.module_calls import PLAIN, Call, CallTree, SeenObject, SeenTensor

DOMINANT = 0.5
STACK = 0.1
"""A stack is opened where this share of all bytes is made in it."""
NEARLY_ALL = 0.8
NEGLIGIBLE = 0.01
GLUE = "glue"
FUSED = " + "


@dataclass(slots=True)
class StageLayout:
    """One stage: calls that always run together, or glue."""

    name: str
    calls: list[Call] = field(default_factory=list)
    kind: str = ""
    recomputable: bool = True
    joins_next: bool = True

    @property
    def is_glue(self) -> bool:
        """Whether it runs between modules."""
        return self.kind == GLUE


@dataclass(slots=True)
class Layout:
    """The chain as modules."""

    stages: list[StageLayout]
    notes: list[str]
    uncalled: tuple[str, ...] = ()
    """Blocks of a list that were not called, although others of the list were."""
    is_sized_by_values: bool = False
    """Whether how much the step takes depends on values, as where rows are sent to experts."""

    @property
    def modules(self) -> list[StageLayout]:
        """The stages that are modules."""
        return [stage for stage in self.stages if not stage.is_glue]


def find_stages(tree: CallTree, *, needs_blocks: bool = True) -> Layout:
    """The stages of one step; where no block may run twice, an error that says so, or a note if none is needed."""
    calls = _opened(tree.root, max(1, tree.root.made_bytes))
    notes: list[str] = []
    stages = [_stage_of(call, tree, notes) for call in calls if call.name]
    _join(stages, tree, notes)
    stages = _fuse(stages, notes)
    if not any(stage.recomputable for stage in stages):
        found = f"{len(stages)} calls of modules, none of which may run twice" if stages else "no module is called"
        if needs_blocks:
            raise UsageError(
                "the model has no chain of blocks", found=found, hint="put its blocks into a ModuleList or a Sequential"
            )
        notes.append(f"the model has no chain of blocks ({found}): it is planned operator by operator")
    if 2 * sum(stage.joins_next for stage in stages[:-1]) < len(stages) - 1:
        notes.append("most blocks cannot be recomputed together with the next: each of them is decided for itself")
    uncalled = _uncalled(stages, tree)
    if uncalled:
        notes.append(f"{', '.join(uncalled)} not called in this step: recomputed alone in steps that call them")
    if tree.sized_by_values:
        notes.append(f"sizes depend on values ({tree.sized_by_values}): a step with other values may take more memory")
    elif tree.decided_by_values:
        notes.append(
            f"Python reads values in the forward ({tree.decided_by_values}): a step in which they decide otherwise may "
            "take more memory"
        )
    return Layout(_with_glue(stages, tree), notes, uncalled, is_sized_by_values=bool(tree.sized_by_values))


def _uncalled(stages: Sequence[StageLayout], tree: CallTree) -> tuple[str, ...]:
    """Blocks that another step may call: trainable, in a list with blocks that this step has called."""
    lists = {call.name.rpartition(".")[0] for stage in stages for call in stage.calls if call.name}
    found: list[str] = []
    for path in sorted(lists):
        container = tree.root.module.get_submodule(path)
        if isinstance(container, torch.nn.ModuleList):
            for name, block in container.named_children():
                trains = any(parameter.requires_grad for parameter in block.parameters())
                if trains and not any(id(below) in tree.counts for below in block.modules()):
                    found.append(f"{path}.{name}" if path else name)
    return tuple(found)


# ---- which calls -----------------------------------------------------------------------------------------------


def _opened(call: Call, total_bytes: int) -> list[Call]:
    if not _opens(call, total_bytes):
        return [call]
    return [below for child in call.children for below in _opened(child, total_bytes)]


def _opens(call: Call, total_bytes: int) -> bool:
    if not call.children:
        return False
    if not call.name:
        return True
    share = call.made_bytes / total_bytes
    if isinstance(call.module, torch.nn.Sequential):
        return share > NEGLIGIBLE
    return (share > DOMINANT and _has_container(call.module)) or (share > STACK and _is_stack(call))


def _is_stack(call: Call) -> bool:
    """Whether a call does little but call the blocks of a list of its own, each with what the one before returned."""
    for container in call.module.children():
        if isinstance(container, torch.nn.ModuleList) and len(container) > 1:
            members = set(container.children())
            blocks = [child for child in call.children if child.module in members]
            if sum(block.made_bytes for block in blocks) > NEARLY_ALL * call.made_bytes:
                return all(_reads(after, before) for before, after in itertools.pairwise(blocks))
    return False


def _reads(call: Call, before: Call) -> bool:
    returned = {tensor.number for tensor in before.returned}
    return any(tensor.number in returned for tensor in call.tensors_given())


def _has_container(module: torch.nn.Module) -> bool:
    containers = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    return any(isinstance(below, containers) and len(below) > 1 for below in module.modules() if below is not module)


def _stage_of(call: Call, tree: CallTree, notes: list[str]) -> StageLayout:
    stage = StageLayout(name=call.name, calls=[call], kind=_kind_of(call.module))
    if tree.counts[id(call.module)] > 1:
        stage.recomputable = stage.joins_next = False
        notes.append(f"{call.name} is called {tree.counts[id(call.module)]} times in a step and is kept")
    elif tree.written_after(call):
        stage.recomputable = stage.joins_next = False
        notes.append(f"what {call.name} is given is written into after its call: it is kept")
    elif not any(tensor.requires_grad for tensor in call.returned):
        stage.recomputable = stage.joins_next = False  # it keeps nothing, so there is nothing to gain
    return stage


def _kind_of(module: torch.nn.Module) -> str:
    """A word for what a stage mostly is; some published rules choose by it."""
    names = [type(below).__name__ for below in module.modules()]
    for kind, parts in (
        ("attention", ("Attention",)),
        ("conv", ("Conv",)),
        ("linear", ("Linear",)),
        ("norm", ("Norm",)),
    ):
        if any(part in name for name in names for part in parts):
            return kind
    return ""


# ---- boundaries ------------------------------------------------------------------------------------------------


def _join(stages: Sequence[StageLayout], tree: CallTree, notes: list[str]) -> None:
    """Decide for each stage whether a checkpoint may reach across to the next."""
    for this, following in itertools.pairwise(stages):
        if not this.joins_next:
            continue
        reason = _why_apart(this.calls[-1], following.calls[0], tree)
        this.joins_next = not reason
        if reason == "another reader":
            notes.append(
                f"the output of {this.name} has another reader than {following.name}: no checkpoint reaches across"
            )
    if stages:
        stages[-1].joins_next = False


def _why_apart(this: Call, following: Call, tree: CallTree) -> str:
    """Why two calls cannot be run as one; empty when they can."""
    returned, given = this.returned, following.tensors_given()
    if this.end != following.start:
        return "glue"
    if getattr(tree.root.module, "keeps_apart", False) and this.name.split(".")[:2] != following.name.split(".")[:2]:
        return "another model, which is also called by itself"
    if this.is_checkpointed or following.is_checkpointed:
        return "torch's checkpoint, which runs each of them by itself"
    if len(returned) != 1 or not given or given[0].number != returned[0].number:
        return "not the same tensor"
    if tree.read_after(returned[0], following.end, following.returned):
        return "another reader"
    if not _called_alike(this, following):
        return "other arguments"
    return "hooks" if _has_hooks(this.module) or _has_hooks(following.module) else ""


def _called_alike(this: Call, following: Call) -> bool:
    """Whether all arguments but the first tensor are the same."""
    if this.shape_of_given != following.shape_of_given:
        return False
    skipped = False
    for mine, other in zip(this.given, following.given, strict=True):
        if isinstance(other, SeenTensor) and not skipped:
            skipped = True
            if not isinstance(mine, SeenTensor):
                return False
        elif not same_argument(mine, other):
            return False
    return True


def same_argument(mine: object, other: object) -> bool:
    """The same object, or an equal plain value."""
    if mine is other:
        return True
    if isinstance(mine, (SeenTensor, SeenObject)) and isinstance(other, (SeenTensor, SeenObject)):
        return mine.number == other.number
    return isinstance(mine, PLAIN) and type(mine) is type(other) and mine == other


def _has_hooks(module: torch.nn.Module) -> bool:
    backward = module._backward_hooks or module._backward_pre_hooks
    return bool(module._forward_hooks or module._forward_pre_hooks or backward)


def _fuse(stages: list[StageLayout], notes: list[str]) -> list[StageLayout]:
    """Put stages that write into their input, or return a view of it, together with the stage before them."""
    fused: list[StageLayout] = []
    for stage in stages:
        call = stage.calls[0]
        if not call.mutates_input and not _returns_a_view(call):
            fused.append(stage)
        elif fused and fused[-1].joins_next and fused[-1].recomputable and stage.recomputable:
            before = fused[-1]
            before.name, before.joins_next = before.name + FUSED + stage.name, stage.joins_next
            before.calls += stage.calls
        elif not call.mutates_input:
            fused.append(stage)
        else:
            stage.recomputable = False
            notes.append(f"{stage.name} writes into its input and is kept")
            if fused:
                fused[-1].joins_next = False
            fused.append(stage)
    return fused


def _returns_a_view(call: Call) -> bool:
    """Whether a block returns a window on its input; one that hands on its input as it is was skipped in this step."""
    given = {tensor.storage for tensor in call.tensors_given()}
    objects = {tensor.number for tensor in call.tensors_given()}
    skipped = bool(call.children or call.end > call.start) and all(t.number in objects for t in call.returned)
    return not skipped and any(tensor.storage in given for tensor in call.returned)


def _with_glue(stages: list[StageLayout], tree: CallTree) -> list[StageLayout]:
    """Insert what runs before, between and after the stages."""
    placed: list[StageLayout] = []
    at = 0
    for stage in stages:
        if stage.calls[0].start > at:
            placed.append(_glue(f"before {stage.calls[0].name}"))
        placed.append(stage)
        at = stage.calls[-1].end
    placed.append(_glue("the loss" if at < tree.num_operators else "the end"))
    return placed


def _glue(name: str) -> StageLayout:
    return StageLayout(name=name, kind=GLUE, recomputable=False, joins_next=False)
