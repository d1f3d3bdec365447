"""Does the ledger name every byte of tensors a step takes, as the allocator counts them, and how much does it write?"""

from __future__ import annotations

import ctypes
import gc
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_jobs import Transformer, allocator_peak_bytes, mlp, train_branching, train_mlp, train_tied, train_transformer

from memfit import inside
from memfit.inside.ledger import ledger as ledger_file
from memfit.inside.ledger.torch_tensor_peak import TensorPeak, TensorWatch
from memfit.inside.ledger.torch_trace import StepTrace
from memfit.inside.marks import Marks
from memfit.records.run_parts.ledger import LedgerFacts

JOBS: dict[str, Callable[[], None]] = {
    "mlp": train_mlp,
    "mlp sgd": partial(train_mlp, optimizer="SGD"),
    "mlp foreach": partial(train_mlp, batch=64, foreach=True),
    "mlp update peak": partial(train_mlp, batch=8),
    "mlp accumulating": partial(train_mlp, accumulate=3),
    "tied weights": train_tied,
    "branches": train_branching,
    "transformer": train_transformer,
    "transformer accumulating": partial(train_transformer, accumulate=2, optimizer="SGD"),
}


def watched(job: Callable[[], None]) -> TensorPeak:
    with TensorWatch() as watch:
        job()
    return watch.peak()


@pytest.mark.parametrize("name", JOBS)
def test_the_tensor_peak_is_the_allocators_to_the_byte(name: str):
    """But for the scalars that operators of an update wrap in tensors inside of themselves, four bytes each."""
    JOBS[name]()
    missing_bytes = allocator_peak_bytes(JOBS[name]) - watched(JOBS[name]).peak_bytes
    assert missing_bytes in ((0, 4, 8, 12, 16) if "update" in name or "foreach" in name else (0,))


def test_a_checkpointed_model_differs_by_its_random_states_alone():
    """They are made by the generator and never pass an operator: 5 056 bytes for each of three blocks."""
    job = partial(train_transformer, checkpointed=True)
    job()
    assert allocator_peak_bytes(job) - watched(job).peak_bytes == 3 * 5056


def test_what_is_alive_at_the_peak_adds_up_to_it_and_has_the_right_names():
    peak = watched(train_transformer)
    assert sum(row["num_bytes"] for row in peak.shares) == peak.peak_bytes
    parameters = sum(p.nbytes for p in Transformer().parameters())
    by_category: dict[str, int] = {}
    for row in peak.shares:
        by_category[row["category"]] = by_category.get(row["category"], 0) + row["num_bytes"]
    assert by_category["parameter"] == parameters
    assert by_category["optimizer state"] == pytest.approx(2 * parameters, abs=4 * 200)
    modules = {row["module"] for row in peak.shares if row["category"] == "activation"}
    assert {"blocks.0.attention", "blocks.2.feed.1"} <= modules


def test_a_backward_pass_is_attributed_to_the_module_whose_forward_pass_made_it():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    x = torch.randn(64, 16, requires_grad=True)
    with TensorWatch() as watch:
        model(x).sum().backward()
    storages, _ = watch._trace.understand()
    made = {s.module for s in storages if s.phase == "backward" and s.operator == "aten.mm.default"}
    assert made == {"0", "1"}


# ---- in a run ------------------------------------------------------------------------------------------------------


class Recorded:
    """A run in this process, and the facts it wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def facts(self) -> list[LedgerFacts]:
        """Those of traced steps."""
        return [facts for facts in self.all_facts() if facts.step]

    def all_facts(self) -> list[LedgerFacts]:
        inside.stop_marks()
        lines = [line for path in self.folder.glob("ledger-*.jsonl") for line in path.read_bytes().splitlines()]
        return [msgspec.json.decode(line, type=LedgerFacts) for line in lines]

    def notes(self) -> list[str]:
        inside.stop_marks()
        (path,) = self.folder.glob("marks-*.txt")
        return [json.loads(line[2:])["message"] for line in path.read_text().splitlines() if line[0] == "N"]


@pytest.fixture(autouse=True)
def _settled_heap() -> None:
    """What earlier tests of this process freed is given back: else a larger step finds room in the heap."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def recorded(tmp_path: Path):
    inside.start_marks(tmp_path, 4)
    yield Recorded(tmp_path)
    inside.stop_marks()


def test_the_second_and_every_kth_step_are_traced_and_equal_ones_written_once(recorded: Recorded):
    train_mlp(steps=21)
    facts = recorded.facts()
    assert [f.step for f in facts][:2] == [2, 4]
    largest_bytes = facts[0].resident_peak_bytes
    for later in facts[2:]:
        assert later.resident_peak_bytes > largest_bytes, "looks like step 4, and the process was no larger"
        largest_bytes = later.resident_peak_bytes
    assert [f.update_is_reused for f in facts][:2] == [False, True]
    assert len({f.tensor_peak_bytes for f in facts}) == 1
    assert facts[0].timeline is not None


def test_equal_steps_of_a_process_that_does_not_grow_are_written_once(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
):
    """Its size is held still: what other threads of this process allocate is not in the hands of a test."""
    for name in ("step_peak_bytes", "highest_bytes"):
        monkeypatch.setattr(Marks, name, property(lambda _: 1 << 26, lambda _, __: None), raising=False)
    train_mlp(steps=21)
    assert [f.step for f in recorded.facts()] == [2, 4]


def test_a_traced_step_of_a_run_has_the_same_peak_as_the_allocator_sees(recorded: Recorded):
    train_mlp(steps=5)
    peaks = {f.tensor_peak_bytes for f in recorded.facts()}
    assert peaks == {allocator_peak_bytes(train_mlp)}


def test_a_step_with_a_larger_input_is_traced_out_of_turn(recorded: Recorded):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, 8):
        batch = 2048 if number == 6 else 64
        optimizer.zero_grad()
        model(torch.randn(batch, 256)).sum().backward()
        optimizer.step()
    assert [f.step for f in recorded.facts()][-1] == 6


def test_arguments_with_names_count_as_input_too(recorded: Recorded):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, 8):
        optimizer.zero_grad()
        model(input=torch.randn(2048 if number == 6 else 64, 256)).sum().backward()
        optimizer.step()
    assert [f.step for f in recorded.facts()][-1] == 6


def test_an_evaluation_is_traced_for_itself_and_not_charged_to_the_next_step(recorded: Recorded):
    """A pass over 64 MiB lies between two traced steps that take 1 MiB."""
    model, large = nn.Linear(256, 1024), torch.randn(16384, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, 9):
        if number == 4:
            with torch.no_grad():
                model(large)
        optimizer.zero_grad()
        model(large[: 65 + number]).sum().backward()
        optimizer.step()
    facts = recorded.facts()
    (evaluation,) = [f for f in facts if f.peak_phase == "evaluation"]
    after = next(f for f in facts if f.step == 4 and f.peak_phase != "evaluation")
    assert evaluation.moment is not None
    assert evaluation.moment.phase == "evaluation"
    assert evaluation.resident_peak_bytes > after.resident_peak_bytes + 32 * 1024**2
    made = {t.category: t.num_bytes for t in evaluation.moment.tensors}
    assert made["temporary"] == 16384 * 1024 * 4


def test_a_step_that_was_larger_than_any_traced_one_is_traced_the_next_time(recorded: Recorded):
    """Its input is no larger, so that nobody could know before."""
    model, kept = nn.Linear(256, 256), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, 8):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 256)).sum()
        if number == 5:
            kept.append(torch.ones(8 << 20))
        loss.backward()
        optimizer.step()
    assert [f.step for f in recorded.facts()] == [2, 4, 6], "step 5 was larger than steps 2 and 4"


def test_an_update_that_is_the_peak_is_traced_again_and_not_taken_from_memory(recorded: Recorded):
    """With a large layer and a small batch the temporaries of Adam are the peak."""
    model = nn.Linear(2048, 2048)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    ballast = []
    for _ in range(13):
        optimizer.zero_grad()
        model(torch.randn(4, 2048)).sum().backward()
        ballast.append(torch.ones(2 << 20))
        optimizer.step()
    facts = recorded.facts()
    best = max(facts, key=lambda f: f.resident_peak_bytes)
    assert best.moment is not None
    seen = best.moment.anonymous_bytes + best.moment.file_bytes + best.moment.shmem_bytes
    assert seen > 0.98 * best.resident_peak_bytes, [(f.step, f.update_is_reused) for f in facts]


def test_a_large_tensor_that_was_never_written_is_known_to_take_no_memory(recorded: Recorded):
    model = nn.Linear(256, 256)
    model.register_buffer("cache", torch.empty(64 << 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 256)).sum().backward()
        optimizer.step()
    moment = recorded.facts()[0].moment
    assert moment is not None
    (cache,) = [t for t in moment.tensors if t.category == "buffer"]
    assert cache.num_bytes == 256 << 20
    assert cache.untouched_bytes > 0.99 * cache.num_bytes


def test_the_end_of_a_process_is_written_whether_it_trained_or_not(recorded: Recorded):
    (facts,) = recorded.all_facts()
    assert (facts.step, facts.tensors) == (0, ())
    assert facts.startup_anonymous_bytes > 0


def test_the_timeline_of_a_step_replays_to_its_peak(recorded: Recorded):
    train_transformer(steps=3)
    facts = recorded.facts()[0]
    timeline = facts.timeline
    assert timeline is not None
    change = [0] * (timeline.num_events + 1)
    for span in timeline.spans:
        change[span.start] += span.num_bytes
        if span.end is not None:
            change[span.end] -= span.num_bytes
    live = peak = 0
    for difference in change:
        live += difference
        peak = max(peak, live)
    assert peak == facts.tensor_peak_bytes == sum(share.num_bytes for share in facts.tensors)
    assert [mark.phase for mark in timeline.phases] == ["forward", "backward", "update"]


def test_both_networks_of_a_gan_are_traced_and_carry_their_names(recorded: Recorded):
    class Maker(nn.Linear):
        pass

    class Critic(nn.Linear):
        pass

    maker, critic = Maker(16, 64), Critic(64, 1)
    of_maker, of_critic = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    for _ in range(12):
        critic(maker(torch.randn(8, 16)).detach()).mean().backward()
        of_critic.step()
        of_critic.zero_grad()
        critic(maker(torch.randn(8, 16))).mean().backward()
        of_maker.step()
        of_maker.zero_grad()
    facts = recorded.facts()
    assert {f.step % 2 for f in facts} == {0, 1}
    last = {(t.category, t.module) for t in facts[-1].tensors}
    assert {("parameter", "Maker"), ("parameter", "Critic"), ("optimizer state", "Critic")} <= last


def test_another_dispatch_mode_is_left_alone_and_a_note_says_so(recorded: Recorded):
    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Counting():
        train_mlp(steps=3)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert "another dispatch mode is active" in recorded.notes()[0]


def test_a_mode_that_is_entered_inside_a_traced_step_and_left_after_it_survives(recorded: Recorded):
    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(4, 256)).sum()
        mode = Counting()
        mode.__enter__()
        loss.backward()
        optimizer.step()
        before = Counting.seen
        torch.ones(1)
        assert Counting.seen == before + 1
        mode.__exit__(None, None, None)
        assert torch._C._len_torch_dispatch_stack() == 0
    assert [f.step for f in recorded.facts()] == [2]


def test_a_step_that_ends_in_another_thread_than_it_began_in_leaves_no_mode_behind(recorded: Recorded):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.randn(4, 256)).sum()
        loss.backward()
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()
    model(torch.randn(4, 256))
    assert torch._C._len_torch_dispatch_stack() == 0
    assert [f.step for f in recorded.facts()]


def test_an_error_of_the_ledger_is_a_note_and_the_training_goes_on(recorded: Recorded, monkeypatch):
    def fail(*_):
        raise ValueError("on purpose")

    monkeypatch.setattr("memfit.inside.ledger.live_set.find_peak", fail)
    train_mlp(steps=3)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert "on purpose" in recorded.notes()[0]


def test_a_very_long_run_writes_a_bounded_ledger(recorded: Recorded, monkeypatch):
    monkeypatch.setattr(ledger_file, "MAX_LINES", 3)
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, 80):
        optimizer.zero_grad()
        model(torch.randn(200 - number, 16)).sum().backward()
        optimizer.step()
    facts = recorded.facts()
    assert len(facts) < 12
    assert sum(f.timeline is not None for f in facts) <= 8


def test_memory_of_the_log_is_bounded_and_the_facts_say_that_they_are_partial(recorded: Recorded, monkeypatch):
    monkeypatch.setattr(StepTrace.__init__, "__defaults__", (None, 40))
    train_mlp(steps=3)
    assert recorded.facts()[0].is_partial


def test_a_tensor_subclass_unwraps_itself_and_is_counted_once():
    from torch.testing._internal.two_tensor import TwoTensor

    with TensorWatch() as watch:
        twin = TwoTensor(torch.ones(1024), torch.ones(1024))
        sum_of = twin + twin
    assert type(sum_of) is TwoTensor
    assert watch.peak().peak_bytes == 4 * 4096


def test_a_tensor_that_is_resized_counts_with_its_new_size():
    with TensorWatch() as watch:
        out = torch.empty(10)
        out.resize_(5000)
    assert watch.peak().peak_bytes == 20000
