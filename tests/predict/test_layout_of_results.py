"""Do results lie in memory as real ones do, where inputs are transposed, and is what is copied inside predicted?

The oracle is torch itself: strides of a real call, and the allocator's own log of the same steps run for real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.training import Training  # noqa: E402
from memfit.predict.fake.probe.client import result_of  # noqa: E402
from memfit.predict.fake.probe.process import probe  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_tensor_peak  # noqa: E402
from memfit.predict.fake.probe.signatures import Signatures  # noqa: E402
from memfit.predict.fake.recording import Recording, trace_training  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.observe.storage_log import timeline_of  # noqa: E402

aten, F = torch.ops.aten, torch.nn.functional
OUT_OF_ORDER: dict[str, Callable[[], Any]] = {
    "transposed": lambda: torch.rand(5, 4, 6).transpose(0, 1),
    "last two transposed": lambda: torch.rand(4, 6, 5).transpose(1, 2),
    "sliced": lambda: torch.rand(4, 5, 12)[..., ::2],
}
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "log softmax": lambda x, y: aten._log_softmax(x, -1, False),
    "log softmax backward": lambda x, y: aten._log_softmax_backward_data(x, y, -1, torch.float32),
    "softmax backward": lambda x, y: aten._softmax_backward_data(x, y, -1, torch.float32),
    "mean squares backward": lambda x, y: aten.mse_loss_backward(y.sum(), x, y, 1),
    "smooth l1 backward": lambda x, y: aten.smooth_l1_loss_backward(y.sum(), x, y, 1, 1.0),
    "huber backward": lambda x, y: aten.huber_loss_backward(y.sum(), x, y, 1, 1.0),
    "softplus backward": lambda x, y: aten.softplus_backward(x, y, 1, 20),
    "relu6 backward": lambda x, y: aten.hardtanh_backward(x, y, 0, 6),
    "hardswish backward": lambda x, y: aten.hardswish_backward(x, y),
    "x log y": lambda x, y: aten.xlogy(x, y),
    "log sigmoid": lambda x, y: aten.log_sigmoid_forward(x)[0],
    "layer norm backward": lambda x, y: aten.native_layer_norm_backward(
        x, y, [6], y[..., :1], y[..., :1], y[0, 0], y[0, 0], [True, True, True]
    )[0],
    "batch norm": lambda x, y: F.batch_norm(x, None, None, y[0, :, 0], y[0, :, 0], training=True),
}


@pytest.mark.parametrize("how", OUT_OF_ORDER)
@pytest.mark.parametrize("name", CALLS)
def test_a_result_has_the_strides_of_a_real_one(name: str, how: str):
    def strides() -> tuple[int, ...]:
        return CALLS[name](OUT_OF_ORDER[how](), torch.rand(4, 5, 6)).stride()

    real = strides()
    with Recording().running():
        assert strides() == real


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "classes first": lambda out, target: F.nll_loss(out.transpose(1, 2).log_softmax(1), target.argmax(-1)),
    "pairs of letters": lambda out, target: out.transpose(0, 1).log_softmax(-1).reshape(-1, 30).square().mean(),
    "scores of one kind for all": lambda out, target: (out.transpose(1, 2).softmax(-1) * target.transpose(1, 2)).sum(),
    "squared error of a transposed": lambda out, target: F.mse_loss(out.transpose(0, 1), target.transpose(0, 1)),
    "relu6 of a transposed": lambda out, target: F.relu6(out.transpose(0, 1)).reshape(-1).sum(),
    "gelu of a transposed": lambda out, target: (F.gelu(out.transpose(0, 1)) * target.transpose(0, 1)).sum(),
    "log sigmoid of a transposed": lambda out, target: F.logsigmoid(out.transpose(0, 1)).mean(),
    "norm over channels": lambda out, target: (
        F.batch_norm(out.transpose(1, 2), None, None, training=True).square().sum()
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_on_transposed_activations_is_predicted_to_the_byte(name: str):
    def build() -> Training:
        layer = torch.nn.Linear(40, 30)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            STEPS[name](layer(torch.randn(16, 50, 40)), torch.rand(16, 50, 30)).backward()
            optimizer.step()

        return Training(step=step)

    real_bytes = real_tensor_peak(build)
    signatures = Signatures()
    trace = trace_training(build, recording=Recording(signatures.sign))
    results = {number: result_of(probe(text)) for text, number in signatures.texts.items()}
    assert peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0] == real_bytes
