"""Do the figures of a study show every trial and every option, over the search space, in the order of numbers?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib
import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from memfit import api
from memfit.errors import UsageError
from memfit.explain.study.law import memory_law
from memfit.records.study import (
    Branch,
    Choice,
    Goal,
    Integers,
    Intermediate,
    Nested,
    SearchSpace,
    Span,
    TrialOutcome,
    TrialOutcomeKind,
)
from memfit.records.study_findings import MemoryLaw
from memfit.show.figures.labels import number_words, text_inches, wrapped
from memfit.show.figures.line_density import counted
from memfit.show.figures.study import _memory_picture, _overlap, size_picture
from memfit.show.figures.study_curves import MOST_POINTS, curve_of, curves_picture
from memfit.show.figures.study_parallel import parallel_picture
from memfit.show.views.study_axes import (
    GAP_PLACE,
    NOT_SET,
    NULL_OPTION,
    StudyAxis,
    axes_of,
    axis_over,
    distinct_cut,
    distinct_words,
    in_order,
    placed_trials,
    point_of,
)
from memfit.show.views.study_ranking import RankedBy, rank_trials, top_groups
from memfit.testing.made_records.studies import BASE_BYTES, MADE_SPACE, PER_ACTIVATION, PER_PARAMETER, made_study


def named(axis: StudyAxis) -> list[str]:
    return [word for _, word in axis.ticks()]


# ---- axes ------------------------------------------------------------------------------------------------------------


def test_the_options_of_a_choice_are_ticks_in_the_order_of_numbers_also_those_that_were_never_tried():
    axis = axis_over("width", [100, 8], Choice(name="width", options=(1024, 8, 100, 16)))
    assert named(axis) == ["8", "16", "100", "1024"]
    assert [axis.place(value) for value in (8, 16, 1024)] == [0, 1 / 3, 1]


def test_texts_that_hold_numbers_are_ordered_as_numbers_and_words_as_they_were_written():
    assert in_order(["128-64", "64-32", "1024-8", "64-8"]) == ("64-8", "64-32", "128-64", "1024-8")
    written = Choice(name="size", options=("small", "medium", "large"))
    assert named(axis_over("size", ["large"], written)) == ["small", "medium", "large"]


def test_a_range_spans_the_space_on_its_own_scale():
    axis = axis_over("lr", [0.01], Span(name="lr", low=1e-5, high=1e-1, log=True))
    assert (axis.low, axis.high, axis.is_log) == (1e-5, 1e-1, True)
    assert axis.place(1e-3) == pytest.approx(0.5)
    assert not axis_over("x", [3.0], Span(name="x", low=0.1, high=100)).is_log
    assert named(axis_over("n", [2], Integers(name="n", low=1, end=4))) == ["1", "2", "3"]


def test_one_and_true_are_two_options_and_eight_and_eight_point_zero_one():
    axis = axis_over("x", [True, 1, 8, 8.0, [1, 2], {"a": 1}])
    assert sorted(axis.options) == ["1", "8", "[1, 2]", "true", '{"a": 1}']


def test_a_text_that_reads_like_a_number_a_truth_value_or_null_is_an_option_of_its_own():
    written = Choice(name="x", options=(None, "null", True, "true", 1, "1", 1.5))
    axis = axis_over("x", [NULL_OPTION, "null", True, "true", 1, "1", 1.0], written)
    assert axis.options == ("null", '"null"', "true", '"true"', "1", '"1"', "1.5")
    assert axis.place("1") != axis.place(1) == axis.place(1.0)
    assert axis.place(NULL_OPTION) == 0 != axis.place("null")
    assert {type(option) for option in axis.options} == {str}


def test_options_that_are_cut_stay_apart():
    options = tuple(f"timm/resnet{k}d.some_variant_in1k" for k in range(12))
    words = named(axis_over("backbone", [], Choice(name="backbone", options=options)))
    assert len(set(words)) == 12
    assert max(map(len, words)) <= 18
    alike = distinct_cut([f"{'a' * 20}{k}{'b' * 30}{k}{'c' * 20}" for k in range(3)], 18)
    assert len(set(alike)) == 3


def test_numbers_at_ticks_have_no_power_of_ten_below_a_million():
    assert distinct_words([180.0, 1000.0, 2260.4]) == ["180", "1,000", "2,260"]
    assert [number_words(value) for value in (1e4, 2.5e6, 1e-5, 0.25)] == ["10,000", "2.5 million", "1e-05", "0.25"]


def test_a_value_that_the_space_does_not_know_widens_the_axis():
    axis = axis_over("n", [50], Integers(name="n", low=1, end=4))
    assert axis.high == 50
    assert "extra" in axis_over("c", ["extra"], Choice(name="c", options=("a",))).options


def test_parameters_of_branches_have_axes_of_their_own_with_a_tick_for_not_set():
    branches = (Branch(name="a", parameters=(Span(name="w", low=0, high=1),)), Branch(name="b"))
    space = SearchSpace(parameters=(Nested(name="m", branches=branches),))
    axes = {axis.name: axis for axis in axes_of([{"m": "a", "m/a/w": 0.5}, {"m": "b"}], space)}
    assert list(axes) == ["m", "m/a/w"]
    assert axes["m/a/w"].place(None) < 0
    assert NOT_SET in named(axes["m/a/w"])


@example([1, 2.225073858507203e-309])
@example([0.0, 5e-324])
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.integers(-(10**6), 10**6), st.floats(-1e9, 1e9), st.text(max_size=5), st.booleans())
    )
)
def test_every_value_has_a_place_and_only_what_is_not_set_stands_below(values: list[object]):
    axis = axis_over("x", values)
    places = axis.places(values)
    assert len(places) == len(values)
    for value, place in zip(values, places.tolist(), strict=True):
        assert place < 0 if value is None else -1e-9 <= place <= 1 + 1e-9


# ---- ranking ---------------------------------------------------------------------------------------------------------


def test_the_best_groups_hold_100_20_5_and_1_percent_and_equal_groups_are_one():
    ranked = rank_trials(made_study(300), "metric").ranked
    metrics = [trial.metric for trial in ranked]
    assert metrics == sorted(metrics, key=lambda metric: metric or 0)
    counts = [len(chosen) for _, chosen in top_groups(ranked)]
    assert counts == [len(ranked), -(-len(ranked) // 5), -(-len(ranked) // 20), -(-len(ranked) // 100)]
    assert [title for title, _ in top_groups(ranked[:5])] == [
        "best 100%: 5 of 5 trials", "best 20%, 5%, 1%: 1 of 5 trials",
    ]  # fmt: skip


def test_ranked_trials_and_the_others_are_all_finished_trials():
    study = made_study(200)
    for by in ("metric", "memory"):
        found = rank_trials(study, by)
        assert {trial.number for trial in (*found.ranked, *found.others)} == {t.number for t in study.trials}


# ---- pictures --------------------------------------------------------------------------------------------------------


def panels_of(picture: Any) -> Any:
    """The panels of a picture that there is."""
    return picture.axes


def lines_of(panel: Any, num_points: int | None = None) -> int:
    """How many lines a panel has, all or those of so many points."""
    from matplotlib.collections import LineCollection

    lines = [line for each in panel.collections if isinstance(each, LineCollection) for line in each.get_segments()]
    return sum(num_points is None or len(line) == num_points for line in lines)


def test_ticks_that_would_be_written_over_each_other_are_turned():
    assert _overlap([(-0.12, "not set"), (0.0, "64"), (1.0, "2048")], 3.0)
    assert not _overlap([(0.0, "16"), (0.5, "64"), (1.0, "256")], 3.0)


@pytest.mark.parametrize("by", ["metric", "memory"])
def test_parallel_coordinates_draw_every_finished_trial_once_in_the_first_panel(by: RankedBy):
    study = made_study(150)
    picture = parallel_picture(study, by)
    panels = [panel for panel in panels_of(picture) if panel.get_title(loc="left")]
    assert lines_of(panels[0], 9) == len(study.trials)
    assert lines_of(panels[-1], 9) == len(top_groups(rank_trials(study, by).ranked)[-1][1])
    words = {text.get_text() for text in panels[0].texts}
    assert {"relu", "gelu", "tanh", "8", "1024", "sgd", "adam", NOT_SET, "none"} <= words
    assert len(panels[0].get_xticklabels()) == 7 + 2
    assert MADE_SPACE.parameters[0].name in panels[0].get_xticklabels()[0].get_text()


def test_names_of_axes_stand_on_lines_that_do_not_reach_their_neighbours():
    names = ["model.encoder.attention.learning_rate_of_the_second_group", "einsehrlangernameohnetrennzeichen", "x"]
    for name in names:
        lines = wrapped(name, 1.1, 9).split("\n")
        assert max(text_inches(line, 9) for line in lines) <= 1.1
        assert "".join(lines) == name


def test_very_many_lines_are_counted_and_none_is_lost_or_counted_twice():
    rows = np.random.default_rng(0).random((2000, 2))
    segments = np.column_stack([np.zeros(2000), 50 * rows[:, 0], np.full(2000, 100.0), 50 * rows[:, 1]])
    counts, sums = counted(segments, np.full(2000, 0.25), (50, 100))
    assert counts.sum(axis=0).tolist() == [2000] * 100
    np.testing.assert_allclose(sums, 0.25 * counts)


def test_a_value_far_outside_of_the_picture_costs_no_more_than_any_other():
    far = np.array([[0.0, 25.0, 100.0, 1e15], [0.0, -1e15, 100.0, -1e14], [0.0, math.nan, 100.0, 1.0]])
    counts, _ = counted(far, np.ones(3), (50, 100))
    assert 0 < counts.sum() <= 60


def test_lines_through_a_common_pixel_mix_their_shades_by_how_many_they_are():
    segments = np.array([[0.0, 10.5, 100.0, 10.5]] * 3 + [[0.0, 0.0, 100.0, 20.0]])
    counts, sums = counted(segments, np.array([0.5, 0.5, 0.5, 1.0]), (20, 100))
    assert counts[10, 0] == 3
    assert sums[10, 0] == 1.5
    assert counts[10, 52] == 4
    assert sums[10, 52] == 2.5
    assert counts[19].sum() == 5
    assert sums[19].sum() == 5


@pytest.mark.slow
def test_every_picture_is_drawn_once_and_has_its_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    original = Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: (drawn.append(self), original(self, renderer))[1])
    with matplotlib.rc_context({"savefig.dpi": 300}):  # of the user's own matplotlibrc: nine times the work
        paths = api.draw_study(made_study(60), tmp_path)
    assert len(drawn) == len(set(map(id, drawn))) == len(paths) == 5
    header = (tmp_path / "size.png").read_bytes()[16:24]
    assert [int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")] == [990, 616]


def test_the_law_that_is_drawn_is_worked_out_once(monkeypatch: pytest.MonkeyPatch):
    from memfit.explain.study import law

    asked: list[int] = []
    original = law.answer
    monkeypatch.setattr(law, "answer", lambda questions, y: (asked.append(len(questions)), original(questions, y))[1])
    assert isinstance(memory_law(made_study(60)), MemoryLaw)
    assert asked == [3]


def test_no_tick_of_any_figure_is_written_in_mathematical_type(tmp_path: Path):
    study = made_study(60)
    with matplotlib.rc_context({"text.parse_math": False}):
        picture = size_picture(study, memory_law(study))
        assert picture is not None
        picture.savefig(tmp_path / "size.png")
    words = [text.get_text() for panel in picture.axes for text in (*panel.get_xticklabels(), *panel.get_yticklabels())]
    assert "10,000" in words
    assert not [word for word in words if "$" in word]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_single_best_trial_has_the_dark_colour_of_the_best(direction: Literal["minimize", "maximize"]):
    study = made_study(20)
    study = msgspec.structs.replace(
        study, settings=msgspec.structs.replace(study.settings, goal=Goal(direction=direction))
    )
    panel = [each for each in panels_of(parallel_picture(study, "metric")) if each.get_title(loc="left")][-1]
    (color,) = {tuple(row) for each in panel.collections if lines_of_one(each) for row in each.get_colors()[:, :3]}
    assert sum(color) < 0.8


def lines_of_one(collection: Any) -> bool:
    """Whether a collection has a line through all axes; ticks and axes have two points each."""
    return any(len(segment) > 2 for segment in collection.get_segments())


def test_intermediate_results_of_chosen_trials_are_drawn_by_themselves_and_unknown_ones_refused():
    study = made_study(40)
    reporting = [trial.number for trial in study.trials if trial.intermediates]
    picture = curves_picture(study, reporting[:2])
    assert lines_of(panels_of(picture)[0]) == len(reporting)
    labels = [text.get_text() for text in panels_of(picture)[1].get_legend().get_texts()]
    assert [label.split(":")[0] for label in labels] == [f"trial {number}" for number in reporting[:2]]
    with pytest.raises(UsageError, match="no intermediate results"):
        curves_picture(study, [999])


def test_a_long_curve_keeps_its_extremes():
    values = np.random.default_rng(0).normal(size=20_000)
    reports = tuple(Intermediate(sequence=k, value=float(value)) for k, value in enumerate(values))
    trial = msgspec.structs.replace(made_study(1).trials[0], intermediates=reports)
    curve = curve_of(trial)
    assert len(curve) <= MOST_POINTS + 2
    assert (curve[:, 1].min(), curve[:, 1].max()) == (values.min(), values.max())
    assert (curve[0, 0], curve[-1, 0]) == (0, 19_999)


def test_the_law_is_drawn_where_it_holds_and_its_absence_is_written_in_the_picture():
    study = made_study(120)
    law = memory_law(study)
    assert isinstance(law, MemoryLaw)
    assert law.bytes_per_parameter == pytest.approx(PER_PARAMETER, rel=0.02)
    assert law.bytes_per_activation == pytest.approx(PER_ACTIVATION, rel=0.1)
    assert law.base_bytes == pytest.approx(BASE_BYTES, rel=0.01)
    picture = size_picture(study, law)
    labels = [text.get_text() for text in panels_of(picture)[0].get_legend().get_texts()]
    assert labels == ["law at least activations", "law at median activations", "law at most activations"]
    without = size_picture(study, "too few trials")
    assert "no law is drawn: too few trials" in panels_of(without)[0].get_title(loc="left")


@pytest.mark.slow
def mixed_figure() -> list[Axes]:
    """Memory against each hyperparameter, of trials of all kinds: a choice of three numbers in one of two branches."""
    kernel = Choice(name="kernel", options=(3, 5, 7))
    branches = (Branch(name="cnn", parameters=(kernel,)), Branch(name="mlp"))
    kinds = [kind for kind in get_args(TrialOutcomeKind) if kind != "running"]
    study = made_study(60)
    trials = []
    for place, trial in enumerate(study.trials):
        model = {"_name": "cnn", "kernel": (3, 5, 7)[place % 3]} if place % 2 else {"_name": "mlp"}
        proposal = msgspec.structs.replace(trial.proposal, parameters={"model": model})
        outcome = TrialOutcome(kind=kinds[place % len(kinds)] if place < 20 else "done")
        trials.append(msgspec.structs.replace(trial, proposal=proposal, outcome=outcome))
    space = SearchSpace(parameters=(Nested(name="model", branches=branches),))
    settings = msgspec.structs.replace(study.settings, space=space)
    study = msgspec.structs.replace(study, settings=settings, trials=tuple(trials))
    picture = _memory_picture(study, placed_trials(study))
    assert picture is not None
    return picture.axes


def test_no_two_outcomes_have_the_same_mark_in_a_figure():
    """Out of memory and over the limit were the same red cross, twice in the legend."""
    lines = [line for line in mixed_figure()[0].get_lines() if not str(line.get_label()).startswith("_")]
    marks = {str(line.get_label()): (line.get_color(), line.get_marker()) for line in lines}
    marks.pop("limit", None)
    assert len(marks) == len(get_args(TrialOutcomeKind)) - 1
    assert len(set(marks.values())) == len(marks)


def test_trials_without_a_value_are_drawn_apart_from_those_with_the_first_one():
    """`not set` lay half within the points of the first option, and so did its median."""
    (panel,) = [axes for axes in mixed_figure() if axes.get_xlabel().startswith("model/cnn")]
    places = np.concatenate([np.asarray(line.get_xdata(), dtype=float) for line in panel.get_lines()[:-1]])
    places = places[(places > -1) & (places < 0.25)]
    without, first = places[places < GAP_PLACE / 2], places[places > GAP_PLACE / 2]
    assert without.size
    assert first.size
    assert abs(without - GAP_PLACE).max() < 0.059 > abs(first).max()


def test_every_figure_is_written(tmp_path: Path):
    paths = api.draw_study(made_study(60), tmp_path)
    assert [path.name for path in paths] == [
        "memory.png", "parallel.png", "parallel_memory.png", "intermediate.png", "size.png",
    ]  # fmt: skip


@pytest.mark.slow
def test_names_and_options_of_any_kind_are_drawn_and_null_is_an_option(tmp_path: Path):
    options = (
        "a$b$",
        "\\alpha$",
        "line\nend",
        "\ud800x",
        "\N{SNOWMAN}",
        "\N{GRINNING FACE}",
        "x" * 200,
        None,
        True,
        [1],
        {"a": 1},
    )
    odd = Choice(name="$\\frac{x$ \ud800", options=options)
    study = made_study(40)
    trials = []
    for trial in study.trials:
        point = {**trial.parameters, odd.name: options[trial.number % len(options)]}
        trials.append(
            msgspec.structs.replace(trial, proposal=msgspec.structs.replace(trial.proposal, parameters=point))
        )
    space = SearchSpace(parameters=(*MADE_SPACE.parameters, odd))
    settings = msgspec.structs.replace(study.settings, name="$\\odd$ \ud800", space=space)
    study = msgspec.structs.replace(study, settings=settings, trials=tuple(trials))
    assert len(api.draw_study(study, tmp_path)) == 5
    (axis,) = [each for each in axes_of([point_of(trial) for trial in trials], space) if each.name == odd.name]
    assert not axis.has_gaps
    assert axis.place("null") > 0
