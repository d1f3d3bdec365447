"""Are the networks of the accuracy benchmark the published ones, and are its figures computed as their names say?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("benchmarks")

from benchmarks.accuracy import torch_xmem_language as language  # noqa: E402
from benchmarks.accuracy import torch_xmem_mobile as mobile  # noqa: E402
from benchmarks.accuracy import torch_xmem_vision as vision  # noqa: E402
from benchmarks.accuracy.comparison import Row, spread_of, verdicts_at  # noqa: E402

PUBLISHED = {
    "vgg16": (lambda: vision.Vgg(vision.VGG_16), 138_357_544),
    "vgg19": (lambda: vision.Vgg(vision.VGG_19), 143_667_240),
    "resnet101": (vision.ResNet, 44_549_160),
    "resnet152": (lambda: vision.ResNet(vision.RESNET_152), 60_192_808),
    "mnasnet1_0": (lambda: vision.MnasNet(1000), 4_383_312),
    "regnet_x_400mf": (lambda: vision.RegNet(vision.REGNET_X_400, 16, False), 5_495_976),
    "regnet_y_400mf": (lambda: vision.RegNet(vision.REGNET_Y_400, 8, True), 4_344_144),
    "mobilenet_v2": (mobile.MobileNetV2, 3_504_872),
    "mobilenet_v3_large": (lambda: mobile.MobileNetV3(mobile.MOBILE_V3_LARGE, 1280, 1000), 5_483_032),
    "mobilenet_v3_small": (lambda: mobile.MobileNetV3(mobile.MOBILE_V3_SMALL, 1024, 1000), 2_542_856),
    "convnext_tiny": (lambda: mobile.ConvNeXt(mobile.CONVNEXT_TINY, 0.1), 28_589_128),
    "convnext_base": (lambda: mobile.ConvNeXt(mobile.CONVNEXT_BASE, 0.5), 88_591_464),
    "gpt-neo-125M": (language.gpt_neo_125m, 125_198_592),
}


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_network_has_as_many_parameters_as_the_published_one(name: str):
    make, number = PUBLISHED[name]
    with torch.device("meta"):
        model = make()
    assert sum(parameter.numel() for parameter in model.parameters()) == number


SIZES = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=1, max_size=30)


@given(SIZES)
def test_a_spread_is_ordered_and_its_95th_percentile_covers_95_percent(pairs: list[tuple[int, int]]):
    rows = [Row("", predicted, real) for predicted, real in pairs]
    spread = spread_of(rows)
    assert spread.median <= spread.p95 <= spread.worst
    assert sum(abs(row.error) <= spread.p95 for row in rows) >= 0.95 * len(rows)
    assert spread.under == sum(predicted < real for predicted, real in pairs) / len(pairs)


@given(SIZES, st.integers(1, 1000))
def test_verdicts_count_what_is_larger_than_the_card(pairs: list[tuple[int, int]], limit: int):
    verdicts = verdicts_at(limit, [(float(a), float(b)) for a, b in pairs])
    assert verdicts.num_right <= min(verdicts.num_said, verdicts.num_real)
    assert (verdicts.precision is None) == (verdicts.num_said == 0)
    assert (verdicts.recall is None) == (verdicts.num_real == 0)
    perfect = verdicts_at(limit, [(float(real), float(real)) for _, real in pairs])
    assert perfect.precision in (None, 1.0)
    assert perfect.recall in (None, 1.0)
