"""Applies a plan, read from a file or fresh from a planner, to a live model."""

from __future__ import annotations

import torch

from memfit.apply.checkpoints import AppliedPlan, apply_nodes, carries_plan
from memfit.errors import MemfitError, UsageError
from memfit.model.step import storage_bytes
from memfit.records.operators import OperatorChoice
from memfit.records.plan import Keep, Node, Plan
from memfit.units import format_bytes


def apply_to(model: torch.nn.Module, plan: Plan, disk: str | None = None, is_exact: bool = True) -> AppliedPlan:
    """Make a model carry out a plan; `disk` is the folder for what it moves.

    Values of second runs are compared with the first unless `is_exact` is False: the model does not agree with itself.
    """
    check_model(model, plan)
    chain = plan.chain
    applied = apply_nodes(model, chain.stages, plan.nodes, is_exact=is_exact, uncalled=chain.uncalled)
    try:
        if plan.moves:
            _move(applied, plan, disk)
        if plan.operators is not None:
            _make_again(applied, plan.operators, disk)
    except BaseException:
        applied.undo()
        raise
    return applied


def check_model(model: torch.nn.Module, plan: Plan) -> None:
    """Refuse a model that the plan was not made for, or that carries one already."""
    refuse_planned(model)
    expected = plan.chain.fixed.parameter_bytes
    found = storage_bytes(list(model.parameters()))
    if expected != found:
        raise MemfitError(
            "the plan is for another model",
            found=f"parameters of {format_bytes(found)}, the plan was made for {format_bytes(expected)}",
            hint="plan again with memfit fit",
        )
    if any(_option_of(node) for node in plan.nodes):
        raise MemfitError("the plan keeps a stage in a way this version cannot carry out", hint="plan again")


def refuse_planned(model: torch.nn.Module) -> None:
    """Refuse a model that carries a plan already."""
    if any(carries_plan(module) for module in model.modules()):
        raise UsageError("the model already carries a plan", hint="call .undo() on what fit_to_budget returned")


def _option_of(node: Node) -> str:
    if isinstance(node, Keep):
        return node.option
    return next((found for inner in node.inside if (found := _option_of(inner))), "")


def _move(applied: AppliedPlan, plan: Plan, disk: str | None) -> None:
    from memfit.apply.moves import attach_moves

    attach_moves(applied, plan, disk)


def _make_again(applied: AppliedPlan, choice: OperatorChoice, disk: str | None) -> None:
    from memfit.apply.operators import attach_operators

    attach_operators(applied, choice, disk)
