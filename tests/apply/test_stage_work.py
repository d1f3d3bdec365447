"""Is work counted for the stage that does it, and is a chain from shapes that of the network?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from memfit.job.training import Training, loss_of
from memfit.job.workloads.vision import FAMILY, family_called, resnet_called, stage_names
from memfit.model.step import build_job
from memfit.predict.observe.flops_and_bytes import WorkCounter
from memfit.profile.chain_from_prediction import chain_from
from memfit.profile.chain_from_shapes import shape_chain
from memfit.profile.fake_step import draft_of
from memfit.profile.profile import profile_job
from memfit.profile.stage_flops import work_by_stage


class Unequal(nn.Module):
    """Three blocks of very unequal work, a mean between the last two."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 640), nn.Linear(640, 64)])
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def unequal() -> Training:
    model = Unequal().to("cpu")
    batch = (torch.randn(32, 16, 64), torch.randint(0, 4, (32,)))
    return Training(
        model=model, optimizer=torch.optim.SGD(model.parameters()), loss=nn.functional.cross_entropy, batch=batch
    )


def test_operations_belong_to_the_stage_that_runs_and_glue_to_glue():
    draft, _ = draft_of(unequal, "unequal")
    work = {stage.name: w for stage, w in zip(draft, work_by_stage(unequal, loss_of, draft, WorkCounter), strict=True)}
    rows = 32 * 16
    assert work["blocks.0"].single_flops == 2 * rows * 64 * 64
    assert work["blocks.1"].single_flops == work["blocks.2"].single_flops == 2 * rows * 64 * 640
    assert work["head"].single_flops == 2 * 32 * 64 * 4
    assert work["before head"].single_flops == 0
    assert work["before head"].moved_bytes == 3 * 32 * 64 * 4
    assert work["the loss"].moved_bytes > 0


def test_counting_leaves_torch_as_it_was():
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    draft, _ = draft_of(unequal, "unequal")
    with pytest.raises(ZeroDivisionError):
        work_by_stage(unequal, lambda training: 1 / 0, draft, WorkCounter)
    assert torch.__future__.get_overwrite_module_params_on_conversion() == before


def test_shares_decide_how_the_seconds_of_a_step_are_shared_out():
    from memfit import api
    from memfit.api.fit import training_of

    settings = ("batch_size=4", "length=16", "words=50", "layers=2", "width=16", "heads=2")
    draft, _ = draft_of(lambda: training_of("gpt", settings), "gpt")
    prediction = api.predict_peak("gpt", settings=settings, device="cuda:v100-16gb", probes=False)
    assert prediction.step_time is not None
    step_seconds = prediction.step_time.value
    assert step_seconds is not None
    shares = [float(index) for index in range(len(draft))]
    chain = chain_from(prediction, draft, shares)
    seconds = [stage.forward_seconds + stage.backward_seconds for stage in chain.stages]
    assert sum(seconds) == pytest.approx(step_seconds)
    assert seconds == pytest.approx([step_seconds * share / sum(shares) for share in shares])
    assert sum(s.forward_seconds for s in chain_from(prediction, draft).stages) == pytest.approx(step_seconds / 3)


def test_a_chain_from_shapes_keeps_what_a_measured_one_keeps():
    shape = (2, 3, 64, 64)
    torch.manual_seed(0)
    chain = shape_chain(lambda: resnet_called("ResNet-18", classes=10), stage_names, shape, "small")
    model = resnet_called("ResNet-18", classes=10)
    training = Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters()),
        loss=nn.functional.cross_entropy,
        batch=(torch.randn(shape), torch.randint(0, 10, (2,))),
    )
    seen: dict[str, Any] = {s.name: s for s in profile_job(build_job(training, "small"), timed_runs=1).chain.stages}
    blocks = [stage for stage in chain.stages if stage.name.startswith("blocks.")]
    assert len(blocks) == 8
    for stage in blocks:
        assert stage.output_bytes == seen[stage.name].output_bytes
        assert stage.gradient_bytes == seen[stage.name].gradient_bytes
        assert stage.saved_bytes == pytest.approx(seen[stage.name].saved_bytes, rel=0.02)


def test_work_and_bytes_of_a_chain_from_shapes_grow_with_the_batch():
    one, four = (
        shape_chain(lambda: resnet_called("ResNet-18"), stage_names, (batch, 3, 64, 64), "small") for batch in (1, 4)
    )
    for small, large in zip(one.stages, four.stages, strict=True):
        assert large.forward_seconds == pytest.approx(4 * small.forward_seconds)
        assert large.output_bytes == 4 * small.output_bytes
        assert large.gradient_bytes == small.gradient_bytes
    assert one.fixed == four.fixed


def test_the_family_is_called_by_either_spelling():
    assert family_called(["resnet152", "ResNet-18"]) == ("ResNet-152", "ResNet-18")
    assert family_called([]) == tuple(FAMILY)
