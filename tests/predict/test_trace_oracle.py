"""Is the predicted peak of tensor bytes the peak of the real step, to the byte, on the CPU?

The oracle is the allocator's own log of a real run of the same job. Known exceptions stand in `test_known_exceptions`.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.workloads.registry import build_workload  # noqa: E402
from memfit.predict.fake.probe.client import result_of  # noqa: E402
from memfit.predict.fake.probe.process import probe  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_tensor_peak  # noqa: E402
from memfit.predict.fake.probe.signatures import Signatures  # noqa: E402
from memfit.predict.fake.recording import Recording, trace_training  # noqa: E402
from memfit.predict.levels.liveness import peak_of, who_is_alive  # noqa: E402
from memfit.predict.observe.storage_log import timeline_of  # noqa: E402

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
    results = {number: result_of(probe(text)) for text, number in signatures.texts.items()}
    return peak_of(timeline_of(trace.log, trace.root_names, results), "cpu")[0]


def both(name: str, **settings: Any) -> tuple[int, int]:
    def build() -> Any:
        return build_workload(name, {**SMALL[name], **settings})

    return predicted_peak(build), real_tensor_peak(build)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_predicted_to_the_byte(optimizer: str):
    predicted, real = both("mlp", optimizer=optimizer)
    assert predicted == real


@pytest.mark.parametrize("name", list(SMALL))
def test_every_workload_is_predicted_to_the_byte(name: str):
    predicted, real = both(name)
    assert predicted == real


@pytest.mark.slow
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
def test_every_technique_is_predicted_to_the_byte(name: str, settings: dict[str, Any]):
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


# ---- one weight or one tensor used several times: where does the engine add gradients in place?


def _shared_weight(nn: Any) -> tuple[Any, Any]:
    layer, x = nn.Linear(128, 128, bias=False), torch.ones(4, 128)
    return layer, lambda: layer(layer(layer(x))).sum()


def _tied_words(nn: Any) -> tuple[Any, Any]:
    words, layer = nn.Embedding(300, 32), nn.Linear(32, 32)
    tokens = torch.zeros(8, 16, dtype=torch.long)
    return nn.ModuleList([words, layer]), lambda: nn.functional.linear(layer(words(tokens)), words.weight).sum()


def _branches(nn: Any) -> tuple[Any, Any]:
    layer, x, narrow = nn.Linear(16, 64), torch.ones(512, 16), torch.ones(64, 4)

    def forward() -> Any:
        wide = layer(x).relu()
        return (wide @ narrow + wide @ narrow + wide @ narrow).sum()

    return layer, forward


def _views(nn: Any) -> tuple[Any, Any]:
    layer, x = nn.Linear(64, 3 * 64), torch.ones(128, 64)

    def forward() -> Any:
        left, middle, right = layer(x).chunk(3, -1)
        return (left * middle + middle * right + left * right).sum()

    return layer, forward


def _shortcuts(nn: Any) -> tuple[Any, Any]:
    layers, x = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)]), torch.ones(64, 64)

    def forward() -> Any:
        out = x
        for layer in layers:
            out = out + layer(out).relu()
        return out.sum()

    return layers, forward


@pytest.mark.parametrize("make", [_shared_weight, _tied_words, _branches, _views, _shortcuts])
def test_gradients_that_meet_are_added_in_place_or_not_as_the_engine_does(make: Any):
    def build() -> Any:
        model, forward = make(torch.nn)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            forward().backward()
            optimizer.step()

        return step

    assert predicted_peak(build) == real_tensor_peak(build)


@pytest.mark.parametrize("weighted", [(), ("weight",), ("pos_weight",), ("weight", "pos_weight")])
def test_steps_of_the_backward_of_a_loss_are_taken_in_place_as_torch_takes_them(weighted: tuple[str, ...]):
    """A weight as large as the loss is not written to, and outlives the step."""
    loss, size = torch.nn.functional.binary_cross_entropy_with_logits, (64, 1000)

    def build() -> Any:
        layer, x, target = torch.nn.Linear(16, size[1]), torch.ones(size[0], 16), torch.ones(size)
        given = {name: torch.ones(size) for name in weighted}

        def step() -> None:
            layer.zero_grad()
            loss(layer(x), target, **given).backward()

        return step

    def births(build: Any) -> list[int]:
        trace = trace_training(build, recording=Recording(), num_steps=1)
        whole = 4 * size[0] * size[1]
        return [b.num_bytes for b in trace.log.births if b.phase == "backward" and b.num_bytes == whole]

    alone = 1 if "pos_weight" not in weighted else 3
    assert len(births(build)) == alone, "the sigmoid, and with a weight for positives that weight's part and the sum"


def test_the_gradient_of_a_shared_weight_is_one_gradient():
    def build() -> Any:
        model, forward = _shared_weight(torch.nn)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            forward().backward()
            optimizer.step()

        return step

    trace = trace_training(build, recording=Recording(), num_steps=1)
    gradients = [birth.num_bytes for birth in trace.log.births if birth.category == "gradient"]
    assert gradients == [128 * 128 * 4]


def test_garbage_from_before_is_not_subtracted_from_the_real_peak():
    class Ring:
        def __init__(self) -> None:
            self.tensor, self.me = torch.zeros(1 << 20), self

    def build() -> Any:
        gc.collect()  # as the collector might do by itself, in the middle of any run
        return build_workload("mlp", SMALL["mlp"])

    undisturbed = real_tensor_peak(build)
    Ring()
    assert real_tensor_peak(build) == undisturbed
