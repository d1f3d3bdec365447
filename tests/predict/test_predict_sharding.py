"""Does one of N ranks hold what the arithmetic of sharding says?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.job.sharding import Sharding, check_sharding
from memfit.predict.levels.liveness import peak_of
from memfit.records.timeline import LiveSpan, Timeline
from memfit.testing.oracles.sharding_arithmetic import shard

WAYS: tuple[Sharding, ...] = ("ddp", "zero1", "zero2", "zero3", "fsdp")


def timeline(block_bytes: int = 4096, num_blocks: int = 4) -> Timeline:
    """Blocks with a parameter, an activation, a gradient and two states each, one step."""
    spans, now = [], 0

    def add(category: str, phase: str, name: str) -> None:
        nonlocal now
        spans.append(
            LiveSpan(start=now, end=None, num_bytes=block_bytes, category=category, phase=phase, module=name)  # pyright: ignore[reportArgumentType]
        )
        now += 1

    names = [f"layers.{number}" for number in range(num_blocks)]
    for name in names:
        add("parameter", "setup", name)
    for name in names:
        add("activation", "forward", name)
    for name in reversed(names):
        add("gradient", "backward", name)
    for name in names:
        add("optimizer state", "update", name)
        add("optimizer state", "update", name)
    return Timeline(spans=tuple(spans), num_events=now + 1)


def held(record: Timeline, category: str) -> int:
    return sum(span.num_bytes for span in record.spans if span.category == category and span.end is None)


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_is_the_unsharded_training(way: Sharding):
    assert shard(timeline(), 1, way) == timeline()


@given(st.integers(2, 64))
def test_parameters_gradients_and_state_fall_like_one_over_n(num_ranks: int):
    whole, part = timeline(), shard(timeline(), num_ranks, "fsdp")
    for category in ("parameter", "gradient", "optimizer state"):
        assert held(part, category) == pytest.approx(held(whole, category) / num_ranks, abs=16)


@given(st.integers(2, 16))
def test_each_stage_of_zero_divides_more_than_the_one_before(num_ranks: int):
    states = [
        tuple(held(shard(timeline(), num_ranks, way), c) for c in ("optimizer state", "gradient", "parameter"))
        for way in ("zero1", "zero2", "zero3")
    ]
    assert states[0][0] == states[1][0] == states[2][0]
    assert states[0][1] > states[1][1] == states[2][1]
    assert states[0][2] == states[1][2] > states[2][2]


def test_ddp_holds_every_gradient_twice():
    assert held(shard(timeline(), 2, "ddp"), "gradient") == 2 * held(timeline(), "gradient")


def test_sharding_never_raises_the_peak_when_the_state_is_there():
    whole = peak_of(timeline(), "cpu")[0]
    assert all(peak_of(shard(timeline(), 4, way), "cpu")[0] < whole for way in ("zero1", "zero2", "zero3"))


def test_a_wrong_sharding_or_number_of_ranks_is_refused():
    with pytest.raises(UsageError, match="no sharding"):
        check_sharding(2, "zeroo")
    with pytest.raises(UsageError, match="at least one"):
        check_sharding(0, "ddp")
