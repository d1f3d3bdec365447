"""Do the formulas for recurrent calls give what cuDNN itself said of them? Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.predict.gpu_rules.recurrent import MODES, RecurrentCall, is_persistent, reserve_bytes, workspace_bytes

CALL = RecurrentCall(
    mode="lstm", places=400, batch=8, length=50, input_size=64, hidden_size=128, num_layers=2, directions=1,
    item_bytes=4,
)  # fmt: skip

SAID = [
    ({}, 2_253_056),
    ({"num_layers": 1}, 1_024_256),
    ({"num_layers": 1, "directions": 2}, 2_048_256),
    ({"num_layers": 3, "directions": 2}, 6_963_456),
    ({"mode": "gru"}, 2_662_656),
    ({"mode": "gru", "num_layers": 3, "directions": 2}, 8_192_256),
    ({"mode": "rnn_relu", "num_layers": 1}, 205_056),
    ({"mode": "rnn_relu", "num_layers": 3}, 1_024_256),
    ({"item_bytes": 2}, 1_126_656),
    ({"num_layers": 3, "has_dropout": True}, 3_494_656),
    ({"directions": 2, "has_dropout": True}, 4_505_856 + 25_600),
    ({"projected_size": 64}, 2_867_456),
    ({"num_layers": 1, "projected_size": 32}, 1_280_256),
    ({"mode": "gru", "places": 21, "hidden_size": 100, "input_size": 37}, 109_472),
]
"""What cudnnGetRNNTempSpaceSizes of cuDNN 9.24 answered for compute capability 8.0."""

# mode, weights on the chip, places, texts, longest, input, hidden, layers, directions, bytes of a number, projection,
# packed, training, workspace, reserve
ASKED = {
    (8, 0): [
        ("rnn_tanh", True, 3200, 16, 200, 100, 32, 1, 1, 4, 0, False, True, 17_173_376, 409_856),
        ("lstm", False, 287, 8, 70, 1024, 100, 2, 1, 4, 0, True, False, 2_616_256, 0),
        ("lstm", False, 12544, 16, 784, 1024, 650, 1, 1, 4, 162, False, True, 257_103_776, 203_815_168),
        ("lstm", True, 800, 4, 200, 768, 128, 1, 2, 4, 0, False, True, 42_619_168, 4_096_256),
        ("rnn_relu", True, 8960, 128, 70, 1024, 128, 1, 1, 4, 0, False, False, 73_467_136, 0),
        ("gru", False, 100, 1, 100, 1, 16, 3, 1, 4, 0, True, True, 35_584, 128_256),
        ("rnn_relu", True, 500, 100, 5, 100, 100, 1, 1, 2, 0, False, False, 9_209_664, 0),
        ("gru", False, 5, 1, 5, 200, 300, 2, 2, 4, 0, False, True, 43_748_320, 156_256),
        ("gru", True, 640, 64, 10, 100, 100, 1, 2, 4, 0, False, True, 24_272_384, 3_072_256),
        ("lstm", True, 20, 1, 20, 10, 16, 1, 1, 4, 0, False, True, 8_423_744, 6_656),
        ("gru", False, 1024, 4, 256, 40, 650, 3, 2, 2, 0, False, True, 102_490_592, 53_248_256),
        ("rnn_relu", True, 500, 100, 5, 28, 128, 2, 2, 4, 0, False, True, 41_030_048, 1_536_256),
        ("lstm", False, 640, 64, 10, 300, 32, 1, 2, 4, 0, False, True, 22_430_464, 819_456),
        ("lstm", False, 19200, 64, 300, 1024, 300, 3, 1, 4, 75, False, True, 281_776_384, 478_080_256),
        ("rnn_tanh", True, 5000, 100, 50, 40, 128, 1, 2, 4, 0, False, True, 67_907_104, 5_120_256),
        ("rnn_relu", True, 6000, 20, 300, 512, 128, 2, 1, 2, 0, False, False, 15_630_752, 0),
        ("rnn_tanh", False, 200, 1, 200, 200, 1024, 1, 1, 2, 0, True, True, 11_716_864, 409_856),
        ("lstm", False, 16384, 64, 256, 512, 16, 1, 1, 2, 0, False, False, 27_876_096, 0),
        ("rnn_tanh", False, 800, 8, 100, 1, 16, 1, 1, 2, 0, False, True, 8_496_352, 25_856),
        ("rnn_relu", True, 20, 1, 20, 768, 50, 1, 1, 4, 0, False, True, 8_786_144, 4_256),
        ("rnn_tanh", True, 12800, 64, 200, 1, 8, 1, 2, 4, 0, False, False, 21_765_440, 0),
        ("gru", False, 2800, 100, 28, 28, 512, 3, 1, 2, 0, False, True, 21_112_992, 57_344_256),
        ("rnn_relu", True, 6000, 20, 300, 200, 128, 1, 1, 4, 0, False, True, 59_882_400, 3_072_256),
        ("rnn_tanh", True, 560, 20, 28, 300, 128, 3, 1, 4, 0, False, True, 6_409_376, 1_433_856),
        ("gru", True, 700, 20, 35, 100, 64, 1, 1, 4, 0, False, True, 12_432_096, 1_075_456),
        ("gru", True, 20, 1, 20, 40, 32, 1, 1, 4, 0, False, True, 8_470_432, 15_616),
        ("rnn_relu", True, 1000, 100, 10, 80, 100, 3, 2, 4, 0, False, True, 61_676_704, 4_000_256),
        ("rnn_relu", True, 12800, 64, 200, 1024, 50, 3, 1, 4, 0, False, False, 68_197_984, 0),
        ("lstm", True, 20, 4, 5, 200, 100, 2, 1, 4, 0, False, True, 1_014_688, 88_256),
        ("rnn_tanh", True, 80, 4, 20, 64, 32, 2, 2, 4, 0, False, True, 33_915_168, 61_696),
        ("gru", True, 200, 20, 10, 64, 32, 1, 1, 4, 0, False, True, 9_030_048, 153_856),
        ("gru", False, 1120, 16, 70, 300, 650, 2, 1, 4, 0, False, True, 30_958_400, 37_856_256),
        ("lstm", False, 5000, 100, 50, 512, 32, 3, 1, 4, 8, False, True, 32_453_152, 13_280_256),
        ("rnn_tanh", True, 3200, 16, 200, 64, 64, 3, 2, 4, 0, False, True, 69_607_808, 8_192_256),
        ("gru", False, 100352, 128, 784, 1, 200, 1, 2, 4, 0, False, False, 982_957_504, 0),
        ("gru", False, 20000, 100, 200, 8, 100, 2, 2, 2, 0, False, True, 83_245_088, 104_000_256),
        ("rnn_relu", True, 30000, 100, 300, 8, 16, 3, 2, 4, 0, False, True, 92_856_864, 19_200_256),
        ("rnn_tanh", False, 5, 1, 5, 28, 256, 2, 2, 4, 0, False, True, 35_800_480, 30_976),
        ("gru", False, 25600, 100, 256, 28, 300, 1, 1, 4, 0, False, False, 135_917_664, 0),
        ("rnn_tanh", False, 25600, 100, 256, 200, 512, 2, 1, 4, 0, False, False, 130_122_784, 0),
        ("rnn_relu", False, 160, 32, 5, 10, 16, 3, 1, 4, 0, False, True, 90_752, 51_456),
        ("rnn_tanh", True, 800, 4, 200, 1024, 50, 3, 2, 4, 0, False, True, 73_295_936, 1_600_256),
        ("lstm", True, 2560, 128, 20, 768, 8, 1, 1, 4, 0, False, True, 33_360_128, 409_856),
        ("rnn_tanh", True, 400, 20, 20, 1, 32, 1, 2, 2, 0, False, True, 17_287_776, 51_456),
    ],
    (7, 5): [
        ("rnn_tanh", True, 80, 4, 20, 64, 32, 2, 2, 4, 0, False, True, 33_915_168, 61_696),
        ("gru", True, 200, 20, 10, 64, 32, 1, 1, 4, 0, False, True, 9_030_048, 153_856),
        ("gru", False, 1120, 16, 70, 300, 650, 2, 1, 4, 0, False, True, 47_735_616, 37_856_256),
        ("lstm", False, 5000, 100, 50, 512, 32, 3, 1, 4, 8, False, True, 57_618_976, 13_280_256),
        ("rnn_tanh", True, 3200, 16, 200, 64, 64, 3, 2, 4, 0, False, True, 69_607_808, 8_192_256),
        ("gru", False, 100352, 128, 784, 1, 200, 1, 2, 4, 0, False, False, 982_957_504, 0),
        ("gru", False, 20000, 100, 200, 8, 100, 2, 2, 2, 0, False, True, 83_245_088, 104_000_256),
        ("rnn_relu", True, 30000, 100, 300, 8, 16, 3, 2, 4, 0, False, True, 92_856_864, 19_200_256),
        ("rnn_tanh", False, 5, 1, 5, 28, 256, 2, 2, 4, 0, False, True, 35_800_480, 30_976),
        ("gru", False, 25600, 100, 256, 28, 300, 1, 1, 4, 0, False, False, 135_917_664, 0),
        ("rnn_tanh", False, 25600, 100, 256, 200, 512, 2, 1, 4, 0, False, False, 146_900_000, 0),
        ("rnn_relu", False, 160, 32, 5, 10, 16, 3, 1, 4, 0, False, True, 25_256_576, 51_456),
        ("rnn_tanh", True, 800, 4, 200, 1024, 50, 3, 2, 4, 0, False, True, 73_295_936, 1_600_256),
        ("lstm", True, 2560, 128, 20, 768, 8, 1, 1, 4, 0, False, True, 33_360_128, 409_856),
        ("rnn_tanh", True, 400, 20, 20, 1, 32, 1, 2, 2, 0, False, True, 17_287_776, 51_456),
    ],
}
"""Sizes drawn at random, and what the same function answered for the two compute capabilities."""


@pytest.mark.parametrize(("change", "reserve"), SAID)
def test_the_reserve_is_what_the_library_says(change, reserve):
    assert reserve_bytes(replace(CALL, **change)) == reserve


def asked(row: tuple[Any, ...]) -> RecurrentCall:
    """The call of one row."""
    mode, chip, places, batch, length, given, hidden, layers, directions, item_bytes, projected, packed, trains = row
    return RecurrentCall(
        mode=mode, places=places, batch=batch, length=length, input_size=given, hidden_size=hidden, num_layers=layers,
        directions=directions, item_bytes=item_bytes, projected_size=projected, is_packed=packed, is_training=trains,
        is_persistent=chip,
    )  # fmt: skip


def test_workspaces_are_what_the_library_says_nearly_always():
    off = []
    for capability, rows in ASKED.items():
        for *row, workspace, reserve in rows:
            call = asked(tuple(row))
            assert not call.is_training or reserve_bytes(call) == pytest.approx(reserve, rel=0.002)
            off.append(abs(workspace_bytes(call, capability) / workspace - 1))
    assert sorted(off)[int(0.9 * len(off))] < 1e-5
    assert max(off) < 0.12


def test_dropout_between_layers_of_one_direction_keeps_one_more_value_per_place():
    dropped = replace(CALL, has_dropout=True)
    more = workspace_bytes(dropped, (8, 0)) - workspace_bytes(CALL, (8, 0))
    assert more == 4 * CALL.places * CALL.hidden_size
    assert workspace_bytes(replace(dropped, directions=2), (8, 0)) == workspace_bytes(
        replace(CALL, directions=2), (8, 0)
    )


def test_torch_asks_for_weights_on_the_chip_where_the_state_is_small():
    def chosen(is_backward=False, is_fp16=False, capability=(8, 0), num_processors=108, **change):
        return is_persistent(
            replace(CALL, **change), is_backward=is_backward, is_fp16=is_fp16, capability=capability,
            num_processors=num_processors,
        )  # fmt: skip

    assert chosen()
    assert chosen(is_backward=True)
    assert chosen(hidden_size=192)
    assert not chosen(hidden_size=192, is_backward=True)
    assert not chosen(hidden_size=256)
    assert chosen(mode="rnn_tanh", hidden_size=256, is_backward=True)
    assert not chosen(item_bytes=8)
    assert not chosen(item_bytes=2)  # bf16
    assert chosen(item_bytes=2, is_fp16=True)
    assert not chosen(is_packed=True)
    assert not chosen(projected_size=64)
    one_layer = {"num_layers": 1, "hidden_size": 512, "input_size": 256, "item_bytes": 2, "is_fp16": True}
    assert chosen(**one_layer)
    assert not chosen(**one_layer, capability=(8, 6))
    assert not chosen(**one_layer, num_processors=72)
    assert not chosen(**one_layer, mode="gru")


def test_on_other_generations_every_layer_has_a_stream_of_its_own():
    assert workspace_bytes(CALL, (9, 0)) - workspace_bytes(CALL, (8, 6)) == 2 * 8 * 2**20


calls = st.builds(
    RecurrentCall, mode=st.sampled_from(MODES), places=st.integers(1, 5000), batch=st.integers(1, 64),
    length=st.integers(1, 100), is_persistent=st.booleans(), is_training=st.booleans(), input_size=st.integers(1, 2000),
    hidden_size=st.integers(1, 2000), num_layers=st.integers(1, 6), directions=st.sampled_from([1, 2]),
    item_bytes=st.sampled_from([2, 4, 8]), has_dropout=st.booleans(),
)  # fmt: skip


@given(calls, st.sampled_from(["places", "hidden_size", "num_layers", "item_bytes"]))
def test_more_of_anything_never_takes_less(call, name):
    more = replace(call, **{name: 2 * getattr(call, name)})
    assert reserve_bytes(more) >= reserve_bytes(call)
    assert workspace_bytes(more, (9, 0)) >= workspace_bytes(call, (9, 0))
