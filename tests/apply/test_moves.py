"""Does what is moved to a disk come back bit by bit and in time, and what happens when the disk fails?"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_fit_models import job_for, normed_stack

from memfit.apply.apply import apply_to
from memfit.apply.disk_store import DiskStore
from memfit.apply.moves import Handle, Packet
from memfit.errors import StorageError, UsageError
from memfit.fit.proof import base_bytes_of, prove
from memfit.model.step import RandomState
from memfit.plan.case import Case, PlanProposal, judge, with_moves
from memfit.plan.planners import PLANNERS, plan_from_outcome
from memfit.profile.profile import profile_job
from memfit.profile.reference_step import differences, reference_of, run_once
from memfit.records.plan import Chain, Checkpoint, Keep, Link, Node, Plan

DISK = Link(name="disk", out_bytes_per_second=1e8, in_bytes_per_second=1e8)
ROWS, BLOCKS = 512, 4


@pytest.fixture(scope="module")
def chain() -> Chain:
    torch.set_num_threads(1)
    return profile_job(job_for(normed_stack(BLOCKS), rows=ROWS), timed_runs=1).chain


def plan_with(chain: Chain, nodes: tuple[Node, ...], budget_bytes: int | None = None) -> Plan:
    """A plan with these moves, as tight as it may be."""
    for budget in [budget_bytes] if budget_bytes else range(*_range(chain)):
        case = Case(chain, budget, DISK)
        outcome = judge(case, PlanProposal(nodes))
        if outcome is not None:
            return plan_from_outcome(case, PLANNERS["combined"], outcome)
    raise AssertionError("no budget is large enough")


def _range(chain: Chain) -> tuple[int, int, int]:
    total = sum(stage.saved_bytes + stage.gradient_bytes for stage in chain.stages) + chain.fixed.total_bytes
    return total // 4, 4 * total, total // 16


def some_nodes(chain: Chain, checkpointed: tuple[bool, ...], moved: set[int]) -> tuple[Node, ...]:
    nodes: tuple[Node, ...] = tuple(
        Checkpoint(inside=(Keep(stage=i),)) if flag and stage.recomputable else Keep(stage=i)
        for i, (stage, flag) in enumerate(zip(chain.stages, checkpointed, strict=False))
    )
    return with_moves(nodes, moved & set(range(len(nodes) - 1)))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_choice_of_moves_is_bit_equal(chain: Chain, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    count = len(chain.stages)
    flags = data.draw(st.tuples(*[st.booleans()] * count))
    nodes = some_nodes(chain, flags, data.draw(st.sets(st.integers(0, count - 2))))
    job, state = job_for(normed_stack(BLOCKS), rows=ROWS), RandomState.now()
    plain = run_once(job, state)
    plan = plan_with(chain, nodes)
    with apply_to(job.model, plan, str(tmp_path_factory.mktemp("disk"))):
        for _ in range(2):  # the second step reuses the places of the first
            assert differences(plain, run_once(job, state)) == {}


def test_moving_everything_takes_fewer_bytes_than_keeping_it(chain: Chain, tmp_path: Path):
    job, state = job_for(normed_stack(BLOCKS), rows=ROWS), RandomState.now()
    reference, base = reference_of(job, state), base_bytes_of(job, 0)
    plain = prove(job, reference, state, base, 0).measured_peak_bytes
    plan = plan_with(chain, some_nodes(chain, (False,) * len(chain.stages), set(range(BLOCKS))))
    with apply_to(job.model, plan, str(tmp_path)):
        moved = prove(job, reference, state, base, plan.peak_bytes)
    assert moved.bit_equal
    assert plain is not None
    assert moved.measured_peak_bytes is not None
    assert moved.measured_peak_bytes < 0.8 * plain
    assert moved.measured_peak_bytes <= plan.peak_bytes


def moving_plan(chain: Chain) -> Plan:
    return plan_with(chain, some_nodes(chain, (False,) * len(chain.stages), set(range(BLOCKS))))


def failing(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("call", "words"), [("pwrite", "did not take"), ("preadv", "did not give back")])
def test_a_disk_that_fails_in_the_middle_of_a_step_is_said_and_changes_no_parameter(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, words: str
):
    job = job_for(normed_stack(BLOCKS), rows=ROWS)
    before = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    with apply_to(job.model, moving_plan(chain), str(tmp_path)):
        with monkeypatch.context() as patched:
            patched.setattr(f"memfit.apply.disk_store.os.{call}", failing)
            with pytest.raises(StorageError, match=words) as failure:
                run_once(job, RandomState.now())
        assert "No space left" in failure.value.found
        assert "repeat the step" in failure.value.hint
        state = RandomState.now()
        again = run_once(job, state)
    assert all(torch.equal(before[name], p) for name, p in job.model.named_parameters())
    assert differences(again, run_once(job, state)) == {}


def test_a_folder_that_is_missing_or_too_small_is_refused_before_the_step(chain: Chain, tmp_path: Path):
    model, plan = normed_stack(BLOCKS), moving_plan(chain)
    with pytest.raises(StorageError, match="cannot hold"):
        apply_to(model, plan, str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="no folder"):
        apply_to(model, plan)
    assert not any("forward" in m.__dict__ or m._forward_hooks for m in model.modules())


def test_a_disk_without_room_is_refused(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr("memfit.apply.disk_store.os.fstatvfs", lambda _: full)
    with pytest.raises(StorageError, match="too small"):
        apply_to(normed_stack(BLOCKS), moving_plan(chain), str(tmp_path))


def test_nothing_is_left_in_the_folder_nor_on_the_model(chain: Chain, tmp_path: Path):
    job = job_for(normed_stack(BLOCKS), rows=ROWS)
    with apply_to(job.model, moving_plan(chain), str(tmp_path)):
        job.run()
        assert list(tmp_path.iterdir()) == []
    assert not any("forward" in m.__dict__ or m._forward_hooks or m._forward_pre_hooks for m in job.model.modules())


@pytest.mark.parametrize("has_left", [False, True])
def test_what_a_backward_has_written_into_is_not_handed_out_again(tmp_path: Path, has_left: bool):
    store = DiskStore(str(tmp_path), 1 << 20)
    saved = torch.randn(4096)
    packet = Packet(store, saved.detach())
    handles = [Handle(packet, saved.dtype, 0, saved.size(), saved.stride()) for _ in range(2)]
    if has_left:
        packet.release()
    try:
        found = handles[0].tensor()
        assert torch.equal(found, saved)
        assert torch.equal(handles[1].tensor(), saved)
        found[1] = 7.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            handles[1].tensor()
        packet.release()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            handles[1].tensor()
    finally:
        store.wait_sent(packet.ticket)
        store.close()


def test_what_is_written_into_before_it_has_left_is_not_handed_out(tmp_path: Path):
    store = DiskStore(str(tmp_path), 1 << 20)
    saved = torch.randn(4096)
    packet = Packet(store, saved.detach())
    saved[1] = 7.0
    try:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            Handle(packet, saved.dtype, 0, saved.size(), saved.stride()).tensor()
    finally:
        store.wait_sent(packet.ticket)
        store.close()
