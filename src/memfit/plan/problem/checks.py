"""Validation of a chain, a link and a budget before planning."""

from __future__ import annotations

import math

from memfit.errors import InvalidSchedule, UsageError
from memfit.records.plan import Chain, Checkpoint, Keep, Link, Node, Option, Stage, stages_of
from memfit.units import format_bytes


def check_chain(chain: Chain) -> None:
    """Refuse a chain with impossible numbers."""
    if not chain.stages:
        raise UsageError("the chain has no stages", hint="give at least one stage")
    sizes = {
        "input_bytes": chain.input_bytes,
        "input_gradient_bytes": chain.input_gradient_bytes,
        "fixed bytes": min(
            chain.fixed.parameter_bytes,
            chain.fixed.gradient_bytes,
            chain.fixed.optimizer_state_bytes,
            chain.fixed.other_bytes,
        ),
        "update_transient_bytes": chain.update_transient_bytes,
    }
    _check_numbers("the chain", sizes, {"update_seconds": chain.update_seconds})
    inputs = (chain.input_gradient_bytes, *(stage.output_bytes for stage in chain.stages))
    for stage, after, input_bytes in zip(chain.stages, (*chain.stages[1:], None), inputs, strict=False):
        _check_stage(stage)
        _check_backward(stage, input_bytes)
        _check_ending(stage, after)


def _check_stage(stage: Stage) -> None:
    where = f"stage {stage.name!r}"
    _check_numbers(
        where,
        {"output_bytes": stage.output_bytes, "gradient_bytes": stage.gradient_bytes},
        {"checkpoint_seconds": stage.checkpoint_seconds},
    )
    names = [option.name for option in stage.options]
    if len(set(names)) != len(names) or "" in names:
        raise UsageError(f"the options of {where} need different names", found=repr(names), hint="name each of them")
    for way in (stage, *stage.options):
        _check_numbers(where, _sizes_of(way), _seconds_of(way))
        if way.saved_bytes < stage.output_bytes:
            raise UsageError(
                f"{where} leaves less than its output",
                found=f"{way.saved_bytes} saved bytes, {stage.output_bytes} output bytes",
                hint="count the output among the saved bytes",
            )


def _check_backward(stage: Stage, input_bytes: int) -> None:
    """Refuse a backward that is said to hold less than what is there before it, or after it."""
    for way in (stage, *stage.options):
        least = -min(input_bytes + stage.gradient_bytes, way.saved_bytes + stage.output_bytes)
        if way.backward_transient_bytes < least:
            raise UsageError(
                f"stage {stage.name!r} has an impossible backward_transient_bytes",
                found=repr(way.backward_transient_bytes),
                hint=f"give {least} or more: it cannot free more than there is",
            )


def _check_ending(stage: Stage, after: Stage | None) -> None:
    """Refuse an ending that would hold more than planners count: the last module's backward holds two more outputs."""
    where = f"the ending of stage {stage.name!r}"
    if stage.ending is None:
        return
    _check_numbers(where, {"saved_bytes": stage.ending.saved_bytes}, {"forward_seconds": stage.ending.forward_seconds})
    if after is None or after.output_bytes < stage.output_bytes:
        raise UsageError(
            f"{where} needs a next stage whose output is as large",
            found="no next stage" if after is None else f"{after.output_bytes} after {stage.output_bytes} bytes",
            hint="leave the ending out",
        )


def _sizes_of(way: Stage | Option) -> dict[str, int]:
    return {
        "saved_bytes": way.saved_bytes,
        "forward_transient_bytes": way.forward_transient_bytes,
    }


def _seconds_of(way: Stage | Option) -> dict[str, float]:
    return {"forward_seconds": way.forward_seconds, "backward_seconds": way.backward_seconds}


def _check_numbers(where: str, sizes: dict[str, int], seconds: dict[str, float]) -> None:
    for name, value in (sizes | seconds).items():
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"{where} has an impossible {name}", found=repr(value), hint="give zero or more")


def check_link(link: Link) -> None:
    """Refuse a link that cannot carry anything."""
    for name in ("out_bytes_per_second", "in_bytes_per_second"):
        speed = getattr(link, name)
        if not math.isfinite(speed) or speed <= 0:
            raise UsageError(f"the link {link.name!r} has an impossible {name}", found=repr(speed), hint="above zero")
    if not math.isfinite(link.latency_seconds) or link.latency_seconds < 0:
        raise UsageError("a link's latency cannot be negative", found=repr(link.latency_seconds), hint="zero or more")
    if link.capacity_bytes is not None and link.capacity_bytes < 0:
        raise UsageError("a link's capacity cannot be negative", found=repr(link.capacity_bytes), hint="zero or more")


def check_budget(chain: Chain, budget_bytes: int) -> None:
    """Refuse a budget that is none; one that is too small is an answer, not a mistake."""
    if budget_bytes <= 0:
        raise UsageError(
            "a budget must be above zero", found=format_bytes(budget_bytes), hint="give the memory you have, as 8GiB"
        )
    check_chain(chain)


def check_nodes(chain: Chain, nodes: tuple[Node, ...]) -> None:
    """Refuse nodes that do not run every stage once and in order, or recompute what must not be."""
    covered = list(stages_of(nodes))
    if covered != list(range(len(chain.stages))):
        raise InvalidSchedule(
            "a plan must name every stage once, in order", found=f"{covered}", hint="plan again for this chain"
        )
    for node in nodes:
        _check_node(chain, node, inner=False)


def _check_node(chain: Chain, node: Node, *, inner: bool) -> None:
    if inner and node.offload:
        raise InvalidSchedule("only what the first forward leaves may be moved", hint="move outside of checkpoints")
    if isinstance(node, Keep):
        option_of(chain.stages[node.stage], node.option)
        return
    if not node.inside:
        raise InvalidSchedule("a checkpoint holds no stages", hint="leave it out")
    stages = list(stages_of((node,)))
    for index in stages:
        stage = chain.stages[index]
        if not stage.recomputable:
            raise InvalidSchedule(f"stage {stage.name!r} may run only once", hint="keep it")
        if index != stages[-1] and not stage.joins_next:
            raise InvalidSchedule(
                f"the output of stage {stage.name!r} has another reader", hint="end the checkpoint there"
            )
    for child in node.inside:
        _check_node(chain, child, inner=True)


def option_of(stage: Stage, name: str) -> Stage | Option:
    """The way to keep a stage that has this name."""
    if not name:
        return stage
    for option in stage.options:
        if option.name == name:
            return option
    raise InvalidSchedule(
        f"stage {stage.name!r} has no option {name!r}", found=repr([o.name for o in stage.options]), hint="plan again"
    )


def covers(node: Node) -> tuple[int, int]:
    """First and last stage of a node."""
    first = last = node
    while isinstance(first, Checkpoint):
        first = first.inside[0]
    while isinstance(last, Checkpoint):
        last = last.inside[-1]
    return first.stage, last.stage
