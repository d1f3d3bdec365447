"""Are devices read as meant, and are predicted GPU levels in order?"""

from __future__ import annotations

import pytest

from memfit.errors import UsageError
from memfit.predict.allocator.settings import AllocatorSettings
from memfit.predict.devices.parse import CUBLAS_WORKSPACE_BYTES, GPUS, context_of, parse_device
from memfit.predict.levels.cpu import process_level
from memfit.predict.levels.gpu import cuda_levels, find_failure, moved_to_cuda, run_allocator
from memfit.predict.levels.liveness import peak_of
from memfit.records.timeline import LiveSpan, PhaseMark, Timeline
from memfit.units import GIB, MIB


def small_timeline(device: str = "cuda:0") -> Timeline:
    sizes = [3 * MIB, 700, 12 * MIB, 30 * MIB]
    shared = {"category": "activation", "phase": "forward", "device": device}
    spans = tuple(
        LiveSpan(start=i, end=None if i < 2 else 6 + i, num_bytes=size, operator=f"op{i}", **shared)  # pyright: ignore[reportArgumentType]
        for i, size in enumerate(sizes)
    )
    return Timeline(spans=spans, num_events=12, phases=(PhaseMark(start=0, step=1, phase="forward"),))


def test_a_named_gpu_has_a_size_and_an_unknown_one_gets_the_list():
    assert parse_device("cuda:a100-40gb").total_bytes == GPUS["a100-40gb"].total_bytes
    assert parse_device("CUDA:RTX3060-12GB").capability == (8, 6)
    with pytest.raises(UsageError, match="no GPU 'a100-41gb'") as raised:
        parse_device("cuda:a100-41gb")
    assert "did you mean cuda:a100-40gb" in str(raised.value)
    assert "rtx4090-24gb" in str(raised.value)


@pytest.mark.parametrize("name", list(GPUS))
def test_the_name_of_a_gpu_is_enough(name: str):
    assert parse_device(name) == parse_device(f"cuda:{name}")
    assert GPUS[name].source, "every size says where it was read"


def test_half_a_name_is_answered_with_the_whole_ones():
    with pytest.raises(UsageError, match="did you mean cuda:a100-40gb or cuda:a100-80gb"):
        parse_device("a100")


def test_a_size_of_ones_own_replaces_the_tables():
    assert parse_device("cuda", "24GiB").total_bytes == 24 * GIB
    assert parse_device("cuda:a100-40gb", "10GiB").total_bytes == 10 * GIB
    with pytest.raises(UsageError, match="no device 'tpu'"):
        parse_device("tpu")


def test_only_hopper_has_the_larger_matrix_workspace():
    assert parse_device("cuda:h100-80gb").cublas_workspace_bytes == 32 * MIB
    assert parse_device("cuda:a100-40gb").cublas_workspace_bytes == CUBLAS_WORKSPACE_BYTES == 8_519_680


def test_levels_grow_from_tensors_to_the_whole_card():
    timeline = small_timeline()
    run = run_allocator(timeline, AllocatorSettings(), smallest=True)
    beside = context_of(parse_device("cuda:l4-24gb"))
    levels = {level.name: level.figure for level in cuda_levels(peak_of(timeline, "cuda:0")[0], run, beside)}
    values = [levels[name].value or 0 for name in ("tensors", "allocated", "reserved", "device")]
    assert values == sorted(values)
    assert levels["context"].source == "assumed"
    assert (levels["smallest"].value or 0) <= (levels["device"].value or 0)


def test_the_first_allocation_that_fails_is_named_as_pytorch_would():
    failed = find_failure(small_timeline(), AllocatorSettings(), parse_device("cuda", "470MiB"))
    assert failed is not None
    assert (failed.operator, failed.step, failed.phase) == ("op3", 1, "forward")
    assert failed.message.startswith(
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 470.00 MiB"
    )
    assert find_failure(small_timeline(), AllocatorSettings(), parse_device("cuda", "1GiB")) is None
    assert find_failure(small_timeline(), AllocatorSettings(), parse_device("cuda")) is None


def test_a_moved_timeline_has_all_tensors_and_two_matrix_workspaces():
    moved = moved_to_cuda(small_timeline("cpu"), CUBLAS_WORKSPACE_BYTES)
    assert peak_of(moved, "cuda:0")[0] == peak_of(small_timeline("cpu"), "cpu")[0] + 2 * CUBLAS_WORKSPACE_BYTES
    assert moved.phases[0].start == 2


def test_a_default_heap_gives_a_range_and_a_pinned_one_a_point():
    loose = process_level(1000 * MIB, 300 * MIB, pinned=False).figure
    tight = process_level(1000 * MIB, 300 * MIB, pinned=True).figure
    assert loose.value is None
    assert loose.low is not None and loose.high is not None and loose.low < loose.high  # noqa: PT018
    assert tight.value is not None and 1300 * MIB < tight.value < 1340 * MIB  # noqa: PT018
    assert process_level(1, None, pinned=True).figure.value is None


@pytest.mark.parametrize("read_mib", [1429, 1460, 2000])
def test_the_context_of_an_a100_covers_what_was_read_on_them(read_mib: int):
    """Readings beside the allocator in public sets of A100 runs."""
    context = context_of(parse_device("cuda:a100-40gb"))
    assert context.low_bytes <= read_mib * MIB <= context.high_bytes


def test_a_gpu_may_be_named_by_its_size():
    assert parse_device("cuda:24GiB") == parse_device("cuda", "24GiB")
    assert parse_device("cuda:24GiB").total_bytes == 24 * 2**30
    assert parse_device("cuda:a100-40gb").name == "a100-40gb"  # a name, though it begins and ends like a size
    assert parse_device("cuda:0").total_bytes is None  # a number is an index
