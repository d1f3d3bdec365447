"""Do the lines of a ledger add up to what the operating system said, whatever the facts are?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from memfit.explain.ledger import explain_peak
from memfit.records.figure import measured
from memfit.records.ledger import HeapFacts, ImportCost, LedgerFacts, Moment, TensorShare
from memfit.records.run import (
    GpuProcess,
    GpuReading,
    MapsReading,
    ProcessRecord,
    RunRecord,
    SharedReading,
    TreeReading,
)  # fmt: skip
from memfit.records.timeline import CATEGORIES

MIB = 1024**2
sizes = st.integers(0, 2**36)
maybe = st.none() | sizes
shares = st.builds(
    TensorShare,
    category=st.sampled_from(CATEGORIES),
    module=st.sampled_from(["", "0", "blocks.1.attention"]),
    phase=st.sampled_from(["setup", "forward", "backward"]),
    num_bytes=sizes,
    num_tensors=st.integers(1, 9),
    backing=st.sampled_from(["", "shared", "file"]),
)
heaps = st.none() | st.builds(
    HeapFacts, python_arena_bytes=maybe, python_used_bytes=maybe, malloc_used_bytes=maybe, malloc_free_bytes=maybe
)
moments = st.none() | st.builds(
    Moment, phase=st.just("backward"), tensors=st.lists(shares, max_size=5).map(tuple), anonymous_bytes=sizes,
    file_bytes=sizes, shmem_bytes=sizes, malloc_used_bytes=maybe, malloc_free_bytes=maybe,
)  # fmt: skip
imports = st.builds(
    ImportCost, package=st.sampled_from(["torch", "numpy", "sympy"]), anonymous_bytes=st.integers(-(2**20), 2**30),
    file_bytes=st.integers(-(2**20), 2**30),
)  # fmt: skip
facts_of_a_step = st.builds(
    LedgerFacts, pid=st.just(7), step=st.integers(1, 99), time_ns=st.just(0), device=st.sampled_from(["cpu", "cuda:0"]),
    tensor_peak_bytes=sizes, peak_phase=st.just("backward"), tensors=st.lists(shares, max_size=5).map(tuple),
    resident_peak_bytes=sizes, startup_anonymous_bytes=sizes, startup_file_bytes=sizes, startup_heap=heaps,
    imports=st.lists(imports, max_size=3).map(tuple), imports_heap=heaps, heap=heaps, moment=moments,
    allocator_reserved_bytes=maybe,
)  # fmt: skip


def process(index: int, pid: int, peak_bytes: int) -> ProcessRecord:
    return ProcessRecord(
        index=index, pid=pid, parent_pid=1, command="python", started_seconds=0.0,
        peak=measured(peak_bytes, "bytes", "test"),
    )  # fmt: skip


def run_of(
    facts: list[LedgerFacts], *, peak_bytes: int, workers: dict[int, int] | None = None, gpu_bytes: int | None = None,
    maps: tuple[MapsReading, ...] = (),
) -> RunRecord:  # fmt: skip
    """As much of a run as the ledger looks at."""
    workers = workers or {}
    others = [process(index, 100 + index, size) for index, size in workers.items()]
    parts = tuple(
        SharedReading(
            process=index, resident_bytes=size, proportional_bytes=size // 2, unique_bytes=0, share_bytes=size // 2
        )
        for index, size in workers.items()
    )
    readings = (TreeReading(time_seconds=1.0, reason="maximum", cost_seconds=0.0, processes=parts),) if parts else ()
    gpus = (
        GpuReading(
            time_seconds=0, device=0, name="", total_bytes=0, used_bytes=0,
            processes=(GpuProcess(pid=7, num_bytes=gpu_bytes),),
        ),
    )  # fmt: skip
    found = SimpleNamespace(
        processes=(process(0, 7, peak_bytes), *others), ledger_facts=tuple(facts), maps=maps, tree_readings=readings,
        gpus=gpus,
    )  # fmt: skip
    return cast(RunRecord, found)


@given(st.lists(facts_of_a_step, min_size=1, max_size=4), sizes, st.dictionaries(st.integers(1, 3), sizes), maybe)
def test_the_lines_add_up_and_the_last_one_is_what_is_left(facts, peak_bytes, workers, gpu_bytes):
    for ledger in explain_peak(run_of(facts, peak_bytes=peak_bytes, workers=workers, gpu_bytes=gpu_bytes)):
        assert sum(line.num_bytes for line in ledger.lines) == ledger.peak_bytes
        assert ledger.lines[-1].kind == "unexplained"
        named = [line for line in ledger.lines if line.kind != "unexplained"]
        assert all(line.num_bytes >= 0 for line in named), "only the rest may be below zero"
        in_lines = sum(line.num_bytes for line in ledger.lines if line.kind == "tensors")
        assert in_lines == sum(share.num_bytes for share in ledger.tensors)


def small_facts(**more) -> LedgerFacts:
    share = TensorShare(category="parameter", module="0", phase="setup", num_bytes=10 * MIB, num_tensors=2)
    moment = Moment(
        phase="update", tensors=(share,), anonymous_bytes=80 * MIB, file_bytes=20 * MIB, shmem_bytes=0,
        malloc_used_bytes=40 * MIB, malloc_free_bytes=7 * MIB,
    )  # fmt: skip
    basis = LedgerFacts(
        pid=7, step=2, time_ns=0, device="cpu", tensor_peak_bytes=10 * MIB, peak_phase="update", tensors=(share,),
        resident_peak_bytes=100 * MIB, startup_anonymous_bytes=5 * MIB, startup_file_bytes=6 * MIB,
        startup_heap=HeapFacts(python_arena_bytes=2 * MIB, malloc_used_bytes=1 * MIB, malloc_free_bytes=0),
        imports=(ImportCost(package="torch", anonymous_bytes=50 * MIB, file_bytes=12 * MIB),),
        imports_heap=HeapFacts(python_arena_bytes=15 * MIB, malloc_used_bytes=25 * MIB, malloc_free_bytes=4 * MIB),
        heap=HeapFacts(python_arena_bytes=20 * MIB), moment=moment,
    )  # fmt: skip
    return msgspec.structs.replace(basis, **more)


def test_every_part_of_a_small_example_stands_on_its_line():
    (ledger,) = explain_peak(run_of([small_facts()], peak_bytes=100 * MIB))
    found = {(line.kind, line.name): line.num_bytes // MIB for line in ledger.lines}
    assert found == {
        ("library files", "torch"): 12,
        ("library files", "interpreter"): 6,
        ("library files", "used later, small packages"): 2,
        ("interpreter", "Python"): 5,
        ("imports", "torch"): 46,
        ("python heap", "grown after imports"): 3,
        ("native heap", "libraries, after their import"): 4,
        ("allocator slack", "kept free by malloc"): 7,
        ("tensors", "parameter"): 10,
        ("unexplained", "rest"): 5,
    }
    assert ledger.explained_ratio == 0.95


def test_a_peak_outside_of_the_traced_step_is_said_to_be_so():
    (ledger,) = explain_peak(run_of([small_facts()], peak_bytes=130 * MIB))
    outside, rest = [line for line in ledger.lines if line.kind == "unexplained"]
    assert "outside of step 2" in outside.name
    assert (outside.num_bytes, rest.num_bytes) == (30 * MIB, 5 * MIB)


def test_two_counters_that_differ_by_their_noise_are_one_peak():
    (ledger,) = explain_peak(run_of([small_facts()], peak_bytes=100 * MIB + 100 * 1024))
    assert [line.name for line in ledger.lines if line.kind == "unexplained"] == ["rest"]
    assert ledger.peak_bytes == 100 * MIB + 100 * 1024


def test_each_worker_has_a_line_with_its_share_of_what_it_shares():
    (ledger,) = explain_peak(run_of([small_facts()], peak_bytes=100 * MIB, workers={1: 60 * MIB, 2: 40 * MIB}))
    workers = {line.name: line.num_bytes // MIB for line in ledger.lines if line.kind == "worker"}
    assert workers == {"process 101": 30, "process 102": 20}
    assert ledger.peak_bytes == 150 * MIB


def test_of_several_traced_steps_the_largest_process_is_explained():
    later = small_facts(step=50, resident_peak_bytes=120 * MIB)
    (ledger,) = explain_peak(run_of([small_facts(), later, small_facts(step=100)], peak_bytes=120 * MIB))
    assert ledger.step == 50


def test_without_a_look_from_inside_the_samplers_map_gives_the_file_pages():
    maps = MapsReading(
        time_seconds=1.0, process=0, library_file_bytes=20 * MIB, library_data_bytes=0, heap_bytes=0, anonymous_bytes=0,
        stack_bytes=0, shmem_bytes=3 * MIB,
    )  # fmt: skip
    (ledger,) = explain_peak(run_of([small_facts(moment=None)], peak_bytes=100 * MIB, maps=(maps,)))
    kinds = {line.kind for line in ledger.lines}
    assert {"library files", "shared memory"} <= kinds


def test_a_device_is_explained_by_tensors_slack_and_context():
    share = TensorShare(category="activation", module="0", phase="forward", num_bytes=10 * MIB, num_tensors=1)
    facts = small_facts(device="cuda:0", tensors=(share,), moment=None, allocator_reserved_bytes=16 * MIB)
    (ledger,) = explain_peak(run_of([facts], peak_bytes=100 * MIB, gpu_bytes=300 * MIB))
    assert [(line.kind, line.num_bytes // MIB) for line in ledger.lines] == [
        ("tensors", 10), ("allocator slack", 6), ("device context", 284), ("unexplained", 0),
    ]  # fmt: skip
    assert ledger.device == "cuda:0"


def test_a_run_without_a_traced_step_has_no_ledger():
    assert explain_peak(run_of([], peak_bytes=100 * MIB)) == ()
