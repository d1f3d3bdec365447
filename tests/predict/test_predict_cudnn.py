"""What cuDNN takes beside the tensors: one recurrent call, ranges that hold the point, and where workspaces are put."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.predict.gpu_rules.cudnn import (
    LEAST_SHARE,
    MOST_SHARE,
    STORIES,
    Scratch,
    batch_norm_scratch,
    convolution_scratch,
    range_of,
    scratch_bytes,
    with_scratches,
)

torch = pytest.importorskip("torch")

JOBS = """
import torch


def recurrent(kind="LSTM", batch=4, length=10, hidden=64, layers=2, device="cpu"):
    model = getattr(torch.nn, kind)(32, hidden, num_layers=layers, batch_first=True).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(batch, length, 32, device=device)
    return model, optimizer, (lambda out, target: out[0].sum()), (batch, batch)


def pictures(last=False, device="cpu"):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU())
    order = torch.channels_last if last else torch.contiguous_format
    model = model.to(device).to(memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(16, 3, 64, 64, device=device).to(memory_format=order)
    return model, optimizer, (lambda out, target: out.sum()), (batch, batch)
"""


@pytest.fixture(scope="module")
def predict(tmp_path_factory):
    """Predictions of the jobs above on a GPU, from one warm process."""
    from memfit.job.description import describe_job
    from memfit.predict.child.parent import Nursery
    from memfit.predict.devices.parse import parse_device
    from memfit.predict.engine import ForecastOptions, forecast

    path = tmp_path_factory.mktemp("jobs") / "cudnn_jobs.py"
    path.write_text(JOBS)
    with Nursery() as nursery:

        def run(function, **given_settings):
            job = describe_job(f"{path}:{function}", given_settings, ())
            return forecast(job, parse_device("cuda:rtx3060-12gb"), ForecastOptions(nursery=nursery))

        yield run


def level(prediction, name):
    return next(each.figure for each in prediction.levels if each.name == name)


def spans_of(prediction, operator):
    return [span for span in prediction.timeline.spans if operator in span.operator]


@pytest.mark.parametrize(("kind", "kept"), [("LSTM", 5), ("GRU", 6), ("RNN", 1)])
def test_a_recurrent_layer_on_a_gpu_is_one_call_that_keeps_a_reserve(predict, kind, kept):
    prediction = predict("recurrent", kind=kind)
    born = [span.num_bytes for span in spans_of(prediction, "_cudnn_rnn.default")]
    places, hidden, layers = 4 * 10, 64, 2
    assert born.count(256 + (kept * layers + layers - 1) * places * hidden * 4) == 2, "one reserve in each of two steps"
    assert any("one call of cuDNN" in assumption.text for assumption in prediction.assumptions)


def test_the_gradients_of_a_recurrent_layer_are_one_buffer_as_large_as_its_weights(predict):
    prediction = predict("recurrent")
    weights = sum(span.num_bytes for span in prediction.timeline.spans if span.category == "parameter")
    gradients = {span.num_bytes for span in prediction.timeline.spans if span.category == "gradient"}
    assert weights in gradients


def test_a_convolution_widens_the_range_and_the_point_lies_in_it(predict):
    prediction = predict("pictures")
    reserved, device = level(prediction, "reserved"), level(prediction, "device")
    assert reserved.low <= reserved.value <= reserved.high
    assert reserved.high > reserved.low
    assert device.high - device.low > reserved.high - reserved.low
    assert any(assumption.kind == "cudnn" for assumption in prediction.assumptions)


def test_what_cudnn_may_take_is_a_level_of_its_own_and_the_levels_add_up(predict):
    prediction = predict("pictures")
    names = [each.name for each in prediction.levels]
    assert names == ["tensors", "allocated", "reserved", "cudnn", "context", "device", "smallest"]
    cudnn, context = level(prediction, "cudnn"), level(prediction, "context")
    reserved, device = level(prediction, "reserved"), level(prediction, "device")
    assert (cudnn.source, cudnn.value, cudnn.low) == ("assumed", 0, 0)
    assert cudnn.high > 0
    assert reserved.value + cudnn.value + context.value == device.value
    assert reserved.value + cudnn.high == reserved.high
    assert reserved.value + cudnn.high + context.high == device.high


def test_a_job_without_convolutions_has_no_level_for_them(predict):
    assert "cudnn" not in [each.name for each in predict("recurrent").levels]


def test_batch_normalisation_is_cudnns_only_in_channels_last_order(predict):
    plain, last = predict("pictures"), predict("pictures", last=True)
    said = [any("batch normalisation" in a.text for a in each.assumptions) for each in (plain, last)]
    assert said == [False, True]


def test_the_workspace_of_a_recurrent_layer_is_named_as_a_rules_and_lives_for_one_call(predict):
    spans = spans_of(predict("recurrent"), "by rule")
    assert len(spans) == 2 * 3, "forward, and two passes backwards, in each of two steps"
    assert all(span.category == "workspace" and span.end is not None for span in spans)


def test_a_prediction_says_where_the_size_of_the_gpu_was_read(predict):
    from memfit.predict.devices.parse import GPUS

    assert any(GPUS["rtx3060-12gb"].source in a.text for a in predict("recurrent").assumptions if a.kind == "device")


@given(st.integers(1, 10**9))
def test_batch_normalisation_takes_the_same_in_every_story(num_elements):
    taken = {scratch_bytes(batch_norm_scratch(0, num_elements), story) for story in STORIES}
    assert len(taken) == 1
    assert min(taken) > num_elements // 8


def test_a_depthwise_convolution_has_no_workspace():
    sizes = {"picture_bytes": 10, "weight_bytes": 1, "result_bytes": 10}
    assert convolution_scratch(0, "forward", **sizes, depthwise=True) is None
    assert convolution_scratch(0, "forward", **sizes, depthwise=False) is not None


@st.composite
def requests(draw):
    """A valid list of placed requests, and calls of cuDNN somewhere among them."""
    events, alive, made = [], [], 0
    for place in range(draw(st.integers(0, 12))):
        if alive and draw(st.booleans()):
            events.append((place, -1 - alive.pop(draw(st.integers(0, len(alive) - 1)))))
        else:
            events.append((place, draw(st.integers(1, 10**6))))
            alive.append(made)
            made += 1
    size = st.integers(0, 10**6)
    kinds = st.sampled_from(["forward", "input gradient", "weight gradient", "batch norm"])
    scratch = st.builds(Scratch, event=st.integers(0, 13), kind=kinds, one_bytes=size, all_bytes=size)
    return events, draw(st.lists(scratch, max_size=5))


@settings(max_examples=200)
@given(requests(), st.sampled_from(STORIES))
def test_workspaces_are_put_in_without_changing_the_other_requests(given_requests, story):
    events, scratches = given_requests
    result = with_scratches(events, scratches, story)
    born, alive = [], {}
    for request in result:
        if request > 0:
            alive[len(born)] = request
            born.append(request)
        else:
            assert alive.pop(-1 - request), "only what is alive is freed"
    inside = [scratch_bytes(s, story) for s in scratches if events and s.event <= events[-1][0]]
    assert sorted(born) == sorted([r for _, r in events if r > 0] + [each for each in inside if each])
    freed = {-1 - request for _, request in events if request < 0}
    wanted = [r for k, r in enumerate([r for _, r in events if r > 0]) if k not in freed]
    assert sorted(alive.values()) == sorted(wanted), "workspaces end with their call"


@given(st.integers(1, 1 << 40), st.lists(st.integers(1, 1 << 40), max_size=4))
def test_the_range_holds_the_point_every_story_and_what_measured_jobs_showed(point_bytes, story_bytes):
    low, high = range_of(point_bytes, story_bytes)
    assert low <= min([point_bytes, *story_bytes]) <= max([point_bytes, *story_bytes]) <= high
    assert low <= point_bytes * LEAST_SHARE
    assert high + 1 > point_bytes * MOST_SHARE
    assert range_of(point_bytes, [*story_bytes, low, high]) == (low, high), "stories inside of the range change nothing"
