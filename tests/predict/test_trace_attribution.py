"""Does the trace know what a storage is, which module made it, and in which phase and line?"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memfit.job.training import Training  # noqa: E402
from memfit.job.workloads.registry import build_workload  # noqa: E402
from memfit.predict.fake.recording import Recording, trace_training  # noqa: E402
from memfit.predict.observe.storage_log import timeline_of  # noqa: E402
from memfit.records.timeline import LiveSpan, Timeline  # noqa: E402


def timeline(build: Any, num_steps: int = 2) -> Timeline:
    trace = trace_training(build, recording=Recording(), num_steps=num_steps)
    return timeline_of(trace.log, trace.root_names)


def bytes_by_category(spans: list[LiveSpan]) -> dict[str, int]:
    sizes: dict[str, int] = defaultdict(int)
    for span in spans:
        sizes[span.category] += span.num_bytes
    return sizes


def small_gpt(**settings: Any) -> Any:
    return build_workload(
        "gpt", {"batch_size": 2, "length": 16, "words": 50, "width": 32, "heads": 2, "layers": 2, **settings}
    )


def test_what_outlives_the_steps_is_parameters_states_and_the_batch():
    made: list[Training] = []
    kept = timeline(lambda: made.append(small_gpt()) or made[0])
    parameters = sum(p.numel() * 4 for p in made[0].model.parameters())
    alive = bytes_by_category([span for span in kept.spans if span.end is None])
    assert alive["parameter"] == parameters
    assert alive["optimizer state"] == 2 * parameters + 4 * len(list(made[0].model.parameters()))
    assert alive["input"] == 2 * 16 * 8
    assert alive["gradient"] == alive["activation"] == 0


def test_gradients_take_as_much_as_parameters_in_every_step():
    made: list[Training] = []
    spans = timeline(lambda: made.append(small_gpt()) or made[0], num_steps=3).spans
    parameters = sum(p.numel() * 4 for p in made[0].model.parameters())
    assert bytes_by_category(list(spans))["gradient"] == 3 * parameters


def test_backward_storages_carry_the_module_whose_gradient_they_are():
    spans = [s for s in timeline(small_gpt).spans if s.phase == "backward" and s.category == "gradient"]
    assert spans
    assert {s.module for s in spans} >= {"blocks.0.qkv", "blocks.1.down", "head", "tokens"}


def test_a_recomputed_forward_is_a_phase_of_its_own():
    plain = {s.phase for s in timeline(small_gpt).spans}
    recomputed = {s.phase for s in timeline(lambda: small_gpt(checkpoint=True)).spans}
    assert "recompute" not in plain
    assert "recompute" in recomputed


def test_a_shared_module_is_named_by_the_place_it_is_called_from():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = nn.Linear(8, 8)
            self.first, self.second = nn.Sequential(inner), nn.Sequential(inner)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    def build() -> Training:
        model = Twice()
        optimizer = torch.optim.SGD(model.parameters())
        return Training(model=model, optimizer=optimizer, loss=lambda out, _: out.sum(), batch=(torch.ones(4, 8), None))

    modules = {s.module for s in timeline(build).spans if s.phase == "forward"}
    assert {"first.0", "second.0"} <= modules


def test_two_models_are_told_apart_by_their_class():
    modules = {s.module for s in timeline(lambda: build_workload("gan", {"batch_size": 2, "width": 4})).spans}
    assert any(name.startswith("Generator.layers") for name in modules)
    assert any(name.startswith("Discriminator.layers") for name in modules)


def test_a_storage_knows_the_line_that_made_it():
    lines = {s.line.partition(":")[0] for s in timeline(small_gpt).spans if s.phase == "forward"}
    assert "gpt.py" in lines


def test_phases_come_in_the_order_of_a_training_step():
    marks = timeline(small_gpt).phases
    second = [mark.phase for mark in marks if mark.step == 2]
    assert [p for p in second if p in ("forward", "backward", "update")] == ["forward", "backward", "update"]


def test_a_function_with_a_backward_of_its_own_belongs_to_the_forward():
    """Gradients are off within it, and it is no evaluation."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * 2

    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return Doubled.apply(self.linear(x))

    def build() -> Training:
        model, x = Doubling(), torch.randn(2, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Training(step=lambda: model(x).sum().backward() or optimizer.step(), model=model, batch=x)

    assert "evaluation" not in {span.phase for span in timeline(build).spans}
