"""Is what an operator allocates inside predicted: copies into a common type, sorts, masks, windows?

The oracle is the allocator's own log of the same calls run for real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.training import Training  # noqa: E402
from memfit.predict.fake.probe.asking import result_of  # noqa: E402
from memfit.predict.fake.probe.process import probe  # noqa: E402
from memfit.predict.fake.probe.real_run import real_tensor_peak  # noqa: E402
from memfit.predict.fake.probe.signatures import Signatures  # noqa: E402
from memfit.predict.fake.recording import Recording, trace_training  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.observe.log import timeline_of  # noqa: E402

F = torch.nn.functional
MODEL_BYTES = 8
"""The holder's parameters: the real run keeps the step alone, which does not use them."""
CALLS: dict[str, Callable[..., Any]] = {
    "float times mask": lambda x, m, i, h: x * m,
    "float plus whole numbers": lambda x, m, i, h: x + i,
    "float times bfloat16": lambda x, m, i, h: x * h,
    "whole numbers divided by a float": lambda x, m, i, h: i / 255.0,
    "comparison of two types": lambda x, m, i, h: x > i,
    "where of two types": lambda x, m, i, h: torch.where(m, x, h),
    "in place by a mask": lambda x, m, i, h: x.mul_(m),
    "sum of a mask": lambda x, m, i, h: m.sum(),
    "selection by a mask": lambda x, m, i, h: x[m],
    "isinf": lambda x, m, i, h: x.isinf(),
    "logsumexp": lambda x, m, i, h: x.logsumexp(0),
    "roll over two dimensions": lambda x, m, i, h: torch.roll(x, (1, 1), (0, 1)),
    "median": lambda x, m, i, h: x.median(),
    "kthvalue": lambda x, m, i, h: x.kthvalue(3),
    "unique": lambda x, m, i, h: i.unique(),
    "multinomial": lambda x, m, i, h: torch.multinomial(x.abs(), 5),
    "distances": lambda x, m, i, h: torch.cdist(x, x),
    "unfold": lambda x, m, i, h: F.unfold(x.view(1, 1, 100, 100), 3),
    "bicubic": lambda x, m, i, h: F.interpolate(x.view(1, 1, 100, 100), scale_factor=2, mode="bicubic"),
    "real Fourier transform in two dimensions": lambda x, m, i, h: torch.fft.rfft2(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_an_operator_allocates_inside_is_predicted_to_the_byte(name: str):
    def build() -> Training:
        x, mask = torch.randn(100, 100), torch.ones(100, 100, dtype=torch.bool)
        whole, half = torch.zeros(100, 100, dtype=torch.int64), torch.randn(100, 100, dtype=torch.bfloat16)
        holder = torch.nn.Linear(1, 1)

        def step() -> None:
            with torch.no_grad():
                CALLS[name](x, mask, whole, half)

        return Training(model=holder, optimizer=torch.optim.SGD(holder.parameters()), batch=None, step=step)

    real_bytes = real_tensor_peak(build)
    signatures = Signatures()
    trace = trace_training(build, recording=Recording(signatures.sign))
    results = {number: result_of(probe(text)) for text, number in signatures.texts.items()}
    predicted_bytes = peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0]
    assert predicted_bytes - MODEL_BYTES == real_bytes
