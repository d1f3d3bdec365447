"""While a step is tried on the program's own gradients, is none there twice, and do all come back to the bit?"""

from __future__ import annotations

import errno
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch_fit_models import job_for, left_over_bytes, normed_stack

from memfit.api import fitting_loop
from memfit.model import gradients_aside
from memfit.model.gradients_aside import lending_gradients
from memfit.model.step import Job, leaving_no_trace
from memfit.profile.reference_step import digest_of


def job_with_gradients(model: nn.Module | None = None) -> Job:
    job = job_for(model if model is not None else normed_stack())
    job.run()
    job.accumulates, job.limit_bytes = True, 1
    return job


def gradients_of(job: Job) -> list[torch.Tensor]:
    return [p.grad for p in job.model.parameters() if p.grad is not None]


def test_a_try_uses_the_programs_gradients_and_they_come_back_to_the_bit():
    job = job_with_gradients()
    before = gradients_of(job)
    digests = [digest_of(gradient) for gradient in before]
    with lending_gradients(job):
        for _ in range(2):
            with leaving_no_trace(job):
                assert all(mine is theirs for mine, theirs in zip(gradients_of(job), before, strict=True))
                assert not any(gradient.any() for gradient in before)
                job.run()
            assert [digest_of(gradient) for gradient in before] != digests
    assert all(mine is theirs for mine, theirs in zip(gradients_of(job), before, strict=True))
    assert [digest_of(gradient) for gradient in before] == digests
    assert not job.lent


def test_they_come_back_when_a_try_fails():
    job = job_with_gradients()
    digests = [digest_of(gradient) for gradient in gradients_of(job)]

    def fail() -> None:
        with lending_gradients(job), leaving_no_trace(job):
            job.run()
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        fail()
    assert [digest_of(gradient) for gradient in gradients_of(job)] == digests


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_full_disk_or_none_leaves_all_as_it_was(has_folder: bool, monkeypatch: pytest.MonkeyPatch):
    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def write(self, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

    job = job_with_gradients()
    before = gradients_of(job)
    digests = [digest_of(gradient) for gradient in before]

    def opened(**options: Any) -> Full:
        if not has_folder:
            raise FileNotFoundError("no usable temporary directory found")
        return Full()

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    with lending_gradients(job):
        assert not job.lent
        with leaving_no_trace(job):
            assert not any(mine is theirs for mine, theirs in zip(gradients_of(job), before, strict=True))
            job.run()
    assert [digest_of(gradient) for gradient in before] == digests


@given(
    st.lists(st.integers(0, 5), min_size=0, max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.sampled_from(["plain", "transposed", "spread", "expanded", "sparse"]),
)
def test_gradients_of_any_shape_type_and_layout_come_back(shape: list[int], dtype: torch.dtype, layout: str):
    gradient = torch.randn(shape, dtype=torch.float64).to(dtype)
    if layout == "transposed":
        gradient = gradient.mT.contiguous().mT if gradient.dim() > 1 else gradient
    elif layout == "spread":
        gradient = torch.randn([*shape, 2], dtype=torch.float64).to(dtype)[..., 0]
    elif layout == "expanded":
        gradient = torch.ones((), dtype=dtype).expand(shape)
    elif layout == "sparse" and gradient.dim():
        gradient = gradient.to_sparse()
    parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))
    parameter.grad = gradient
    model = nn.Module()
    model.weight = parameter
    job = Job(model=model, run=lambda: None, accumulates=True, limit_bytes=0)
    digest, given_ = digest_of(gradient), parameter.grad
    with lending_gradients(job), leaving_no_trace(job):
        assert parameter.grad is not None
        parameter.grad += 1
    assert parameter.grad is given_
    assert digest_of(parameter.grad) == digest


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_a_loop_that_has_gradients_when_a_pass_begins_is_fitted_with_them(every: int, monkeypatch: pytest.MonkeyPatch):
    """`zero_grad` behind the model, or after several batches: losses are those of the plain loop to the bit."""
    lent: list[int] = []
    original = gradients_aside._written
    monkeypatch.setattr(gradients_aside, "_written", lambda file, ts: lent.append(len(ts)) or original(file, ts))

    def loop() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(6)])
        optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
        for step in range(8):
            loss = model(torch.randn(128, 64)).square().mean()
            if step % every == 0:
                optimizer.zero_grad()
            loss.backward()
            if step % every == every - 1:
                optimizer.step()
            losses.append(loss.item())
        return [*losses, *(digest_of(p) for p in model.parameters())]

    plain = loop()
    fitter = fitting_loop((1 << 20) + left_over_bytes(), measure_every=1)
    fitter.start()
    try:
        found = loop()
    finally:
        record = fitter.stop()
    assert found == plain
    assert record.within_budget
    assert lent == [24]


def test_a_graph_that_has_saved_a_gradient_can_still_use_it():
    job = job_with_gradients()
    weight = next(p for p in job.model.parameters() if p.dim() == 2)
    assert weight.grad is not None
    penalty = (weight * weight.grad).sum()
    with lending_gradients(job), leaving_no_trace(job):
        assert id(weight) in job.lent
        job.run()
    penalty.backward()  # autograd compares versions


class Conjugated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight.mH @ x.to(torch.complex64)).abs()


def test_a_gradient_with_the_bit_of_a_conjugate_stays_where_it_is():
    model, x = Conjugated(), torch.randn(4, 4)

    def run() -> None:
        model(x).sum().backward()

    run()
    model.weight.grad = torch.conj(torch.ones(4, 4, dtype=torch.complex64) * 1j)
    job = Job(model=model, run=run, accumulates=True, limit_bytes=1)
    before = digest_of(model.weight.grad)
    with lending_gradients(job), leaving_no_trace(job):
        job.run()
    assert model.weight.grad is not None
    assert model.weight.grad.is_conj()
    assert digest_of(model.weight.grad) == before == digest_of(model.weight.grad.resolve_conj())
