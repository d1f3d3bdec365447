"""Is a callable of this process predicted without touching the process?"""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memfit  # noqa: E402
from memfit.errors import PredictionFailed, UsageError  # noqa: E402


def training() -> tuple[Any, Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5))
    optimizer = torch.optim.Adam(model.parameters())
    inputs, labels = torch.randn(16, 30), torch.randint(0, 5, (16,))

    def step() -> None:
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def test_a_step_over_existing_objects_is_predicted_and_they_stay_real():
    model, _, step = training()
    step()
    before = [parameter.clone() for parameter in model.parameters()]
    prediction = memfit.predict_peak(step, probes=False)
    shares = {share.name: share.num_bytes for share in prediction.at_peak.by_category}
    parameter_bytes = sum(p.nbytes for p in model.parameters())
    assert shares["parameter"] == shares["gradient"] == parameter_bytes
    assert shares["optimizer state"] == 2 * parameter_bytes + 4 * len(before)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())


def test_a_function_that_builds_a_job_takes_settings():
    def build(width: int, device: str) -> Any:
        model = torch.nn.Linear(width, width, device=device)
        optimizer = torch.optim.SGD(model.parameters())
        return model, optimizer, lambda out, _: out.sum(), (torch.ones(2, width, device=device), None)

    small, large = (
        memfit.predict_peak(build, settings={"width": width}, probes=False).level("tensors") for width in (8, 80)
    )
    assert small is not None
    assert large is not None
    assert (small.value or 0) < (large.value or 0)


def test_garbage_of_the_calling_process_is_not_in_the_figures():
    def waste() -> None:
        cycle: list[Any] = [torch.ones(1_000_000)]
        cycle.append(cycle)

    model, _, step = training()
    step()
    gc.disable()
    try:
        waste()
        level = memfit.predict_peak(step, probes=False).level("tensors")
    finally:
        gc.enable()
    assert level is not None
    assert (level.value or 0) < 4_000_000
    assert model is not None


def test_a_callable_that_fails_says_where():
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(PredictionFailed, match=r"the job failed at test_predict_callable.py:\d+"):
        memfit.predict_peak(step, probes=False)


def test_a_callable_cannot_be_swept():
    with pytest.raises(UsageError, match="predicted as it is"):
        memfit.predict_peak(lambda: None, sweep="batch_size=1:8")
