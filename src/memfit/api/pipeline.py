"""Pipelines: where to cut a network over ranks, what each of them holds, and in which order it works."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from memfit.api.shared.options import checked_options

if TYPE_CHECKING:
    from memfit.plan.pipeline.case import Curve, PipelineCase
    from memfit.records.pipeline import PipelineChain, PipelinePlan, ScheduleName, WeightRule

NamedSchedule = Literal[
    "best", "gpipe", "1f1b", "interleaved-1f1b", "interleaved-zero-bubble", "zbv-zero-bubble", "dualpipev"
]


@checked_options
def plan_pipeline(
    target: str,
    *,
    num_ranks: int,
    memory_bytes: int | Sequence[int],
    link_bytes_per_second: float,
    num_micro_batches: int | None = None,
    schedule: NamedSchedule = "best",
    planner: str = "best",
    explain: str | None = None,
    settings: tuple[str, ...] = (),
    device: str | None = None,
    weight_rule: WeightRule = "flush",
    optimizer_copies: int = 0,
    cuts: Literal["auto", "single", "all"] = "auto",
    count_in_place: bool = False,
    recompute: bool = False,
    host_bytes_per_second: float | None = None,
    latency_seconds: float = 0.0,
    full_duplex: bool = False,
    runtime: Literal["auto", "torch", "ideal"] = "auto",
) -> PipelinePlan:
    """Cut a network over ranks so that the pipeline is as fast as their memory allows; raises DoesNotFit.

    `target` is a profile (PipeDream's graph.txt), a workload, or FILE:function; `memory_bytes` one size for all ranks
    or one for each. `explain` is a cut that you have (`0,10,41`, `10x31`, or Megatron's `Ett|ttL`), explained instead
    of planned. `runtime` says whose buffers of transfers are counted: those of the installed torch, or two for each
    neighbour.

    >>> machine = {"num_ranks": 4, "memory_bytes": 16 * 2**30, "link_bytes_per_second": 12e9}
    >>> plan = plan_pipeline("graph.txt", **machine)  # doctest: +SKIP
    >>> plan.period_seconds, plan.reasons  # doctest: +SKIP
    """
    from memfit.plan.pipeline.case import PipelineCase
    from memfit.records.pipeline import RankLink

    is_smaller = recompute or host_bytes_per_second is not None
    _refuse_unused(schedule, planner, explain, is_smaller=is_smaller, weight_rule=weight_rule)
    micro_batches = num_micro_batches or max(8, 2 * num_ranks)
    chain = pipeline_chain(
        target, num_micro_batches=micro_batches, settings=settings, device=device, optimizer_copies=optimizer_copies,
        cuts=cuts, count_in_place=count_in_place,
    )  # fmt: skip
    case = PipelineCase(
        chain,
        _limits(memory_bytes, num_ranks),
        RankLink(bytes_per_second=link_bytes_per_second, latency_seconds=latency_seconds, full_duplex=full_duplex),
        num_micro_batches=micro_batches,
        weight_rule=weight_rule,
        receives_all=_receives_all(runtime, chain),
        curve=_curve(chain, recompute, host_bytes_per_second),
    )
    return _planned(case, schedule, planner, explain)


def _refuse_unused(
    schedule: NamedSchedule, planner: str, explain: str | None, *, is_smaller: bool, weight_rule: WeightRule
) -> None:
    """Refuse options that the chosen planner would not obey, before anything is measured."""
    from memfit.errors import UsageError
    from memfit.plan.pipeline.schedule.schedules import STAGES_PER_RANK

    if explain is not None and planner != "best":
        found = f"--explain {explain} --planner {planner}"
        raise UsageError("a layout of your own is explained, not planned", found=found, hint="leave one of them out")
    if is_smaller:
        found = "--explain" if explain is not None else f"--planner {planner}" if planner != "best" else ""
        if not found and STAGES_PER_RANK.get(cast("ScheduleName", schedule), 1) > 1:
            found = f"--schedule {schedule}"
        if found not in ("", "--planner exact", "--planner ranks-behind rule"):
            raise UsageError(
                "stages recompute or move only where the exact planner chooses them", found=found,
                hint="leave out --recompute and --host-link, or plan with exact, gpipe or 1f1b",
            )  # fmt: skip
    if planner == "joint" and weight_rule != "flush":
        raise UsageError(
            "the joint program has one version of the weights", found=f"--weights {weight_rule}", hint="--planner exact"
        )


def _planned(case: PipelineCase, schedule: NamedSchedule, planner: str, explain: str | None) -> PipelinePlan:
    from memfit.errors import UsageError
    from memfit.plan.pipeline.layouts import parse_layout
    from memfit.plan.pipeline.planners import explain_cut, plan_schedule
    from memfit.plan.pipeline.planners import plan_pipeline as plan

    if explain is not None:
        return explain_cut(case, parse_layout(explain, case.chain), "1f1b" if schedule == "best" else schedule)
    if schedule == "best" and planner in ("special", "joint"):
        from memfit.plan.pipeline.ilp.scipy_planners import plan_with_solver

        return plan_with_solver(case, planner)
    if schedule == "best":
        return plan(case, planner)
    if planner != "best":
        raise UsageError(
            "a named schedule has a planner of its own", found=f"--schedule {schedule} --planner {planner}",
            hint="leave one of them out",
        )  # fmt: skip
    return plan_schedule(case, schedule)


def _limits(memory_bytes: int | Sequence[int], num_ranks: int) -> tuple[int, ...]:
    from memfit.errors import UsageError

    sizes = (memory_bytes,) if isinstance(memory_bytes, int) else tuple(memory_bytes)
    if len(sizes) == 1:
        return sizes * num_ranks
    if len(sizes) != num_ranks:
        raise UsageError(
            "give one memory for all ranks, or one for each", found=f"{len(sizes)} sizes, {num_ranks} ranks",
            hint=f"--memory 16GiB, or --memory {num_ranks} times",
        )  # fmt: skip
    return sizes


def _receives_all(runtime: str, chain: PipelineChain) -> bool:
    """Whether buffers of transfers are there for all micro-batches; asked of the installed torch."""
    if runtime == "ideal" or (runtime == "auto" and not any(layer.modules for layer in chain.layers)):
        return False
    from memfit.profile.pipeline.torch_buffers import receives_all_micro_batches

    return receives_all_micro_batches()


def _curve(chain: PipelineChain, recompute: bool, host_bytes_per_second: float | None) -> Curve | None:
    """Ways to run a stage with less held, by the planners of recomputation and offloading."""
    if not recompute and host_bytes_per_second is None:
        return None
    from memfit.plan.pipeline.stage_curve import curve_of

    return curve_of(chain, host_bytes_per_second, recompute=recompute)


@checked_options
def pipeline_chain(
    target: str,
    *,
    num_micro_batches: int = 1,
    settings: tuple[str, ...] = (),
    device: str | None = None,
    optimizer_copies: int = 0,
    cuts: Literal["auto", "single", "all"] = "auto",
    count_in_place: bool = False,
) -> PipelineChain:
    """The layers of a profile, or those of a training: measured here on one micro-batch, or predicted for a device.

    >>> len(pipeline_chain("graph.txt").layers)  # doctest: +SKIP
    """
    import msgspec

    from memfit.profile.pipeline.pipedream_graph import is_graph, read_graph

    if is_graph(target):
        _refuse_for_a_profile(settings, device)
        return read_graph(target, cuts=cuts, optimizer_copies=optimizer_copies, count_in_place=count_in_place)
    _refuse_for_a_training(optimizer_copies, cuts, count_in_place)
    from memfit.api.fit import predicted_chain, training_of
    from memfit.profile.pipeline.chain import measured_chain, predicted_layers

    if device is None or device == "cpu":
        found = measured_chain(training_of(target, settings), target, num_micro_batches)
    else:
        chain, _, notes = predicted_chain(target, settings, device)
        found = predicted_layers(lambda: training_of(target, settings), target, chain, num_micro_batches, notes)
    return msgspec.structs.replace(found, settings=tuple(settings))


def _refuse_for_a_profile(settings: tuple[str, ...], device: str | None) -> None:
    from memfit.errors import UsageError

    if settings or device is not None:
        raise UsageError(
            "a profile was measured already: it has no settings and no device", found=" ".join(settings) or str(device),
            hint="leave out --set and --device",
        )  # fmt: skip


def _refuse_for_a_training(optimizer_copies: int, cuts: str, count_in_place: bool) -> None:
    from memfit.errors import UsageError

    given = {"--optimizer-copies": optimizer_copies, "--cuts": cuts != "auto", "--count-in-place": count_in_place}
    found = [name for name, value in given.items() if value]
    if found:
        raise UsageError(
            "these options are for a profile: a training has its own optimizer and layers", found=" ".join(found),
            hint="leave them out",
        )  # fmt: skip


@checked_options
def read_pipeline(path: str | Path) -> PipelinePlan:
    """Read the plan.json that `memfit pipeline -o FOLDER` wrote.

    >>> read_pipeline("pipeline/plan.json").cut.stages  # doctest: +SKIP
    """
    from memfit.records.pipeline import read_pipeline as read

    return read(path)


@checked_options
def write_pipeline(plan: PipelinePlan, folder: str | Path) -> tuple[Path, ...]:
    """Write a plan into a folder: the record, the layouts that others read, and a picture of the schedule.

    A plan that can be run leaves order.json as well, from which `torchrun` starts it. Without matplotlib there is no
    picture.

    >>> write_pipeline(plan, "pipeline")  # doctest: +SKIP
    """
    from importlib.util import find_spec

    from memfit.api.pipeline_run import order_of, why_not_run
    from memfit.show.export.pipeline_files import write_layouts, write_order

    written = write_layouts(plan, Path(folder))
    if not why_not_run(plan):
        written = (*written, write_order(order_of(plan), Path(folder)))
    if find_spec("matplotlib") is None:
        return written
    from memfit.show.figures.pipeline import draw_pipeline

    return (*written, *draw_pipeline(plan, folder))
