"""What kernels of a GPU allocate inside: rules against sizes that torch asked for on the phantom GPU, and laws.

`phantom_scratch.json` is written by `python -m benchmarks.accuracy.phantom_scratch` (torch 2.14.1).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.predict.devices.catalogue import properties_of
from memfit.predict.devices.parse import parse_device
from memfit.predict.gpu_rules.attention import (
    Attention,
    efficient_backward_workspace,
    efficient_forward_scratch,
    flash_backward_scratch,
    flash_forward_scratch,
    flash_parts,
)
from memfit.predict.gpu_rules.reduction import Processors, reduction_scratch

RECORDS: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("phantom_scratch.json").read_text(encoding="utf-8")
)
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LENGTHS = st.integers(1, 5000)


def processors_of(gpu: str) -> Processors:
    properties = properties_of(parse_device(gpu))
    return Processors(count=properties.num_processors, threads=properties.threads_per_processor)


def plain_strides(shape: list[int]) -> list[int]:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return strides


def scratch_of(shape: list[int], reduced: list[int], processors: Processors | None = None) -> list[tuple[int, int]]:
    return reduction_scratch(
        shape, plain_strides(shape), reduced, item_bytes=4, partial_bytes=4, processors=processors or Processors()
    )


@pytest.mark.parametrize("gpu", RECORDS)
def test_sums_take_the_bytes_that_torch_takes(gpu: str) -> None:
    cases = [case for case in RECORDS[gpu] if "reduced" in case]
    assert sum(len(case["requests"][0]) > 2 for case in cases) >= 10
    for case in cases:
        strides = plain_strides(case["shape"])
        item_bytes = ITEM_BYTES[case["dtype"]]
        found = reduction_scratch(
            [case["shape"][dim] for dim in case["order"]], [strides[dim] for dim in case["order"]], case["reduced"],
            item_bytes=item_bytes, partial_bytes=max(4, item_bytes), processors=processors_of(gpu),
        )  # fmt: skip
        taken = [size for size in case["requests"][0][1:] if size > 0]
        assert [size for pair in found for size in pair] == taken, case


@pytest.mark.parametrize("gpu", RECORDS)
def test_attention_takes_the_bytes_that_torch_takes(gpu: str) -> None:
    capability, processors = parse_device(gpu).capability, processors_of(gpu)
    cases = [case for case in RECORDS[gpu] if "kernel" in case]
    assert len(cases) > 50
    for case in cases:
        forward, backward = ([size for size in part if size > 0] for part in case["requests"])
        call = Attention(
            **{name: case[name] for name in ("batch", "heads", "key_heads", "queries", "keys", "head_size")},
            is_half=case["dtype"] == "float16", dropout=case["dropout"] > 0,
        )  # fmt: skip
        if case["kernel"] == "flash":
            assert forward[2:-2] == flash_forward_scratch(call, processors.count), case
            assert backward[3:] == flash_backward_scratch(call), case
        else:
            assert (forward[-1] if len(forward) in (3, 5) else 0) == efficient_forward_scratch(call), case
            assert backward[-1] == efficient_backward_workspace(call, capability), case


@given(LENGTHS, LENGTHS)
def test_a_sum_of_everything_does_not_depend_on_how_it_is_folded(rows: int, columns: int) -> None:
    assert scratch_of([rows, columns], [0, 1]) == scratch_of([rows * columns], [0])


@given(LENGTHS, LENGTHS, st.sampled_from([[0], [1], [0, 1]]))
def test_dimensions_of_length_one_change_nothing(rows: int, columns: int, reduced: list[int]) -> None:
    shifted = [dim + 1 for dim in reduced]
    assert scratch_of([1, rows, columns, 1], shifted) == scratch_of([rows, columns], reduced)


@given(LENGTHS, st.integers(1, 200))
def test_short_sums_need_nothing(rows: int, columns: int) -> None:
    assert scratch_of([rows, columns], [1]) == []


def test_an_input_beyond_two_gibibytes_is_added_up_in_parts() -> None:
    assert len(scratch_of([2**30], [0])) == 2


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 8192), st.sampled_from([32, 64, 128, 256]))
def test_flash_attention_divides_keys_only_when_the_gpu_would_idle(
    batch: int, heads: int, length: int, head_size: int
) -> None:
    call = Attention(
        batch=batch, heads=heads, key_heads=heads, queries=length, keys=length, head_size=head_size, is_half=True
    )
    parts = flash_parts(call, 108)
    assert 1 <= parts <= 128
    if batch * heads * -(-length // 64) >= 0.8 * 216:
        assert parts == 1
