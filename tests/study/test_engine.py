"""Does every tuner keep the engine's contract: the same trials give the same question, and a finite space ends?"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.errors import UsageError
from memfit.records.figure import Figure, measured
from memfit.records.study import (
    Branch,
    Choice,
    Goal,
    Integers,
    MemoryRule,
    Nested,
    Proposal,
    SearchSpace,
    Span,
    StudySettings,
    Tool,
    TrialOutcome,
    TrialRecord,
)
from memfit.study.engine.engine import MOST_REJECTIONS_PER_TRIAL, SearchEngine
from memfit.study.engine.history import lesson_of

SMOOTH = SearchSpace(
    parameters=(
        Span(name="lr", low=1e-4, high=1e-1, log=True),
        Choice(name="batch", options=(8, 16, 32)),
        Integers(name="depth", low=1, end=9),
    )
)
NESTED = SearchSpace(
    parameters=(
        Span(name="lr", low=1e-4, high=1e-1, log=True),
        Nested(
            name="optimizer",
            branches=(
                Branch(name="adam"),
                Branch(name="sgd", parameters=(Span(name="momentum", low=0, high=1), Choice(name="n", options=(0, 1)))),
            ),
        ),
    )
)
FINITE = SearchSpace(parameters=(Choice(name="a", options=(1, 2, 3)), Choice(name="b", options=("x", "y"))))
BATCH = SearchSpace(parameters=(Choice(name="sets", options=tuple({"lr": 0.1, "n": n} for n in range(40))),))

TUNERS: dict[str, Tool] = {
    "TPE": Tool(name="TPE", arguments={"tpe_args": {"n_startup_jobs": 5}}),
    "Random": Tool(name="Random"),
    "GridSearch": Tool(name="GridSearch"),
    "Evolution": Tool(name="Evolution", arguments={"population_size": 4}),
    "RegularizedEvolutionTuner": Tool(
        name="RegularizedEvolutionTuner", arguments={"population_size": 4, "sample_size": 2}
    ),
    "Hyperband": Tool(name="Hyperband", arguments={"R": 9, "eta": 3}),
    "serial": Tool(name="Hyperband", arguments={"R": 9, "eta": 3, "exec_mode": "serial"}),
    "BOHB": Tool(name="BOHB", arguments={"max_budget": 9, "random_fraction": 0.1}),
    "PBT": Tool(name="PBT", arguments={"population_size": 4, "all_checkpoint_dir": "/checkpoints"}),
    "Batch": Tool(name="Batch"),
}


def make(tuner: Tool, space: SearchSpace = SMOOTH, **options: Any) -> StudySettings:
    chosen = BATCH if tuner.name == "Batch" else space
    return StudySettings(space=chosen, tuner=tuner, goal=Goal(direction="maximize"), seed=11, **options)


def ended(proposal: Proposal, kind: str = "done", metric: float | None = None, **figures: Figure) -> TrialRecord:
    if kind == "done" and metric is None:
        rate = proposal.parameters.get("lr", 0.01)
        metric = -abs(math.log10(rate) + 2.5) + 0.01 * len(proposal.parameters)
    return TrialRecord(proposal=proposal, outcome=TrialOutcome(kind=kind), metric=metric, **figures)  # pyright: ignore[reportArgumentType]


def end_by_script(proposal: Proposal) -> TrialRecord:
    """Some trials fail, some are stopped, some run out of memory: always the same ones."""
    kinds = {4: "failed", 6: "out of memory", 9: "stopped early", 11: "rejected by prediction"}
    return ended(proposal, kinds.get(proposal.number % 13, "done"))


class Coordinator:
    """Runs a study with several trials at once, storing what has to be stored, as bytes."""

    def __init__(self, settings: StudySettings, concurrency: int) -> None:
        self.settings, self.concurrency = settings, concurrency
        self.stored: dict[int, bytes] = {}
        self.engine = SearchEngine(settings)

    def die_and_resume(self) -> None:
        self.engine = SearchEngine(self.settings)
        self.engine.restore(msgspec.json.decode(raw, type=TrialRecord) for raw in self.stored.values())

    def run(self, num_asks: int, dies_every: int | None = None) -> list[Proposal]:
        running: list[Proposal] = []
        asked: list[Proposal] = []
        for _ in range(10 * num_asks):
            if dies_every is not None and len(asked) % dies_every == 1:
                self.die_and_resume()
            proposal = self.engine.ask() if len(running) < self.concurrency else None
            if proposal is not None:
                self._store(TrialRecord(proposal=proposal))
                running.append(proposal)
                asked.append(proposal)
            elif running:
                self._store(self.engine.tell(end_by_script(running.pop(0))))
            if len(asked) == num_asks or (proposal is None and not running and self.engine.is_finished):
                break
        return asked

    def _store(self, trial: TrialRecord) -> None:
        self.stored[trial.number] = msgspec.json.encode(trial)


@pytest.mark.parametrize("concurrency", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TUNERS)
def test_a_study_that_is_killed_again_and_again_asks_what_an_unbroken_one_asks(name: str, concurrency: int):
    space = NESTED if name not in ("PBT",) else SMOOTH
    unbroken = Coordinator(make(TUNERS[name], space), concurrency).run(26)
    broken = Coordinator(make(TUNERS[name], space), concurrency).run(26, dies_every=4)
    assert len(unbroken) == 26
    assert broken == unbroken


@pytest.mark.parametrize("name", TUNERS)
def test_another_seed_asks_something_else(name: str):
    first = Coordinator(make(TUNERS[name]), 1).run(8)
    other = Coordinator(msgspec.structs.replace(make(TUNERS[name]), seed=12), 1).run(8)
    assert (first == other) is (name in ("GridSearch", "Batch"))


@pytest.mark.parametrize("name", ["TPE", "Random", "GridSearch", "Evolution", "RegularizedEvolutionTuner"])
def test_a_finite_space_is_tried_once_each_and_then_ends(name: str):
    engine = SearchEngine(make(TUNERS[name], FINITE))
    seen = []
    while (proposal := engine.ask()) is not None:
        seen.append(tuple(proposal.parameters.values()))
        engine.tell(ended(proposal, metric=float(proposal.number)))
    assert sorted(seen) == [(a, b) for a in (1, 2, 3) for b in ("x", "y")]
    assert engine.is_finished
    assert "tried" in engine.why_finished


def test_the_engine_stops_at_the_number_of_trials_but_does_not_count_rejected_points():
    engine = SearchEngine(make(TUNERS["Random"], max_trials=3))
    kinds = iter(["done", "rejected by prediction", "failed", "rejected by prediction", "out of memory"])
    while (proposal := engine.ask()) is not None:
        engine.tell(ended(proposal, next(kinds)))
    assert engine.history.next_number == 5
    assert engine.why_finished == "3 trials were started, as many as were asked for"


def test_a_study_in_which_nothing_can_fit_comes_to_an_end():
    engine = SearchEngine(make(TUNERS["Random"], max_trials=3))
    while (proposal := engine.ask()) is not None:
        engine.tell(ended(proposal, "rejected by prediction"))
    assert engine.history.next_number == MOST_REJECTIONS_PER_TRIAL
    assert "raise the memory limit" in engine.why_finished


def test_what_was_never_asked_or_has_not_ended_cannot_be_told():
    engine = SearchEngine(make(TUNERS["Random"]))
    stranger = TrialRecord(proposal=Proposal(number=5, parameters={}), outcome=TrialOutcome(kind="done"))
    with pytest.raises(UsageError, match="never asked"):
        engine.tell(stranger)
    proposal = engine.ask()
    assert proposal is not None
    with pytest.raises(UsageError, match="has not ended"):
        engine.tell(TrialRecord(proposal=proposal))


def test_trials_carry_the_order_in_which_they_ended():
    engine = SearchEngine(make(TUNERS["Random"]))
    asked = [engine.ask() for _ in range(3)]
    orders = [engine.tell(ended(asked[index])).end_order for index in (2, 0, 1)]  # pyright: ignore[reportArgumentType]
    assert orders == [0, 1, 2]


@pytest.mark.parametrize("name", ["TPE", "Evolution", "Hyperband", "BOHB"])
def test_the_tuner_gets_better_than_its_own_beginning(name: str):
    arguments = {"Evolution": {"population_size": 8}, "BOHB": {"max_budget": 9}, "Hyperband": {"R": 9}}.get(name, {})
    engine = SearchEngine(make(Tool(name=name, arguments=arguments), max_trials=70))
    scores = []
    while (proposal := engine.ask()) is not None:
        trial = ended(proposal)
        scores.append(trial.metric or 0.0)
        engine.tell(trial)
    if name == "Hyperband":
        late = [s for s, lesson in zip(scores, engine.history, strict=True) if lesson.trial.proposal.memo["round"] > 0]
        assert sum(late) / len(late) > sum(scores) / len(scores) + 0.1
    else:
        assert sum(scores[-20:]) / 20 > sum(scores[:20]) / 20 + 0.1


def test_hyperband_runs_the_published_table_of_rounds_and_budgets():
    engine = SearchEngine(make(Tool(name="Hyperband", arguments={"R": 81, "eta": 3, "exec_mode": "serial"})))
    rounds: dict[tuple[int, int], list[int]] = {}
    while True:
        proposal = engine.ask()
        assert proposal is not None
        memo = proposal.memo
        if memo["bracket"] == 5:
            break
        rounds.setdefault((memo["bracket"], memo["round"]), []).append(proposal.parameters["TRIAL_BUDGET"])
        engine.tell(ended(proposal))
    table = {key: (len(budgets), budgets[0]) for key, budgets in rounds.items()}
    assert table == {
        (0, 0): (81, 1), (0, 1): (27, 3), (0, 2): (9, 9), (0, 3): (3, 27), (0, 4): (1, 81),
        (1, 0): (34, 3), (1, 1): (11, 9), (1, 2): (3, 27), (1, 3): (1, 81),
        (2, 0): (15, 9), (2, 1): (5, 27), (2, 2): (1, 81),
        (3, 0): (8, 27), (3, 1): (2, 81),
        (4, 0): (5, 81),
    }  # fmt: skip
    assert all(len(set(budgets)) == 1 for budgets in rounds.values())


def test_in_hyperband_the_best_survive_and_points_without_memory_never_do():
    engine = SearchEngine(make(Tool(name="Hyperband", arguments={"R": 9, "eta": 3, "exec_mode": "serial"})))
    first = [engine.ask() for _ in range(9)]
    for index, proposal in enumerate(first):
        assert proposal is not None
        engine.tell(ended(proposal, "out of memory" if index in (0, 1) else "done", metric=-float(index)))
    survivors = [engine.ask() for _ in range(3)]
    expected = [first[index].draws for index in (2, 3, 4)]  # pyright: ignore[reportOptionalMemberAccess]
    assert [proposal.draws for proposal in survivors if proposal] == expected


def test_a_serial_bracket_waits_for_its_round_and_a_parallel_one_does_not():
    for mode, waits in (("serial", True), ("parallelism", False)):
        engine = SearchEngine(make(Tool(name="Hyperband", arguments={"R": 9, "eta": 3, "exec_mode": mode})))
        asked = [engine.ask() for _ in range(10)]
        assert (asked[-1] is None) is waits
        assert not engine.is_finished


def test_in_population_based_training_the_worst_goes_on_from_the_best():
    engine = SearchEngine(make(TUNERS["PBT"]))
    first = [engine.ask() for _ in range(4)]
    assert engine.ask() is None
    assert not engine.is_finished
    for index, proposal in enumerate(first):
        assert proposal is not None
        assert proposal.parameters["save_checkpoint_dir"] == f"/checkpoints/{index}/0"
        engine.tell(ended(proposal, metric=float(index)))
    second = [engine.ask() for _ in range(4)]
    loads = [proposal.parameters["load_checkpoint_dir"] for proposal in second if proposal]
    assert loads == ["/checkpoints/3/0", "/checkpoints/1/0", "/checkpoints/2/0", "/checkpoints/3/0"]
    kept = [before.draws == after.draws for before, after in zip(first, second, strict=True) if before and after]
    assert kept == [False, True, True, True]


def test_batch_gives_its_sets_as_they_were_written():
    engine = SearchEngine(make(TUNERS["Batch"]))
    asked = [engine.ask() for _ in range(41)]
    assert [proposal.parameters for proposal in asked if proposal] == [{"lr": 0.1, "n": n} for n in range(40)]
    assert asked[-1] is None
    assert engine.is_finished


def test_batch_needs_a_choice_between_sets():
    with pytest.raises(UsageError, match="batch tuner needs"):
        SearchEngine(StudySettings(space=SMOOTH, tuner=Tool(name="Batch")))


def test_a_trial_without_a_number_teaches_nothing_and_breaks_nothing():
    engine = SearchEngine(make(TUNERS["TPE"]))
    for _ in range(8):
        proposal = engine.ask()
        assert proposal is not None
        engine.tell(TrialRecord(proposal=proposal, outcome=TrialOutcome(kind="done")))
    assert all(lesson.losses is None for lesson in engine.history)


@pytest.mark.parametrize(
    ("kind", "peak_bytes", "violation"),
    [
        ("done", 900.0, -0.1),
        ("done", 1500.0, 0.5),
        ("over the limit", 1500.0, 0.5),
        ("out of memory", 900.0, 1e-3),
        ("out of memory", None, 1.0),
        ("failed", 900.0, None),
        ("stopped early", 900.0, -0.1),
    ],
)
def test_a_trial_says_by_which_part_of_the_limit_it_is_above_or_below(
    kind: str, peak_bytes: float | None, violation: float | None
):
    proposal = Proposal(number=0, parameters={"lr": 0.1})
    figures = {} if peak_bytes is None else {"peak": measured(peak_bytes, "bytes", "invented")}
    study = make(TUNERS["Random"], memory=MemoryRule(use="limit", limit_bytes=1000))
    lesson = lesson_of(ended(proposal, kind, **figures), study)  # pyright: ignore[reportArgumentType]
    assert lesson.violation == (violation if violation is None else pytest.approx(violation))
    assert (lesson.losses is not None) is (kind == "done" and peak_bytes == 900.0)


def test_a_rejected_point_is_judged_by_its_prediction():
    predicted = Figure(value=3000.0, unit="bytes", source="predicted")
    trial = ended(Proposal(number=0, parameters={}), "rejected by prediction", predicted_peak=predicted)
    study = make(TUNERS["Random"], memory=MemoryRule(use="limit", limit_bytes=1000))
    assert lesson_of(trial, study).violation == pytest.approx(2.0)


@pytest.mark.slow
def test_two_objectives_find_a_front_rather_than_a_point():
    """With memory as an objective the late trials spread over sizes; with the metric alone they gather at the top."""
    spreads = {}
    for use in ("objective", "report"):
        engine = SearchEngine(
            StudySettings(
                space=SearchSpace(parameters=(Span(name="size", low=0, high=1), Span(name="x", low=0, high=1))),
                tuner=Tool(name="TPE", arguments={"tpe_args": {"n_startup_jobs": 10}}),
                goal=Goal(direction="maximize"),
                memory=MemoryRule(use=use),  # pyright: ignore[reportArgumentType]
                seed=3,
            )
        )
        sizes = []
        for _ in range(60):
            proposal = engine.ask()
            assert proposal is not None
            size = proposal.parameters["size"]
            sizes.append(size)
            peak = measured(1e9 * size, "bytes", "invented")
            engine.tell(ended(proposal, metric=size - (proposal.parameters["x"] - 0.5) ** 2, peak=peak))
        spreads[use] = sum(size < 0.5 for size in sizes[-30:])
    assert spreads["report"] <= 3
    assert spreads["objective"] >= 8


def test_the_gaussian_process_serves_smac_and_says_so():
    pytest.importorskip("torch")
    engine = SearchEngine(make(Tool(name="SMAC", arguments={"cold_start_num": 3})))
    assert "Gaussian process" in engine.notes[0]
    for _ in range(5):
        proposal = engine.ask()
        assert proposal is not None
        engine.tell(ended(proposal, "out of memory" if proposal.number == 2 else "done"))


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (Tool(name="Evolution", arguments={"population_size": 0}), "population_size is not a whole number from 1"),
        (Tool(name="Evolution", arguments={"population_size": 2.5}), "population_size is not a whole number"),
        (Tool(name="TPE", arguments={"tpe_args": {"constant_liar_type": "none"}}), "best, worst, mean or null"),
        (Tool(name="TPE", arguments={"tpe_args": {"gama": 1}}), "tpe_args is not understood"),
        (Tool(name="Hyperband", arguments={"exec_mode": "fast"}), "serial or parallelism"),
        (Tool(name="Nobody"), "there is no such tuner"),
        (Tool(name="PPOTuner"), "searches architectures"),
        (Tool(name="Random", arguments={"population": 3}), "takes no argument"),
    ],
)
def test_wrong_tuners_are_refused_before_anything_runs(tool: Tool, message: str):
    with pytest.raises(UsageError, match=message):
        SearchEngine(make(tool))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["Random", "GridSearch", "Evolution", "Hyperband", "PBT"]),
    st.lists(st.sampled_from(["done", "failed", "out of memory", "stopped early", "cancelled"]), max_size=40),
    st.integers(1, 5),
)
def test_whatever_becomes_of_the_trials_the_study_goes_on(name: str, kinds: list[str], concurrency: int):
    engine = SearchEngine(make(TUNERS[name]))
    running: list[Proposal] = []
    for kind in kinds:
        while len(running) < concurrency and (proposal := engine.ask()) is not None:
            running.append(proposal)
        assert running, "nothing runs and nothing is asked: the study would hang"
        engine.tell(ended(running.pop(0), kind))
