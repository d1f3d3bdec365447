"""Does torch's own check of schedules accept the orders that are planned, and its reader their file?"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from memfit.plan.pipeline.planners import plan_pipeline, plan_schedule
from memfit.plan.pipeline.schedule.schedules import STAGES_PER_RANK
from memfit.records.pipeline import Layer, PipelineChain, PipelinePlan, RankLink
from memfit.show.export.pipeline_files import torch_csv
from memfit.testing.contracts.pipeline_planner import PipelineCase


def case_of(num_ranks: int) -> PipelineCase:
    layers = tuple(
        Layer(
            name=f"layer{i}", forward_seconds=1.0 + i % 3, backward_seconds=2.0, parameter_bytes=1, gradient_bytes=1,
            output_bytes=1, saved_bytes=2,
        )
        for i in range(9)
    )  # fmt: skip
    return PipelineCase(PipelineChain(layers=layers), (10**6,) * num_ranks, RankLink(bytes_per_second=4.0), 8)


def checked_by_torch(plan: PipelinePlan) -> None:
    rows = [row.split(",") for row in torch_csv(plan).splitlines()]
    actions = {rank: [torch_schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    cut = plan.cut
    ranks = torch_schedules._validate_schedule(actions, cut.num_ranks, len(cut.stages), cut.num_micro_batches)
    assert ranks == {index: stage.rank for index, stage in enumerate(cut.stages)}
    there = {rank: [action for action in row if action is not None] for rank, row in actions.items()}
    lowered = torch_schedules._add_send_recv(
        there, stage_to_rank=lambda stage: cut.stages[stage].rank, num_stages=len(cut.stages)
    )
    assert {rank: sum(a.computation_type.name in ("FORWARD",) for a in row) for rank, row in lowered.items()} == {
        rank: 8 * len(cut.stages_of(rank)) for rank in range(cut.num_ranks)
    }


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_torch_accepts_an_order_of_our_own(num_ranks: int):
    checked_by_torch(plan_pipeline(case_of(num_ranks), baselines=False))


@pytest.mark.parametrize("schedule", list(STAGES_PER_RANK))
def test_torch_accepts_every_named_schedule(schedule, tmp_path: Path):
    checked_by_torch(plan_schedule(case_of(4), schedule, baselines=False))
