"""Does RMSNorm on a GPU that is not there keep what the fused kernel keeps?"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import memfit  # noqa: E402
from memfit.predict.fake.choose_route import can_fake_cuda  # noqa: E402

RMS_NORMS = """
import torch
model = torch.nn.Sequential(*[torch.nn.RMSNorm(256) for _ in range(4)]).to("cuda", torch.{dtype})
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 32, 256, device="cuda", dtype=torch.{given})).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_rms_norm_keeps_its_input_and_one_number_per_row(tmp_path: Path, dtype: str, itemsize: int):
    script = tmp_path / "train.py"
    script.write_text(RMS_NORMS.format(dtype=dtype, given=dtype))
    prediction = memfit.predict_peak(str(script), device="cuda:a100-40gb", engine="fake")
    rows, length = 64 * 32, 256
    activations = 4 * rows * length * itemsize  # the inputs of four norms
    inverse_roots = 4 * rows * 4
    at_end = 2 * rows * length * itemsize  # the input's gradient, and a contiguous copy of the expanded one
    weights = 5 * length * itemsize  # and the gradient of the last one
    number = 512 - 512 % itemsize  # the loss and its gradient are single numbers
    value = prediction.levels[0].figure.value
    assert value is not None
    assert 0 <= value - (activations + inverse_roots + at_end + weights) <= number


@pytest.mark.skipif(bool(can_fake_cuda()), reason="fake CUDA tensors do not work with this build of torch")
def test_rms_norm_over_two_types_is_taken_apart_as_torch_does(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(RMS_NORMS.format(dtype="float32", given="bfloat16"))
    timeline = memfit.predict_peak(str(script), device="cuda:a100-40gb", engine="fake").timeline
    assert timeline is not None
    operators = {span.operator for span in timeline.spans if span.phase == "forward"}
    assert any("rsqrt" in name for name in operators)
