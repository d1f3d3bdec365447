"""Measures the optimizer's step: state that stays, bytes in passing, seconds.

The user's optimizer is never stepped. A shadow of it, without its hooks and with a state of its own, updates stand-ins
for one parameter of each shape, so that at most one parameter's worth of everything is alive beside the model. Of a
large parameter the stand-ins are parts, where every element is updated by itself: what it takes is a straight line.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import time
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.errors import UsageError
from memfit.model.module_state import note
from memfit.model.optimizer_hooks import step_hooks
from memfit.model.out_of_memory import is_out_of_memory
from memfit.model.step import Job, RandomState, storage_bytes, tensors_of
from memfit.profile.meter.meter import record_events

ADDS_UP = 0.9
"""Parameters that together take this share of what each takes alone are updated together."""
MOST_TRIED = 4
ELEMENTWISE = frozenset(
    getattr(torch.optim, name)
    for name in ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"]
)
"""Optimizers of torch that update every element of a parameter by itself."""
LARGE_NUMEL, LEAST_PART, MOST_PART, PARTS = 1 << 16, 1 << 14, 1 << 18, 8
"""A parameter with more elements is measured by parts: an eighth, within these bounds."""


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step in numbers."""

    state_bytes: int = 0
    transient_bytes: int = 0
    seconds: float = 0.0


def refuse_closures(optimizer: torch.optim.Optimizer | None) -> None:
    """Refuse an optimizer that runs the step itself, as LBFGS does: what it does is not one step."""
    closure = inspect.signature(optimizer.step).parameters.get("closure") if optimizer is not None else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"{type(optimizer).__name__} runs the forward and the backward itself, several times in one step",
            found="its step must be given a closure",
            hint="take one that steps once, or memfit.fit_to_budget without the optimizer, leaving room for its state",
        )


def measure_update(job: Job) -> Update:
    """Measure the update of one parameter of each shape, and add up."""
    optimizer = job.optimizer
    if optimizer is None:
        return Update()
    refuse_closures(optimizer)
    before = RandomState.now()
    try:
        return _sum_of(job, optimizer)[0]
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, AssertionError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise UsageError(
            f"the step of {type(optimizer).__name__} could not be measured",
            found=f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}",
            hint="fit without the optimizer and leave room for its state",
        ) from error
    finally:
        before.put_back()


def step_hooks_note(job: Job) -> list[str]:
    """A note about hooks around the optimizer's step, which are never run here; a watched program runs them itself."""
    num_hooks = 0 if job.counts_everything else len(step_hooks(job.optimizer))
    if not num_hooks:
        return []
    return [
        f"the optimizer's step has {num_hooks} hook{'s' * (num_hooks > 1)}: tensors found in what they hold are "
        "counted; what they make when they run is not, so leave room for it"
    ]


def transients_alone(job: Job) -> dict[int, int]:
    """By id of a parameter, what its update alone holds in passing."""
    with RandomState.now().in_place():
        return {} if job.optimizer is None else _sum_of(job, job.optimizer)[1]


def _sum_of(job: Job, optimizer: torch.optim.Optimizer) -> tuple[Update, dict[int, int]]:
    found: dict[Any, Update] = {}
    alone: dict[int, int] = {}
    within_backward = {id(p) for p in job.stepped}
    state_bytes, seconds, transients = 0, 0.0, []
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if not parameter.requires_grad or id(parameter) in job.without_gradient:
                continue
            key = (number, tuple(parameter.shape), parameter.dtype, parameter.device)
            if key not in found:
                found[key] = _of_one(job, optimizer, group, parameter)
            state_bytes += found[key].state_bytes
            seconds += found[key].seconds
            alone[id(parameter)] = found[key].transient_bytes
            if id(parameter) not in within_backward:
                transients.append(found[key].transient_bytes)
    in_passing = _in_passing(job, optimizer, transients, alone) if transients else 0
    return Update(state_bytes, in_passing, seconds), alone


def _in_passing(job: Job, optimizer: torch.optim.Optimizer, transients: list[int], alone: dict[int, int]) -> int:
    """What updating all parameters takes, tried with the smallest of a size that counts; `alone` is by id of each.

    Updated together, they take the sum. Updated one after the other, each takes its own beside what is left of the one
    before: a variable of the loop holds that until it is assigned again.
    """
    for group in optimizer.param_groups:
        wanted = sorted((p for p in group["params"] if id(p) in alone and p.numel() >= 64), key=lambda p: p.numel())
        if len(wanted) > 1:
            tried = wanted[:MOST_TRIED]
            each = [alone[id(p)] for p in tried]
            if any(_is_cut(optimizer, p) for p in tried):
                each = [_of_some(job, optimizer, group, [p], LEAST_PART).transient_bytes for p in tried]
                all_of_them = _of_some(job, optimizer, group, tried, LEAST_PART).transient_bytes
            else:
                all_of_them = _of_some(job, optimizer, group, tried).transient_bytes
            if all_of_them > ADDS_UP * sum(each):
                return sum(transients)
            # The most of `own + left * before` is what they took together, so that none of them allows a larger share.
            shares = [(all_of_them - own) / before for before, own in itertools.pairwise(each) if before]
            left = max(0.0, min(shares, default=0.0))
            return max(own + round(left * before) for own, before in zip(transients, [0, *transients], strict=False))
    return max(transients, default=0)


def _is_cut(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    """Whether a parameter is measured by parts of it."""
    if (
        type(optimizer) not in ELEMENTWISE
        or parameter.layout != torch.strided
        or type(parameter.data) is not torch.Tensor
    ):
        return False
    return parameter.numel() > LARGE_NUMEL


def _of_one(job: Job, optimizer: torch.optim.Optimizer, group: dict[str, object], parameter: torch.Tensor) -> Update:
    """The update of a parameter; of a large one by the line through two parts of it."""
    if not _is_cut(optimizer, parameter):
        return _of_some(job, optimizer, group, [parameter])
    large = max(LEAST_PART, min(MOST_PART, parameter.numel() // PARTS))
    small = large // 2
    one, two = (_of_some(job, optimizer, group, [parameter], numel) for numel in (small, large))

    def at(first: int, second: int) -> int:
        return first + round((second - first) * (parameter.numel() - small) / (large - small))

    return Update(
        state_bytes=at(one.state_bytes, two.state_bytes),
        transient_bytes=at(one.transient_bytes, two.transient_bytes),
        seconds=two.seconds * parameter.numel() / large,
    )


def _of_some(
    job: Job,
    optimizer: torch.optim.Optimizer,
    group: dict[str, object],
    parameters: Sequence[torch.Tensor],
    most_numel: int | None = None,
) -> Update:
    """Update stand-ins for them together; of those with more elements than `most_numel`, parts."""
    stand_ins = [torch.nn.Parameter(_cut(p, p, most_numel)) for p in parameters]
    for stand_in in stand_ins:
        stand_in.grad = torch.zeros_like(stand_in)
    shadow = _shadow(optimizer, group, dict(zip(parameters, stand_ins, strict=True)))
    shadow.step()  # the first step makes the state
    seconds = min(_time_of(shadow) for _ in range(2))
    record = record_events(shadow.step, job.device)
    state = storage_bytes(tensors_of([dict(entry) for entry in shadow.state.values()]))
    return Update(state_bytes=state, transient_bytes=record.peak_bytes, seconds=seconds)


def _shadow(
    optimizer: torch.optim.Optimizer, group: dict[str, object], stand_ins: dict[torch.Tensor, torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The same optimizer for other parameters, with a state of its own and no hooks."""
    shadow = object.__new__(type(optimizer))
    shadow.__dict__.update({n: v for n, v in optimizer.__dict__.items() if n != "step"})
    for name, value in optimizer.__dict__.items():
        if isinstance(value, torch.optim.Optimizer):
            shadow.__dict__[name] = _shadow(value, group, stand_ins)
        elif name.endswith("_hooks"):
            shadow.__dict__[name] = OrderedDict()
        elif name not in ("state", "param_groups") and note([value]).tensors:
            memo: dict[int, object] = {id(p): p for each in optimizer.param_groups for p in each["params"]}
            memo.update({id(parameter): stand_in for parameter, stand_in in stand_ins.items()})
            shadow.__dict__[name] = copy.deepcopy(value, memo)  # the user's own must not be written into
    shadow.state = defaultdict(dict)
    for parameter, stand_in in stand_ins.items():
        if optimizer.state.get(parameter):
            shadow.state[stand_in] = _state_for(stand_in, parameter, optimizer.state[parameter])
    shadow.param_groups = [{**group, "params": list(stand_ins.values())}]
    return shadow


def _state_for(stand_in: torch.Tensor, parameter: torch.Tensor, state: dict[str, object]) -> dict[str, object]:
    if stand_in.numel() == parameter.numel():
        return copy.deepcopy(state)
    cut = {n: _cut(v, parameter, stand_in.numel()) for n, v in state.items() if isinstance(v, torch.Tensor)}
    return {n: cut[n] if n in cut else copy.deepcopy(v) for n, v in state.items()}


def _cut(tensor: torch.Tensor, parameter: torch.Tensor, most_numel: int | None) -> torch.Tensor:
    """Zeros like a tensor; of one as large as its parameter, no more elements than are wanted."""
    if most_numel is None or tensor.numel() != parameter.numel() or tensor.numel() <= most_numel:
        return torch.zeros_like(tensor)
    return tensor.new_zeros(most_numel)


def _time_of(optimizer: torch.optim.Optimizer) -> float:
    start = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - start
