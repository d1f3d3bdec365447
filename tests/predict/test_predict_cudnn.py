"""What cuDNN takes beside the tensors: one recurrent call, ranges that hold the point, and where workspaces are put."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.devices.parse import DeviceSpec
from memfit.predict.gpu_rules.cudnn import (
    LEAST_SHARE,
    MOST_SHARE,
    SEGMENT_BYTES,
    Scratch,
    batch_norm_scratch,
    convolution_scratch,
    copying_all,
    decisions_of,
    reserved_of,
    taken_by,
)
from memfit.predict.levels.gpu import CUDA, reserved_with_cudnn, run_allocator
from memfit.records.timeline import LiveSpan, Timeline
from memfit.units import MIB

torch = pytest.importorskip("torch")

JOBS = """
import torch


class Inferred(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = torch.nn.LSTM(64, 64, batch_first=True)

    def forward(self, x):
        heads = self.recurrent(x)[0].view(len(x), -1, 4, 16).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def inferred(device="cpu"):
    model = Inferred().to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 48, 64, device=device, dtype=torch.bfloat16)

    def loss(out, target):
        with torch.inference_mode():
            model(torch.randn(8, 48, 64, device=device, dtype=torch.bfloat16))
        return out.sum()

    return model, optimizer, loss, (batch, batch)


def without_padding(device="cpu"):
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(2, 16, 64, device=device)
    padding = torch.zeros(8, 128, dtype=torch.bool, device=device)
    padding[:, 100:] = True

    def loss(out, target):
        with torch.no_grad():
            model.eval()(torch.randn(8, 128, 64, device=device), src_key_padding_mask=padding)
        model.train()
        return out.sum()

    return model, optimizer, loss, (batch, batch)


def in_half(device="cpu"):
    model, optimizer, _, batch = recurrent(hidden=32, device=device)
    plain = model.forward

    def forward(x):
        with torch.autocast("cuda", torch.bfloat16):
            return plain(x)

    model.forward = forward
    return model, optimizer, (lambda out, target: out[0].float().sum()), batch


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
    from memfit.predict.child.fork_server import ForkServer
    from memfit.predict.devices.parse import parse_device
    from memfit.testing.engines import on_fake_tensors

    path = tmp_path_factory.mktemp("jobs") / "cudnn_jobs.py"
    path.write_text(JOBS)
    with ForkServer() as server:

        def run(function, **given_settings):
            job = describe_job(f"{path}:{function}", given_settings, ())
            return on_fake_tensors(job, parse_device("cuda:rtx3060-12gb"), fork_server=server)

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


def test_in_inference_mode_attention_and_recurrent_layers_are_what_a_gpu_runs(predict):
    prediction = predict("inferred")
    operators = [span.operator for span in prediction.timeline.spans]
    assert not [name for name in operators if "bmm" in name or "softmax" in name]
    assert sum("by rule" in name for name in operators) == 2 * (1 + 1 + 2), "forward, inference, and backwards"


def test_an_encoder_that_leaves_padding_out_takes_matrices_of_scores(predict):
    prediction = predict("without_padding")
    scores = 4 * 8 * 4 * 128 * 128
    assert sum(span.num_bytes == scores for span in prediction.timeline.spans) == 2 * 2, "before and after the softmax"
    assert any("nested tensors" in a.text for a in prediction.assumptions)
    assert not [a for a in prediction.assumptions if "not followed to the end" in a.text]


def test_autocast_hands_recurrent_layers_one_buffer_of_weights_in_half_precision(predict):
    prediction = predict("in_half")
    num_weights = sum(p.numel() for p in torch.nn.LSTM(32, 32, num_layers=2).parameters())
    made = [span for span in prediction.timeline.spans if span.dtype == "float16" and span.num_bytes == 2 * num_weights]
    assert len(made) == 2 * 2, "the weights and their gradients, in each of two steps"
    assert not [s for s in prediction.timeline.spans if "_cudnn_rnn" in s.operator and s.dtype == "float32"]


def test_a_prediction_says_where_the_size_of_the_gpu_was_read(predict):
    from memfit.predict.devices.parse import GPUS

    assert any(GPUS["rtx3060-12gb"].source in a.text for a in predict("recurrent").assumptions if a.kind == "device")


def convolution(**given_sizes):
    sizes = {"picture_bytes": 10, "weight_bytes": 1, "result_bytes": 100, "num_channels": 64}
    return convolution_scratch(0, "forward", **{**sizes, "is_grouped": False, "is_last": False, **given_sizes})


def test_what_a_convolution_copies_hangs_on_its_channels_its_groups_and_its_order():
    assert (convolution().taker, convolution().num_bytes) == ("tensor cores", 11)
    assert convolution(num_channels=63).num_bytes == convolution(is_last=True).num_bytes == 0
    grouped = convolution(is_grouped=True, num_channels=1, is_last=True)
    assert (grouped.taker, grouped.num_bytes) == ("grouped", 110)


@pytest.mark.parametrize(("last", "wanted"), [(False, []), (True, ["grouped"])])
def test_a_depthwise_convolution_is_torchs_own_in_plain_order_and_cudnns_in_channels_last(last, wanted):
    from memfit.predict.fake.kernels import workspaces

    order = torch.channels_last if last else torch.contiguous_format
    picture = torch.empty(2, 8, 5, 5).to(memory_format=order)
    found = workspaces._of_convolution("forward", picture, torch.empty(8, 1, 3, 3), picture, 8)
    assert ([found.taker] if found else []) == wanted


TAKERS = ["tensor cores", "grouped", "batch norm", "none"]


@st.composite
def jobs(draw):
    """A timeline of one allocator, and calls of cuDNN somewhere in it."""
    num_spans, spans = draw(st.integers(1, 8)), []
    for start in range(num_spans):
        end = draw(st.none() | st.integers(start + 1, num_spans + 4))
        size = draw(st.integers(1, 40 * MIB))
        spans.append(
            LiveSpan(
                start=start, end=end, num_bytes=size, category="activation", phase="forward", operator="", device=CUDA
            )
        )
    scratch = st.builds(
        Scratch, event=st.integers(0, 12), taker=st.sampled_from(TAKERS), num_bytes=st.integers(0, 90 * MIB)
    )
    return Timeline(spans=tuple(spans), num_events=num_spans + 5, phases=()), draw(st.lists(scratch, max_size=5))


def reserved(job, device):
    timeline, scratches = job
    settings_used = AllocatorSettings()
    free_run = run_allocator(timeline, settings_used)
    return free_run, reserved_with_cudnn(timeline, settings_used, free_run, scratches, device)


ANY = DeviceSpec(kind="cuda", name="any", capability=(8, 9))


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_without_workspaces_reserved_is_the_allocators_own_and_never_below_allocated(job):
    timeline, scratches = job
    free_run, found = reserved(job, ANY)
    assert free_run.peak_allocated_bytes <= found.low_bytes <= found.point_bytes <= found.high_bytes
    _, bare = reserved((timeline, [s for s in scratches if s.taker == "none"]), ANY)
    assert bare.point_bytes == free_run.peak_reserved_bytes


@settings(max_examples=100, deadline=None)
@given(jobs(), st.integers(0, 200))
def test_a_workspace_that_does_not_fit_on_the_card_is_left_out(job, spare_mib):
    timeline, _ = job
    needed = run_allocator(timeline, AllocatorSettings()).peak_reserved_bytes
    card = DeviceSpec(kind="cuda", name="small", total_bytes=needed + (430 + spare_mib) * MIB, capability=(8, 9))
    _, found = reserved(job, card)
    assert found.point_bytes <= found.high_bytes <= needed + spare_mib * MIB


@given(st.lists(st.sampled_from(TAKERS), max_size=6))
def test_every_decision_that_is_open_is_taken_and_not_taken(takers):
    scratches = [Scratch(event=0, taker=taker, num_bytes=1) for taker in takers]
    decisions = decisions_of(scratches)
    num_open = len({"tensor cores", "grouped"} & set(takers))
    assert len(set(decisions)) == len(decisions) == 2**num_open
    assert all(len(taken_by(scratches, each)) >= takers.count("batch norm") for each in decisions)
    assert len(taken_by(scratches, decisions[-1])) == len(takers) - takers.count("none")


@given(st.integers(1, 10**9))
def test_batch_normalisation_always_takes_more_than_a_bit_per_element(num_elements):
    scratch = batch_norm_scratch(0, num_elements)
    assert taken_by([scratch], frozenset()) == [(0, scratch.num_bytes)]
    assert scratch.num_bytes > num_elements // 8


@given(st.lists(st.integers(1 << 20, 1 << 40), min_size=1, max_size=4), st.sampled_from([(8, 0), (8, 6), (8, 9)]))
def test_the_range_holds_the_point_and_what_measured_jobs_showed(peaks_bytes, capability):
    found = reserved_of(peaks_bytes, 0, capability)
    assert found.low_bytes <= found.point_bytes <= max(peaks_bytes)
    assert found.point_bytes >= int(min(peaks_bytes) * 0.97)
    assert found.low_bytes <= found.point_bytes * LEAST_SHARE
    assert found.high_bytes >= found.point_bytes * MOST_SHARE - 1


@pytest.mark.parametrize(("capability", "allocated_mib"), [((8, 0), 30), ((8, 0), 900), ((8, 9), 30)])
def test_a_range_that_was_not_measured_is_a_wide_one(capability, allocated_mib):
    """Small convolutions on the phantom A100: 42 MiB predicted, 56 reserved; and less than the point as well."""
    point = allocated_mib * MIB * 3 // 2
    found = reserved_of([point], allocated_mib * MIB, capability)
    assert not found.is_measured
    assert found.high_bytes >= max(1.5 * point, point + 2 * SEGMENT_BYTES)
    assert found.low_bytes <= 0.8 * point


def test_the_measured_range_is_kept_for_jobs_and_cards_like_the_measured_ones():
    found = reserved_of([1000 * MIB], 800 * MIB, (8, 9), copying_bytes=3000 * MIB)
    assert found.is_measured
    assert (found.low_bytes, found.high_bytes) == (int(1000 * MIB * LEAST_SHARE), int(1000 * MIB * MOST_SHARE) + 1)


def test_a_range_that_was_not_measured_holds_a_run_in_which_every_operand_is_copied():
    narrow = convolution(num_channels=10)
    assert copying_all([narrow, convolution(is_grouped=True)]) == [(0, 111), (0, 111)]
    found = reserved_of([1000 * MIB], 800 * MIB, (8, 0), copying_bytes=3000 * MIB)
    assert found.high_bytes == 3000 * MIB


def test_a_prediction_does_not_say_that_a_range_was_measured_where_it_was_not(predict):
    prediction = predict("pictures")
    assert "not measured" in level(prediction, "reserved").method
    assert "assumed" in level(prediction, "cudnn").method
    assert any("wide one" in a.text for a in prediction.assumptions)
    assert "a job as small as this" in prediction.error_band
