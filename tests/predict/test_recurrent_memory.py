"""Do the formulas for recurrent calls give what cuDNN itself said of them? Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.predict.gpu_rules.recurrent import MODES, RecurrentCall, reserve_bytes, workspace_bytes

CALL = RecurrentCall(mode="lstm", places=400, input_size=64, hidden_size=128, num_layers=2, directions=1, item_bytes=4)

SAID = [
    ({}, 2_253_056, 2_126_144),
    ({"num_layers": 1}, 1_024_256, 9_949_504),
    ({"num_layers": 1, "directions": 2}, 2_048_256, 20_631_872),
    ({"num_layers": 3, "directions": 2}, 6_963_456, 57_528_640),
    ({"mode": "gru"}, 2_662_656, 1_745_216),
    ({"mode": "gru", "num_layers": 3, "directions": 2}, 8_192_256, 56_115_520),
    ({"mode": "rnn_relu", "num_layers": 1}, 205_056, 9_531_712),
    ({"mode": "rnn_relu", "num_layers": 3}, 1_024_256, 1_446_208),
    ({"item_bytes": 2}, 1_126_656, 1_063_232),
    ({"num_layers": 3, "has_dropout": True}, 3_494_656, None),
    ({"directions": 2, "has_dropout": True}, 4_505_856 + 25_600, None),
    ({"projected_size": 64}, 2_867_456, None),
    ({"num_layers": 1, "projected_size": 32}, 1_280_256, None),
    ({"mode": "gru", "places": 21, "hidden_size": 100, "input_size": 37}, 109_472, None),
]
"""What cudnnGetRNNTempSpaceSizes of cuDNN 9.24 answered for compute capability 8.0."""


@pytest.mark.parametrize(("change", "reserve", "workspace"), SAID)
def test_the_reserve_is_what_the_library_says_and_the_workspace_is_near(change, reserve, workspace):
    call = replace(CALL, **change)
    assert reserve_bytes(call) == reserve
    if workspace is not None:
        assert workspace_bytes(call, (8, 0)) == pytest.approx(workspace, rel=0.35)


def test_on_other_generations_every_layer_has_a_stream_of_its_own():
    assert workspace_bytes(CALL, (9, 0)) - workspace_bytes(CALL, (8, 6)) == 18_903_360 - 2_126_144


calls = st.builds(
    RecurrentCall, mode=st.sampled_from(MODES), places=st.integers(1, 5000), input_size=st.integers(1, 2000),
    hidden_size=st.integers(1, 2000), num_layers=st.integers(1, 6), directions=st.sampled_from([1, 2]),
    item_bytes=st.sampled_from([2, 4, 8]), has_dropout=st.booleans(),
)  # fmt: skip


@given(calls, st.sampled_from(["places", "hidden_size", "num_layers", "item_bytes"]))
def test_more_of_anything_never_takes_less(call, name):
    more = replace(call, **{name: 2 * getattr(call, name)})
    assert reserve_bytes(more) >= reserve_bytes(call)
    assert workspace_bytes(more, (9, 0)) >= workspace_bytes(call, (9, 0))
