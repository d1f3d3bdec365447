"""Is the predicted peak of tensor bytes the peak of the real step, to the byte, on the CPU?

The oracle is the allocator's own log of a real run of the same job. Known exceptions stand in `test_known_exceptions`.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.workloads import build_workload  # noqa: E402
from memfit.predict.liveness import peak_of, who_is_alive  # noqa: E402
from memfit.predict.torch_fake import Recording, trace_training  # noqa: E402
from memfit.predict.torch_probe import probe  # noqa: E402
from memfit.predict.torch_signatures import Signatures  # noqa: E402
from memfit.predict.torch_truth import real_tensor_peak  # noqa: E402
from memfit.predict.trace import ProbeResult, timeline_of  # noqa: E402

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"batch_size": 16, "features": 96, "hidden": 128, "layers": 4},
    "cnn": {"batch_size": 4, "size": 16, "width": 8},
    "gpt": {"batch_size": 2, "length": 32, "words": 300, "width": 64, "heads": 4, "layers": 2},
    "resnet18": {"batch_size": 2, "size": 32, "classes": 10},
    "lstm": {"batch_size": 4, "length": 12, "words": 200, "width": 64},
    "gan": {"batch_size": 4, "width": 16},
}
OPTIMIZERS = [
    "sgd",
    "sgd-fused",
    "sgd-momentum-foreach",
    "adam",
    "adam-foreach",
    "adam-fused",
    "adam-amsgrad",
    "adamw",
    "adagrad",
    "adagrad-fused",
    "adagrad-foreach",
    "adadelta",
    "adadelta-foreach",
    "adamax",
    "nadam",
    "radam",
    "rmsprop",
    "rmsprop-foreach",
    "rprop",
    "asgd",
    "adafactor",
]


def predicted_peak(build: Any) -> int:
    """Fake tensors and micro-probes, all in this process."""
    signatures = Signatures()
    trace = trace_training(build, recording=Recording(signatures.sign))
    results = {number: ProbeResult(**_tuple(probe(text))) for text, number in signatures.texts.items()}
    return peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0]


def _tuple(reply: dict[str, Any]) -> dict[str, Any]:
    return {"inside_bytes": reply["inside_bytes"], "output_bytes": tuple(reply["output_bytes"])}


def both(name: str, **settings: Any) -> tuple[int, int]:
    def build() -> Any:
        return build_workload(name, {**SMALL[name], **settings})

    return predicted_peak(build), real_tensor_peak(build)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_foreseen_to_the_byte(optimizer: str):
    predicted, real = both("mlp", optimizer=optimizer)
    assert predicted == real


@pytest.mark.parametrize("name", list(SMALL))
def test_every_workload_is_foreseen_to_the_byte(name: str):
    predicted, real = both(name)
    assert predicted == real


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mlp", {"accumulate": 3}),
        ("mlp", {"clip": 1.0, "optimizer": "adamw-foreach"}),
        ("mlp", {"set_to_none": False}),
        ("mlp", {"dropout": 0.2}),
        ("mlp", {"precision": "bf16"}),
        ("cnn", {"channels_last": True}),
        ("cnn", {"optimizer": "sgd-momentum", "accumulate": 2}),
        ("gpt", {"checkpoint": True}),
        ("gpt", {"precision": "bf16"}),
        ("gpt", {"dropout": 0.1}),
        ("gpt", {"optimizer": "adamw-fused", "clip": 1.0, "accumulate": 2}),
        ("resnet18", {"checkpoint": True}),
    ],
)
def test_every_technique_is_foreseen_to_the_byte(name: str, settings: dict[str, Any]):
    predicted, real = both(name, **settings)
    assert predicted == real


def test_without_probes_what_kernels_allocate_inside_is_missing():
    def build() -> Any:
        return build_workload("cnn", SMALL["cnn"])

    trace = trace_training(build, recording=Recording())
    bare = peak_of(timeline_of(trace.log, trace.root_names), "cpu")[0]
    assert bare < real_tensor_peak(build)


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_every_split_of_the_peak_adds_up_to_it(name: str):
    trace = trace_training(lambda: build_workload(name, SMALL[name]), recording=Recording())
    timeline = timeline_of(trace.log, trace.root_names)
    peak_bytes, event = peak_of(timeline, "cpu")
    alive = who_is_alive(timeline, "cpu", event)
    for split in (alive.by_category, alive.by_module, alive.by_phase, alive.by_line, alive.by_operator):
        assert sum(share.num_bytes for share in split) == peak_bytes


@pytest.mark.parametrize("batch_sizes", [(1, 2, 8, 32)])
def test_the_peak_never_falls_when_the_batch_grows(batch_sizes: tuple[int, ...]):
    peaks = []
    for batch_size in batch_sizes:
        settings = {**SMALL["mlp"], "batch_size": batch_size}
        trace = trace_training(lambda settings=settings: build_workload("mlp", settings), recording=Recording())
        peaks.append(peak_of(timeline_of(trace.log, trace.root_names), "cpu")[0])
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]
