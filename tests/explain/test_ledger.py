"""Do the lines of a ledger add up to the headline without one below zero, whatever the facts are?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.explain.run.ledger import explain_peak
from memfit.explain.run.ledger_parts import FIRM, SLACK, Claim, bounded, lines_of
from memfit.records.figure import measured
from memfit.records.run import GpuProcess, GpuReading, ProcessRecord, RunRecord, SharedReading, TreeReading
from memfit.records.run_parts.ledger import HeapFacts, ImportCost, Ledger, LedgerFacts, LedgerLine, Moment, TensorShare
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
    untouched_bytes=sizes,
)
heaps = st.none() | st.builds(
    HeapFacts, python_arena_bytes=maybe, python_used_bytes=maybe, malloc_used_bytes=maybe, malloc_free_bytes=maybe
)
moments = st.none() | st.builds(
    Moment, phase=st.just("backward"), tensors=st.lists(shares, max_size=5).map(tuple), anonymous_bytes=sizes,
    file_bytes=sizes, shmem_bytes=sizes, malloc_used_bytes=maybe, malloc_free_bytes=maybe, untouched_heap_bytes=maybe,
)  # fmt: skip
imports = st.builds(
    ImportCost, package=st.sampled_from(["torch", "numpy", "sympy"]), anonymous_bytes=st.integers(-(2**20), 2**30),
    file_bytes=st.integers(-(2**20), 2**30),
)  # fmt: skip
facts_of_a_step = st.builds(
    LedgerFacts, pid=st.sampled_from([100, 101]), step=st.integers(0, 99), time_ns=st.just(0),
    device=st.sampled_from(["cpu", "cuda:0"]),
    tensor_peak_bytes=sizes, peak_phase=st.just("backward"), tensors=st.lists(shares, max_size=5).map(tuple),
    resident_peak_bytes=sizes, startup_anonymous_bytes=sizes, startup_file_bytes=sizes, startup_heap=heaps,
    imports=st.lists(imports, max_size=3).map(tuple), imports_heap=heaps, heap=heaps, moment=moments,
    allocator_reserved_bytes=maybe,
)  # fmt: skip


claims = st.lists(
    st.builds(
        Claim, kind=st.sampled_from(["tensors", "imports"]), name=st.just("x"), num_bytes=st.integers(-(2**30), 2**36),
        method=st.just("read"), softness=st.integers(FIRM, SLACK),
    ),
    max_size=8,
)  # fmt: skip


def process(index: int, peak_bytes: int) -> ProcessRecord:
    peak = measured(peak_bytes, "bytes", "test")
    return ProcessRecord(index=index, pid=100 + index, parent_pid=1, command="python", started_seconds=0.0, peak=peak)


def walk(seconds: float, residents: list[int]) -> TreeReading:
    """A page walk in which every process but the first has a quarter of its pages for itself."""
    parts = tuple(
        SharedReading(
            process=index, resident_bytes=size, proportional_bytes=size // 2, unique_bytes=size // (4 if index else 1),
            share_bytes=size // (2 if index else 1),
        )
        for index, size in enumerate(residents)
    )  # fmt: skip
    return TreeReading(time_seconds=seconds, reason="maximum", cost_seconds=0.0, processes=parts)


def run_of(
    facts: list[LedgerFacts], *, residents: list[list[int]], headline_bytes: int | None = None,
    walks: tuple[TreeReading, ...] = (), gpu_bytes: int | None = None, ledger_every: int | None = 50,
) -> RunRecord:  # fmt: skip
    """As much of a run as the ledger looks at: `residents` are the sizes of every process at one tick after another."""
    rows = [(tick, index, size) for tick, sizes in enumerate(residents) for index, size in enumerate(sizes)]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    sums = np.array([sum(sizes) for sizes in residents], dtype=np.int64)
    processes = tuple(process(i, max(sizes[i] for sizes in residents)) for i in range(len(residents[0])))
    samples = SimpleNamespace(
        time_seconds=table[:, 0].astype(float), process=table[:, 1], resident_bytes=table[:, 2],
        shared_bytes=table[:, 2] // 4,
    )  # fmt: skip
    gpus = (
        GpuReading(
            time_seconds=0, device=0, name="", total_bytes=0, used_bytes=0,
            processes=(GpuProcess(pid=100, num_bytes=gpu_bytes),),
        ),
    )  # fmt: skip
    headline = int(sums.max()) if headline_bytes is None else headline_bytes
    found = SimpleNamespace(
        header=SimpleNamespace(settings=SimpleNamespace(ledger_every=ledger_every)),
        peak=measured(headline, "bytes", "test"), processes=processes, ledger_facts=tuple(facts),
        samples=_Sized(samples, len(rows)), tree_readings=walks, gpus=gpus,
        tree=SimpleNamespace(time_seconds=np.arange(len(sums), dtype=float), tree_bytes=sums),
    )  # fmt: skip
    return cast(RunRecord, found)


class _Sized:
    """Samples with a length."""

    def __init__(self, samples: SimpleNamespace, length: int) -> None:
        self.__dict__.update(vars(samples))
        self._length = length

    def __len__(self) -> int:
        return self._length


# ---- the law -------------------------------------------------------------------------------------------------------


def check(ledger: Ledger) -> None:
    assert sum(line.num_bytes for line in ledger.lines) == ledger.peak_bytes
    assert all(line.num_bytes >= 0 for line in ledger.lines)
    assert ledger.lines[-1].kind == "unexplained"
    assert 0.0 <= ledger.explained_ratio <= 1.0
    for line in ledger.lines:
        if line.measured_bytes is not None:
            assert line.measured_bytes > line.num_bytes
            assert "were measured" in line.method, "a line that gave way says so"


@given(
    st.lists(facts_of_a_step, max_size=4), st.integers(1, 3).flatmap(
        lambda count: st.lists(st.lists(sizes, min_size=count, max_size=count), min_size=1, max_size=3)
    ), st.none() | sizes, st.booleans(), maybe,
)  # fmt: skip
def test_the_lines_of_any_run_add_up_to_its_headline_and_none_is_below_zero(facts, residents, headline, walked, gpu):
    walks = (walk(0.0, residents[0]),) if walked else ()
    run = run_of(facts, residents=residents, headline_bytes=headline, walks=walks, gpu_bytes=gpu)
    ledgers = explain_peak(run)
    assert ledgers[0].peak_bytes == round(run.peak.value or 0)
    assert ledgers[0].device == "host"
    for ledger in ledgers:
        check(ledger)


@given(claims, sizes)
def test_claims_give_way_only_where_there_is_too_little_and_the_softest_first(made, whole_bytes):
    kept = bounded(made, whole_bytes)
    wanted = [claim for claim in made if claim.num_bytes > 0]
    assert sum(claim.num_bytes for claim in kept) == min(whole_bytes, sum(claim.num_bytes for claim in wanted))
    if sum(claim.num_bytes for claim in wanted) <= whole_bytes:
        assert kept == wanted
    firm_bytes = sum(claim.num_bytes for claim in wanted if claim.softness == FIRM)
    assert sum(c.num_bytes for c in kept if c.softness == FIRM) == min(firm_bytes, whole_bytes)
    lines = lines_of(made, whole_bytes)
    assert sum(line.num_bytes for line in lines) == whole_bytes


def test_a_ledger_that_does_not_add_up_cannot_be_made():
    def ledger(*sizes_of_lines: int) -> Ledger:
        lines = tuple(LedgerLine(kind="imports", name="x", num_bytes=size) for size in sizes_of_lines)
        return Ledger(process=0, device="host", peak_bytes=10, step=2, phase="", lines=lines, tensors=())

    assert ledger(4, 6).explained_ratio == 1.0
    for wrong in ((4, 7), (12, -2), ()):
        with pytest.raises(ValueError, match="do not make a peak"):
            ledger(*wrong)


# ---- examples ------------------------------------------------------------------------------------------------------


def small_facts(**more) -> LedgerFacts:
    share = TensorShare(category="parameter", module="0", phase="setup", num_bytes=10 * MIB, num_tensors=2)
    moment = Moment(
        phase="update", tensors=(share,), anonymous_bytes=80 * MIB, file_bytes=20 * MIB, shmem_bytes=0,
        malloc_used_bytes=40 * MIB, malloc_free_bytes=7 * MIB,
    )  # fmt: skip
    basis = LedgerFacts(
        pid=100, step=2, time_ns=0, device="cpu", tensor_peak_bytes=10 * MIB, peak_phase="update", tensors=(share,),
        resident_peak_bytes=100 * MIB, startup_anonymous_bytes=5 * MIB, startup_file_bytes=6 * MIB,
        startup_heap=HeapFacts(python_arena_bytes=2 * MIB, malloc_used_bytes=1 * MIB, malloc_free_bytes=0),
        imports=(ImportCost(package="torch", anonymous_bytes=50 * MIB, file_bytes=12 * MIB),),
        imports_heap=HeapFacts(python_arena_bytes=15 * MIB, malloc_used_bytes=25 * MIB, malloc_free_bytes=4 * MIB),
        heap=HeapFacts(python_arena_bytes=20 * MIB), moment=moment,
    )  # fmt: skip
    return msgspec.structs.replace(basis, **more)


def test_every_part_of_a_small_example_stands_on_its_line():
    (ledger,) = explain_peak(run_of([small_facts()], residents=[[100 * MIB]]))
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
    (ledger,) = explain_peak(run_of([small_facts()], residents=[[130 * MIB]]))
    outside, rest = [line for line in ledger.lines if line.kind == "unexplained"]
    assert outside.name == "the peak of the run lay outside of the steps that were traced"
    assert "step 2" in ledger.note
    assert (outside.num_bytes, rest.num_bytes) == (30 * MIB, 5 * MIB)
    assert "30.0 MiB" in ledger.note


def test_a_peak_inside_of_an_operator_is_no_part_of_what_was_seen_between_operators():
    (ledger,) = explain_peak(run_of([small_facts(resident_peak_bytes=112 * MIB)], residents=[[112 * MIB]]))
    inside, rest = [line for line in ledger.lines if line.kind == "unexplained"]
    assert "inside an operator" in inside.name
    assert (inside.num_bytes, rest.num_bytes) == (12 * MIB, 5 * MIB)


def test_two_counters_that_differ_by_their_noise_are_one_peak():
    (ledger,) = explain_peak(run_of([small_facts()], residents=[[100 * MIB + 100 * 1024]]))
    assert [line.name for line in ledger.lines if line.kind == "unexplained"] == ["rest"]
    assert ledger.peak_bytes == 100 * MIB + 100 * 1024


def test_free_heap_that_is_not_in_memory_is_no_slack_but_told_apart():
    moment = msgspec.structs.replace(cast(Moment, small_facts().moment), untouched_heap_bytes=6 * MIB)
    (ledger,) = explain_peak(run_of([small_facts(moment=moment)], residents=[[100 * MIB]]))
    assert [line.num_bytes // MIB for line in ledger.lines if line.kind == "allocator slack"] == [1]
    assert ledger.untouched_bytes == 6 * MIB


def test_virtual_bytes_beyond_what_is_resident_are_taken_off_the_slack_and_the_line_says_so():
    moment = msgspec.structs.replace(cast(Moment, small_facts().moment), malloc_free_bytes=60 * MIB)
    (ledger,) = explain_peak(run_of([small_facts(moment=moment)], residents=[[100 * MIB]]))
    (slack,) = [line for line in ledger.lines if line.kind == "allocator slack"]
    assert (slack.num_bytes, slack.measured_bytes) == (12 * MIB, 60 * MIB)
    assert "60.0 MiB were measured" in slack.method
    assert ledger.unexplained_bytes == 0


def test_a_tensor_that_was_never_written_counts_with_the_pages_it_has():
    share = TensorShare(
        category="parameter", module="0", phase="setup", num_bytes=10 * MIB, num_tensors=2, untouched_bytes=8 * MIB
    )
    moment = msgspec.structs.replace(cast(Moment, small_facts().moment), tensors=(share,))
    (ledger,) = explain_peak(run_of([small_facts(moment=moment)], residents=[[100 * MIB]]))
    (line,) = [line for line in ledger.lines if line.kind == "tensors"]
    assert (line.num_bytes, line.measured_bytes) == (2 * MIB, 10 * MIB)


def test_memory_given_back_after_an_import_is_taken_off_the_imports():
    moment = msgspec.structs.replace(cast(Moment, small_facts().moment), malloc_used_bytes=30 * MIB)
    (ledger,) = explain_peak(run_of([small_facts(moment=moment)], residents=[[100 * MIB]]))
    (torch,) = [line for line in ledger.lines if line.kind == "imports"]
    assert torch.num_bytes == 40 * MIB
    assert "given back" in torch.method


# ---- trees and processes without torch -----------------------------------------------------------------------------


def test_workers_have_what_they_add_at_the_peak_not_at_their_last_reading():
    """At tick 1 the tree is largest; the last walk saw smaller workers, and one that came later."""
    run = run_of(
        [small_facts()], residents=[[90 * MIB, 10 * MIB, 10 * MIB], [100 * MIB, 60 * MIB, 20 * MIB], [80 * MIB, 1, 1]],
        headline_bytes=150 * MIB, walks=(walk(1.0, [100 * MIB, 60 * MIB, 20 * MIB]), walk(2.0, [80 * MIB, 1, 1])),
    )  # fmt: skip
    (ledger,) = explain_peak(run)
    workers = {line.name: line.num_bytes / MIB for line in ledger.lines if line.kind == "worker"}
    assert workers == {"process 101": 37.5, "process 102": 12.5}
    assert ledger.peak_bytes == 150 * MIB


def test_a_process_that_is_smaller_at_the_trees_peak_says_how_much():
    (ledger,) = explain_peak(run_of([small_facts()], residents=[[90 * MIB, 60 * MIB]]))
    assert "10.0 MiB smaller" in ledger.note
    (slack,) = [line for line in ledger.lines if line.kind == "allocator slack"]
    assert slack.num_bytes == 2 * MIB
    assert slack.measured_bytes == 7 * MIB


def test_a_process_without_a_traced_step_is_told_apart_by_imports_and_the_kernels_counters():
    facts = small_facts(step=0, resident_peak_bytes=0, tensors=(), moment=None)
    (ledger,) = explain_peak(run_of([facts], residents=[[100 * MIB]]))
    found = {line.kind: line.num_bytes // MIB for line in ledger.lines if line.kind != "library files"}
    assert found == {"interpreter": 5, "imports": 46, "python heap": 3, "program data": 21, "unexplained": 0}
    assert ledger.step is None
    assert "No training step was traced" in ledger.note


def test_what_came_and_went_between_two_looks_of_the_sampler_has_a_line():
    facts = small_facts(step=0, resident_peak_bytes=0, tensors=(), moment=None)
    (ledger,) = explain_peak(run_of([facts], residents=[[100 * MIB]], headline_bytes=120 * MIB))
    data = [(line.name, line.num_bytes // MIB) for line in ledger.lines if line.kind == "program data"]
    assert data[1:] == [("made and given back between two looks", 20)]
    assert ledger.explained_ratio == 1.0


def test_above_a_largest_sample_of_imports_alone_nothing_is_known_of_what_came_and_went():
    facts = small_facts(step=0, resident_peak_bytes=0, tensors=(), moment=None)
    (ledger,) = explain_peak(run_of([facts], residents=[[60 * MIB]], headline_bytes=80 * MIB))
    assert [line.num_bytes // MIB for line in ledger.lines if line.kind == "unexplained"] == [20]


def test_a_program_that_is_no_python_has_a_ledger_of_three_lines():
    (ledger,) = explain_peak(run_of([], residents=[[100 * MIB]]))
    assert {line.kind: line.num_bytes // MIB for line in ledger.lines} == {
        "library files": 25, "program data": 75, "unexplained": 0,
    }  # fmt: skip


def test_of_several_traced_steps_the_largest_process_is_explained():
    later = small_facts(step=50, resident_peak_bytes=120 * MIB)
    (ledger,) = explain_peak(run_of([small_facts(), later, small_facts(step=99)], residents=[[120 * MIB]]))
    assert ledger.step == 50


def test_a_device_is_explained_by_tensors_slack_and_context():
    share = TensorShare(category="activation", module="0", phase="forward", num_bytes=10 * MIB, num_tensors=1)
    facts = small_facts(device="cuda:0", tensors=(share,), moment=None, allocator_reserved_bytes=16 * MIB)
    _, ledger = explain_peak(run_of([facts], residents=[[100 * MIB]], gpu_bytes=300 * MIB))
    assert [(line.kind, line.num_bytes // MIB) for line in ledger.lines] == [
        ("tensors", 10), ("allocator slack", 6), ("device context", 284), ("unexplained", 0),
    ]  # fmt: skip
    assert ledger.device == "cuda:0"


def test_a_run_that_was_measured_without_has_no_ledger():
    assert explain_peak(run_of([], residents=[[100 * MIB]], ledger_every=None)) == ()
