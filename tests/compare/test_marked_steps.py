"""Are the steps of a marked training read from any log of allocations?"""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from memfit.compare.optimizer_table.marked_steps import MARK_BYTES, changes_of, read_steps
from memfit.records.optimizer_bytes import OptimizerRun
from memfit.records.timeline import LiveSpan, Timeline

SIZES = st.integers(1, 1000).map(lambda number: 4 * number)


def mark(name: str) -> list[int]:
    return [MARK_BYTES[name], -MARK_BYTES[name]]


def log(parameters: int, state: int, temporary: int, num_steps: int) -> list[int]:
    """Changes of a training whose optimizer makes its state in the first update."""
    changes = [parameters, *mark("built")]
    for number in range(num_steps):
        changes += [*mark("begin"), parameters, *mark("update")]
        changes += [state] if number == 0 else []
        changes += [temporary, -temporary, -parameters, *mark("end")]
    return changes


@given(SIZES, SIZES, SIZES, st.integers(2, 5))
def test_state_and_temporaries_are_read_as_they_were_made(parameters: int, state: int, temporary: int, num_steps: int):
    base_bytes, steps = read_steps(log(parameters, state, temporary, num_steps))
    run = OptimizerRun(
        optimizer="adam", shapes="square", device="cpu", source="measured", parameter_bytes=parameters,
        base_bytes=base_bytes, steps=steps,
    )  # fmt: skip
    assert len(steps) == num_steps
    assert run.base_bytes == parameters
    assert run.state_bytes == state
    assert run.temporary_bytes == run.first_temporary_bytes == temporary
    assert run.peak_bytes == run.first_peak_bytes == 2 * parameters + state + temporary


@given(st.lists(SIZES, min_size=1, max_size=20), st.integers())
def test_a_timeline_gives_the_changes_it_was_made_of(sizes: list[int], seed: int):
    chance = random.Random(seed)
    events = sorted([(chance.random(), number, True) for number in range(len(sizes))])
    spans = [
        LiveSpan(start=place, end=None, num_bytes=sizes[number], category="temporary", phase="update")
        for place, (_, number, _) in enumerate(events)
    ]
    timeline = Timeline(spans=tuple(spans), num_events=len(spans))
    assert sum(changes_of(timeline, "cpu")) == sum(sizes)
    assert changes_of(timeline, "cuda:0") == [0] * (len(spans) + 1)


def test_a_step_whose_update_cannot_be_told_apart_says_so():
    _, steps = read_steps([8, *mark("built"), *mark("begin"), 16, -16, *mark("end")])
    assert steps[0].update_peak_bytes is None
    assert steps[0].peak_bytes == 24
    assert steps[0].end_bytes == 8
