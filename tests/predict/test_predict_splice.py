"""Two traces joined into one are the trace of the whole, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.compare.cells.predict_cells import join_replies
from memfit.errors import MemfitError
from memfit.job.recipes.recipe import MARK_BYTES, Recipe, parse_techniques
from memfit.predict.child.fork_server import ForkServer
from memfit.predict.child.messages import TraceReply
from memfit.predict.child.probe_cache import KnownProbes
from memfit.predict.fake.engine import FakeEngine
from memfit.predict.levels.join_timelines import CannotJoin, join_updates
from memfit.predict.options import PredictOptions
from memfit.predict.predict import ask
from memfit.records.timeline import LiveSpan, PhaseMark, Timeline

Event = tuple[str, str, int]
"""'take' or 'give', a name, bytes."""


# ---- pure: a program is cut into its two parts and joined again ------------------------------------------------------


@dataclass
class Program:
    """Stretches of events that alternate: steps without updates, and updates."""

    outside: list[list[Event]] = field(default_factory=list)
    updates: list[list[Event]] = field(default_factory=list)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A job whose updates keep some of what they take (state), and whose steps release their gradients afterwards."""
    program = Program(outside=[[("take", "parameter", 100), ("take", "input", 30)]])
    state: list[Event] = []
    for step in range(3):  # the optimizer is made, then two steps
        sizes = draw(st.lists(st.integers(1, 5000), max_size=4))
        passing: list[Event] = [("take", f"passing {step} {i}", size) for i, size in enumerate(sizes)]
        kept: list[Event] = [("take", f"state {step}", draw(st.integers(1, 5000)))] if draw(st.booleans()) else []
        gone: list[Event] = [("give", name, size) for _, name, size in state] if draw(st.booleans()) else []
        state = kept if gone else state + kept
        order = draw(st.permutations(passing)) + gone + kept
        program.updates.append(order + [("give", name, size) for _, name, size in reversed(passing)])
        after: list[Event] = [] if step == 0 else [("give", f"gradient {step}", 70)]
        coming: list[Event] = [] if step == 2 else [("take", f"gradient {step + 1}", 70)]
        activations = draw(st.lists(st.integers(1, 9000), max_size=4))
        made: list[Event] = [("take", f"act {step} {i}", size) for i, size in enumerate(activations)]
        program.outside.append(after + made + coming + [("give", name, size) for _, name, size in made])
    return program


def timeline_of(events: list[Event]) -> Timeline:
    born: dict[str, int] = {}
    spans: dict[str, LiveSpan] = {}
    for index, (what, name, size) in enumerate(events):
        if what == "take":
            born[name] = index
            category = "gradient" if name.startswith("gradient") else "temporary"
            phase = "setup" if name.startswith("gradient given") else "forward"
            spans[name] = LiveSpan(start=index, end=None, num_bytes=size, category=category, phase=phase)
        else:
            spans[name] = msgspec.structs.replace(spans[name], end=index)
    ordered = sorted(spans.values(), key=lambda span: span.start)
    return Timeline(spans=tuple(ordered), num_events=len(events), phases=(PhaseMark(start=0, step=1, phase="forward"),))


def mark(number: int) -> list[Event]:
    return [("take", f"mark {number}", MARK_BYTES), ("give", f"mark {number}", MARK_BYTES)]


def whole(program: Program) -> list[Event]:
    found = list(program.outside[0])
    for update, after in zip(program.updates, program.outside[1:], strict=True):
        found += [*update, *after]
    return found


def steps_alone(program: Program) -> list[Event]:
    found = list(program.outside[0])
    for number, after in enumerate(program.outside[1:]):
        found += [*mark(number), *after]
    return found


def updates_alone(program: Program) -> list[Event]:
    found: list[Event] = [("take", "parameter", 100)]
    for number, update in enumerate(program.updates):
        found += [*mark(2 * number), *update, *mark(2 * number + 1)]
        if number == 0:
            found.append(("take", "gradient given", 70))
    return found


def rows(timeline: Timeline) -> list[tuple[int, int | None, int, str]]:
    return [(s.start, s.end, s.num_bytes, s.category) for s in sorted(timeline.spans, key=lambda span: span.start)]


@given(programs())
def test_a_program_that_was_cut_is_joined_to_what_it_was(program: Program) -> None:
    steps, updates = timeline_of(steps_alone(program)), timeline_of(updates_alone(program))
    direct = timeline_of(whole(program))
    if any(span.num_bytes == MARK_BYTES for span in direct.spans):  # a tensor that looks like a mark
        with pytest.raises(CannotJoin):
            join_updates(steps, updates, MARK_BYTES)
        return
    joined = join_updates(steps, updates, MARK_BYTES).timeline
    assert rows(joined) == rows(direct)
    assert joined.num_events == direct.num_events


def test_updates_of_other_gradients_are_not_joined() -> None:
    program = Program(
        outside=[[("take", "parameter", 100)], [("take", "gradient 1", 71)], [("give", "gradient 1", 71)]],
        updates=[[], []],
    )
    with pytest.raises(CannotJoin, match="gradients"):
        join_updates(timeline_of(steps_alone(program)), timeline_of(updates_alone(program)), MARK_BYTES)


def test_updates_that_release_a_parameter_are_not_joined() -> None:
    steps = timeline_of([("take", "gradient 1", 70), *mark(0), *mark(1)])
    updates = timeline_of(
        [("take", "parameter", 100), *mark(0), *mark(1), ("take", "gradient given", 70), *mark(2),
         ("give", "parameter", 100), *mark(3)]
    )  # fmt: skip
    with pytest.raises(CannotJoin, match="given"):
        join_updates(steps, updates, MARK_BYTES)


# ---- real: parts traced on fake tensors, joined, beside the whole traced at once -------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


def trace(server: ForkServer, device: str, recipe: Recipe) -> TraceReply:
    options = PredictOptions(device=device, engine="fake", probes=False)
    question = ask("gpt", options, settings={"layers": 2, "width": 32, "words": 100, "length": 16, "batch_size": 4})
    job = msgspec.structs.replace(question.job, recipe=recipe)
    return FakeEngine().trace(replace(question, job=job, fork_server=server))


def requests(timeline: Timeline) -> list[tuple[int, int | None, int, str]]:
    """As `rows`, an end counted by the requests before it: autocast empties its cache in the order of addresses."""
    starts = [span.start for span in timeline.spans]
    return [
        (start, None if end is None else sum(each < end for each in starts), size, category)
        for start, end, size, category in rows(timeline)
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda:a100-40gb"])
@pytest.mark.parametrize(
    ("optimizer", "technique"),
    [
        ("adam", "plain"),
        ("adagrad", "bf16"),
        ("adamw-foreach", "fp16"),
        ("adafactor", "checkpoint"),
        ("adam-fused", "accumulate=2+clip"),
        ("sgd-momentum", "lora=2"),
        ("rprop", "pure-bf16"),
    ],
)
def test_joined_traces_are_the_trace_of_the_whole(
    server: ForkServer, device: str, optimizer: str, technique: str
) -> None:
    recipe = Recipe(optimizer=optimizer, techniques=parse_techniques(technique))
    direct = trace(server, device, recipe).timeline
    steps = trace(server, device, msgspec.structs.replace(recipe, optimizer="", part="all but the update"))
    updates = trace(server, device, msgspec.structs.replace(recipe, part="the update alone"))
    joined = join_replies(steps, updates).timeline
    assert requests(joined) == requests(direct)
    assert joined.num_events == direct.num_events


def test_a_scaler_that_a_fused_optimizer_takes_over_shows_that_such_cells_must_be_traced_whole(
    server: ForkServer,
) -> None:
    recipe = Recipe(optimizer="adam-fused", techniques=parse_techniques("fp16"))
    direct = trace(server, "cpu", recipe).timeline
    steps = trace(server, "cpu", msgspec.structs.replace(recipe, optimizer="", part="all but the update"))
    updates = trace(server, "cpu", msgspec.structs.replace(recipe, part="the update alone"))
    assert rows(join_replies(steps, updates).timeline) != rows(direct)


def test_a_job_that_steps_by_itself_takes_no_recipe(server: ForkServer) -> None:
    question = ask("gan", PredictOptions(device="cpu", engine="fake", probes=False))
    job = msgspec.structs.replace(question.job, recipe=Recipe(optimizer="adam"))
    with pytest.raises(MemfitError, match="steps by itself"):
        FakeEngine().trace(replace(question, job=job, fork_server=server))


@pytest.mark.slow
def test_what_a_server_loads_early_still_counts_as_the_jobs_own(server: ForkServer) -> None:
    """Else the bare process that a workload is set beside would lack the packages it imports."""
    pytest.importorskip("transformers")
    settings = {"layers": 1, "batch_size": 1, "length": 8}
    question = ask("distilbert", PredictOptions(device="cpu", engine="fake", most_seconds=120), settings=settings)
    known = [
        FakeEngine().trace(replace(question, fork_server=server, known_probes=KnownProbes())).found_probes
        for _ in range(2)
    ]
    assert known[0] is not None
    assert known[1] is not None
    assert known[0].bare.keys() == known[1].bare.keys()
    assert "transformers" in next(iter(known[0].bare))
