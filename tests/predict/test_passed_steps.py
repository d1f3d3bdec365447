"""Who gets gradients in steps that are passed over: parameters that were trained, and nobody who came after them."""

from __future__ import annotations

import contextlib
import gc
import random
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.predict.fake.recording import Recording  # noqa: E402
from memfit.predict.fake.skipped_steps import PassedSteps  # noqa: E402
from memfit.predict.fake.steps import _kept_by_steps  # noqa: E402


class NoTracker:
    """Counts nothing: these tests ask only who has a gradient."""

    class log:
        live_bytes = highest_bytes = 0
        births = ()

    class outside:
        made_here = contextlib.nullcontext

    def see(self, *args: Any) -> None:
        """Forget it."""

    def uid_of(self, tensor: Any) -> None:
        """Not known."""

    def living_since(self, num_births: int) -> set[int]:
        """None."""
        return set()


def passed_steps() -> PassedSteps:
    return PassedSteps(NoTracker(), lambda kind, text: None)  # type: ignore[arg-type]


def trained_model(passed: PassedSteps) -> tuple[Any, Any]:
    """A layer after one step, its gradient given up."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = (torch.ones(1, 4),)
    passed.run(model, inputs, lambda: model(*inputs)).sum().backward()
    passed.note_update(optimizer)
    optimizer.zero_grad()
    return model, optimizer


def test_a_trained_parameter_has_its_gradient_again():
    passed = passed_steps()
    model, _kept = trained_model(passed)
    passed._give_gradients(model)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_nothing_is_remembered_of_parameters_that_are_gone():
    """Their identities are used again by the next model, which was not trained."""
    passed = passed_steps()
    model, optimizer = trained_model(passed)
    identities = {id(parameter) for parameter in model.parameters()}
    assert identities <= set(passed.trained)
    del model, optimizer
    gc.collect()
    assert not passed.trained


def test_a_second_optimizer_of_the_same_model_finds_gradients():
    passed = passed_steps()
    model, optimizer = trained_model(passed)
    del optimizer
    gc.collect()
    passed._give_gradients(model)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_parameter_that_was_replaced_in_its_model_is_forgotten_at_the_next_update():
    passed = passed_steps()
    model, optimizer = trained_model(passed)
    identity = id(model.weight)
    del optimizer
    gc.collect()
    model.weight = torch.nn.Parameter(torch.ones(4, 4))
    passed.note_update(torch.optim.SGD(model.parameters(), 0.1))
    assert identity not in passed.trained


@pytest.mark.parametrize("is_late", [False, True])
def test_iterations_of_a_search_that_begin_higher_are_followed_until_it_is_late(is_late: bool):
    notes: list[str] = []
    passed = PassedSteps(NoTracker(), lambda kind, text: notes.append(text))  # type: ignore[arg-type]
    passed._searches, passed.is_late = True, lambda: is_late
    known = 2, ((), torch.utils._pytree.tree_flatten(())[1], ()), 100, ()
    assert passed._may_pass(known, 100)
    assert passed._may_pass(known, 150) is is_late
    passed.note_unseen()
    assert len(notes) == is_late
    assert not is_late or "50 B higher" in notes[0]


def test_a_model_that_nobody_trained_is_not_passed_over():
    """Its parameters would have no gradients: `No gradients provided for any variable`."""
    passed = passed_steps()
    model, _kept = trained_model(passed)
    other = torch.nn.Linear(4, 4)
    passed.is_passing = True
    for _ in range(4):
        other.zero_grad()
        passed.run(other, (torch.ones(1, 4),), lambda: other(torch.ones(1, 4))).sum().backward()
        passed.note_backward()
        assert all(parameter.grad is not None for parameter in other.parameters())
    assert {id(parameter) for parameter in (*other.parameters(), *model.parameters())} <= passed.trained


def test_an_optimizer_that_gets_more_gradients_than_before_makes_its_step():
    passed = passed_steps()
    with passed.standing_in():
        first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
        passed.is_passing = True
        for model in (first, first, first, second):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            passed.note_update(optimizer)
    assert len(optimizer.state) == 4


@pytest.mark.parametrize("change", ["hook", "setting"])
def test_calls_that_a_hook_sees_or_whose_settings_changed_are_run(change: str):
    passed = passed_steps()
    model, _kept = trained_model(passed)
    passed.is_passing, ran = True, []
    if change == "hook":
        model.register_forward_hook(lambda module, given, result: None)
    for depth in range(6):
        model.depth = depth
        passed.run(model, (torch.ones(1, 4),), lambda: (ran.append(1), model(torch.ones(1, 4)))[1])
    assert len(ran) == 6


def test_batches_of_random_lengths_are_hardly_ever_taken_for_growth():
    drawn = random.Random(0)
    rows = [[100, *(1000 + drawn.randrange(1000) for _ in range(40))] for _ in range(400)]
    assert sum(_kept_by_steps(live) > 0 for live in rows) <= 4
    leak = [100, *(1000 + 50 * k + drawn.randrange(100) for k in range(60))]
    assert 40 <= _kept_by_steps(leak) <= 60


def test_an_update_is_made_again_where_more_is_alive_than_at_those_that_were_followed():
    """What it takes for itself then comes on top of more: a checkpoint that was loaded, a best state that is kept."""
    tracker: Any = NoTracker()
    tracker.log = SimpleNamespace(live_bytes=1000, highest_bytes=2000)
    passed = PassedSteps(tracker, lambda kind, text: None)  # type: ignore[arg-type]
    made: list[int] = []

    class Counted(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            made.append(tracker.log.live_bytes)
            passed.note_update(self)

    with passed.standing_in():
        parameter = torch.nn.Parameter(torch.ones(4))
        parameter.grad = torch.ones(4)
        optimizer = Counted([parameter], 0.1)
        for is_passing, live_bytes in ((False, 1000), (False, 1000), (True, 1000), (True, 1500), (True, 1400)):
            passed.is_passing, tracker.log.live_bytes = is_passing, live_bytes
            optimizer.step()
    assert made == [1000, 1000, 1500]


def test_results_that_are_made_again_hold_what_their_graph_would_once_something_is_run_beside_them():
    recording = Recording()
    with recording.running():
        passed, log = PassedSteps(recording.tracker, lambda kind, text: None), recording.tracker.log
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        inputs = (torch.ones(100, 8),)

        def call() -> Any:
            return passed.run(model, inputs, lambda: model(*inputs))

        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _step in range(3):
            call().sum().backward()
            passed.note_update(optimizer)
        passed.is_passing = True
        before_bytes = log.live_bytes
        kept = call()
        result_bytes = log.live_bytes - before_bytes
        passed.hold_graphs()
        held_bytes = log.live_bytes - before_bytes - result_bytes
        kept.sum().backward()
        assert (result_bytes, held_bytes) == (400, 100 * 64 * 4)
        assert log.live_bytes - before_bytes < held_bytes
