"""What does torch's own knob, `activation_memory_budget` of torch.compile, give: speed, peak, and right gradients?

The knob is a ratio of saved activations and acts only within a compiled graph. It is run here with the backend
`aot_eager`, which has the partitioner that obeys the knob and the kernels of the eager step, so that what is compared
is the choice of what to recompute. A dropout function shows whether a recomputed mask is the mask that was used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._functorch import config

from benchmarks.plans import execution_torch as lab
from benchmarks.plans.execution import peer_row, plan_or_not
from benchmarks.plans.execution_results import DropoutRow, PeerRow
from memfit.apply.checkpoints import apply_nodes
from memfit.errors import DoesNotFit
from memfit.records.plan import Checkpoint, Keep, Plan, Stage

RATIOS = (1.0, 0.7, 0.4, 0.2, 0.0)


def knob_rows(subject: Any, num_rounds: int) -> tuple[PeerRow, ...]:
    """The knob at every ratio, beside our plan for the peak that it measures."""
    ways: dict[str, lab.Way] = {}
    failures: dict[str, str] = {}
    for ratio in RATIOS:
        compiled = _compiled(subject.job, ratio)
        if isinstance(compiled, str):
            failures[f"{ratio}"] = compiled
        else:
            ways[f"{ratio}"] = lab.Way(_with_forward(subject.job.model, compiled))
    peaks = {name: lab.measured_peak(subject, way) for name, way in ways.items()}
    ours: dict[str, Plan | DoesNotFit] = {
        f"ours at {name}": plan_or_not(lab, subject, peak) for name, peak in peaks.items()
    }
    mine = {name: lab.planned_way(subject, plan) for name, plan in ours.items() if isinstance(plan, Plan)}
    seen, seconds = lab.examine(subject, {**ways, **mine}, num_rounds)
    torch._dynamo.reset()
    failed = tuple(PeerRow(name=name, seen=None, failure=failure) for name, failure in failures.items())
    return (*(peer_row(name, peaks[name], ours[f"ours at {name}"], seen, seconds) for name in ways), *failed)


def _with_forward(model: nn.Module, forward: Callable[..., Any]) -> Callable[[], Any]:
    @contextlib.contextmanager
    def attach() -> Iterator[None]:
        model.forward = forward
        try:
            yield
        finally:
            del model.__dict__["forward"]

    return attach


def _compiled(job: Any, ratio: float) -> Any:
    """The model's forward, compiled under one ratio and run twice; or what the compiler said."""
    forward = torch.compile(job.model.forward, backend=_backend(ratio))
    try:
        with _with_forward(job.model, forward)():
            for _ in range(2):
                lab.time_of(job)
    except Exception as error:  # whatever the compiler says is the answer
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    return forward


def _backend(ratio: float) -> Any:
    """A backend of its own for each ratio, so that one compiled graph is not taken for another."""
    from torch._dynamo.backends.registry import lookup_backend

    plain: Any = lookup_backend("aot_eager")

    def backend(graph: Any, inputs: Any, **options: Any) -> Any:
        with config.patch(activation_memory_budget=ratio):
            return plain(graph, inputs, **options)

    return backend


# ---- dropout -----------------------------------------------------------------------------------------------------


class _Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A value and a mask; both are wanted again by the backward."""
        return nn.functional.dropout(torch.sin(x), 0.5)


def dropout_rows() -> tuple[DropoutRow, ...]:
    """At how many dropped positions does a gradient arrive: under the knob, and when memfit recomputes the block?"""
    rows = [_dropout_row(f"activation_memory_budget {ratio}", _dropping_under(ratio)) for ratio in RATIOS]
    model = nn.Sequential(_Dropping())
    stage = Stage(name="0", forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0)
    with apply_nodes(model, (stage,), (Checkpoint(inside=(Keep(stage=0),)),)):
        rows.append(_dropout_row("memfit, the block recomputed", model))
    return tuple(rows)


def _dropping_under(ratio: float) -> Any:
    torch._dynamo.reset()
    return torch.compile(_Dropping(), backend=_backend(ratio))


def _dropout_row(name: str, function: Any) -> DropoutRow:
    torch.manual_seed(0)
    x = torch.randn(1000, requires_grad=True)
    try:
        y = function(x)
        y.sum().backward()
    except Exception as error:  # whatever the compiler says is the answer
        return DropoutRow(name=name, num_dropped=0, num_wrong=0, failure=type(error).__name__)
    assert x.grad is not None
    dropped = y == 0
    return DropoutRow(name=name, num_dropped=int(dropped.sum()), num_wrong=int((x.grad[dropped] != 0).sum()))
