"""Does `explain` say nothing wrong of studies that nobody would plan: two trials, options of all kinds, one day?"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from made_studies import SETTINGS, made_study, made_trial

from memfit.explain.study.explain import explain_study
from memfit.explain.study.sentences.words import signed_bytes
from memfit.explain.study.statistics.inference import Base, Estimand, Rows, answer, rows_of_trials, scatter_of_points
from memfit.records.study import Study
from memfit.records.study_findings import StudyFinding, StudyFindings
from memfit.show.terminal.findings import findings_text
from memfit.show.terminal.study import study_text
from memfit.testing.oracles.contradictions import contradictions

KINDS: tuple[Any, ...] = (None, "adam", 1, 1.5, True, [64, 64], {"a": 1})
WIDTHS = ([64], [64, 64], [256, 256, 256])


def verdict_of(findings: StudyFindings, name: str) -> str:
    (finding,) = findings.about("hyperparameter", name)
    return finding.verdict


def about_time(findings: StudyFindings) -> StudyFinding:
    (finding,) = findings.about("time of day")
    return finding


def mixed_rows(num_rows: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    return [
        {"opt": KINDS[random.integers(len(KINDS))], "hidden": WIDTHS[random.integers(3)], "q": float(random.random())}
        for _ in range(num_rows)
    ]


def test_layers_and_units_that_never_changed_without_each_other_are_not_told_apart():
    """Three lists of widths are three points: any curve of the units passes through them, and so does one of layers."""
    rows = mixed_rows(80)
    findings = explain_study(made_study(lambda row, place: sum(row["hidden"]) / 20, rows=rows, noise_mib=2.0))
    verdicts = {verdict_of(findings, f"hidden: {what}") for what in ("layers", "units")}
    assert verdicts == {"found", "cannot tell"}
    assert any("moved together" in line for each in findings.findings for line in each.evidence)


def test_a_choice_of_lists_and_other_things_is_one_choice():
    rows = mixed_rows(80)
    findings = explain_study(made_study(lambda row, place: 30.0 * (row["opt"] == "adam"), rows=rows, noise_mib=2.0))
    assert verdict_of(findings, "opt") == "found"
    assert findings.about("hyperparameter", "opt: units") == ()
    assert contradictions(findings) == []


def test_within_one_day_a_drift_is_not_the_time_of_day():
    study = made_study(lambda row, place: 2.0 * place, num_trials=40, hours_each=0.5)
    findings = explain_study(study)
    assert [each.verdict for each in findings.about("order of recording")] == ["found"]
    assert about_time(findings).verdict == "cannot tell"
    assert "order of recording" in about_time(findings).sentence


def test_over_more_than_a_day_a_step_is_not_the_time_of_day():
    study = made_study(lambda row, place: 80.0 * (place >= 24), num_trials=60, hours_each=0.5)
    findings = explain_study(study)
    assert [each.verdict for each in findings.about("order of recording")] == ["found"]
    assert about_time(findings).verdict != "found"


def test_a_wave_of_several_days_is_the_time_of_day():
    study = made_study(lambda row, place: 40.0 * np.sin(place * 2 * np.pi / 24), num_trials=96, hours_each=1.0)
    assert about_time(explain_study(study)).verdict == "found"


def test_a_pair_says_what_a_drift_makes_of_it():
    random = np.random.default_rng(0)
    rows = [{"lr": float(random.random()), "width": 64} for _ in range(40)]
    findings = explain_study(made_study(lambda row, place: 5.0 * place, rows=rows))
    pairs = findings.about("pair")
    assert pairs
    assert all(any("the drift in the order of recording makes" in line for line in each.evidence) for each in pairs)


def test_trials_that_still_run_are_counted():
    study = made_study(lambda row, place: 0.0, num_trials=10)
    more = tuple(made_trial(10 + number, {"lr": 0.1}, None, kind="running") for number in range(2))
    findings = explain_study(msgspec.structs.replace(study, trials=(*study.trials, *more)))
    assert any("2 trials" in note and "running" in note for note in findings.notes)


def test_too_few_trials_say_how_many_are_needed():
    two = Study(study_id="s", settings=SETTINGS, trials=tuple(made_trial(n, {"lr": 0.1 * n}, 300 + n) for n in (1, 2)))
    assert "nothing to explain: 2 trials with a number; 3 or more are needed" in explain_study(two).notes


def test_one_trial_far_from_all_others_is_named():
    findings = explain_study(made_study(lambda row, place: 4000.0 * (place == 17), num_trials=30))
    assert any(note.startswith("trial 17 took") and "than any other" in note for note in findings.notes)
    assert not any("than any other" in note for note in explain_study(made_study(num_trials=30)).notes)


def test_sizes_that_look_alike_say_how_far_apart_they_are():
    """192 bytes on 300 MiB."""
    rows = [{"width": (64, 256)[place % 2], "lr": place / 30} for place in range(30)]
    findings = explain_study(made_study(lambda row, place: row["width"] / 2**20, rows=rows, noise_mib=0.0))
    text = findings_text(findings, width=120)
    assert "192 B apart" in text
    assert "-0 B" not in text
    assert "+0 B" not in text


def test_what_rounds_to_nothing_has_no_sign():
    assert [signed_bytes(value) for value in (-0.2, 0.2, -2.0, 3.0)] == ["0 B", "0 B", "-2 B", "+3 B"]


def test_a_step_between_two_runs_through_the_same_points_is_no_effect_of_any_point():
    """Over points it is the same everywhere, and says nothing: seed 1053 of the blocked design failed by it."""
    random = np.random.default_rng(2)
    once = [{"lr": float(random.random()), "width": int(random.choice([64, 256]))} for _ in range(15)]
    study = made_study(lambda row, place: 80.0 * (place >= 15) + row["width"] / 4, rows=[*once, *once], noise_mib=2.0)
    findings = explain_study(study)
    assert [each.verdict for each in findings.about("order of recording")] == ["found"]
    assert verdict_of(findings, "width") == "found"
    assert contradictions(findings) == []


# ---- few points, each repeated ---------------------------------------------------------------------------------------

TWO_BY_TWO = [{"amp": amp, "checkpoint": kind} for amp in (True, False) for kind in (None, "full")]


def repeated(points: list[dict[str, Any]], times: int, *, in_turn: bool = True) -> list[dict[str, Any]]:
    return [point for _ in range(times) for point in points] if in_turn else [p for p in points for _ in range(times)]


def effect_mib(findings: StudyFindings, name: str) -> tuple[float, float]:
    (finding,) = findings.about("hyperparameter", name)
    assert finding.effect is not None
    assert finding.effect.low is not None
    assert finding.effect.high is not None
    return finding.effect.low / 2**20, finding.effect.high / 2**20


def test_a_grid_of_two_by_two_with_repeats_says_what_either_does():
    """It was 'too few to tell one from the other', beside repeats that scatter by a hundredth of the difference."""
    study = made_study(
        lambda row, place: -200.0 * row["amp"] - 50.0 * (row["checkpoint"] == "full"),
        rows=repeated(TWO_BY_TWO, 6), noise_mib=2.0,
    )  # fmt: skip
    findings = explain_study(study)
    low, high = effect_mib(findings, "amp")
    assert 195 < low < 200 < high < 205
    low, high = effect_mib(findings, "checkpoint")
    assert -55 < low < -50 < high < -45
    assert findings.about("interaction") == ()
    assert "by repeats of 4 points" in findings_text(findings)
    assert contradictions(findings) == []


def test_two_that_act_together_are_seen_in_a_grid_of_two_by_two():
    study = made_study(
        lambda row, place: -100.0 * (row["amp"] and row["checkpoint"] == "full"),
        rows=repeated(TWO_BY_TWO, 5), noise_mib=2.0,
    )  # fmt: skip
    findings = explain_study(study)
    (pair,) = findings.about("interaction")
    assert pair.effect is not None
    assert abs(abs(pair.effect.value or 0.0) / 2**20 - 100) < 6
    assert "what amp adds from True to False changes by" in pair.sentence
    assert "when checkpoint is full in place of None" in pair.sentence  # it was 'high' and 'low', of options
    assert contradictions(findings) == []


def test_the_values_of_one_number_are_compared_as_they_are_not_along_a_line():
    rows = repeated([{"shards": number} for number in (1, 2, 4, 8)], 6)
    findings = explain_study(made_study(lambda row, place: 800.0 / row["shards"], rows=rows, noise_mib=2.0))
    low, high = effect_mib(findings, "shards")
    assert -705 < low < -700 < high < -695
    assert "from 1 to 8" in findings.about("hyperparameter", "shards")[0].sentence


def test_repeats_that_came_one_after_the_other_are_not_told_from_time():
    rows = repeated([{"amp": True}, {"amp": False}], 15, in_turn=False)
    findings = explain_study(made_study(lambda row, place: 40.0 * row["amp"], rows=rows, noise_mib=1.0))
    assert verdict_of(findings, "amp") == "cannot tell"
    assert "order of recording" in findings.about("hyperparameter", "amp")[0].sentence
    assert "no hyperparameter varied" not in findings_text(findings)


def test_three_points_that_differ_in_everything_stay_too_few_however_often_they_are_repeated():
    points = [{"lr": 0.1, "width": 8}, {"lr": 0.2, "width": 16}, {"lr": 0.4, "width": 99}]
    findings = explain_study(made_study(lambda row, place: row["width"], rows=repeated(points, 8), noise_mib=1.0))
    assert not [each for each in findings.about("hyperparameter") if each.verdict != "cannot tell"]


@pytest.mark.slow
def test_repeats_of_equal_points_hardly_ever_show_a_finding():
    found = 0
    for seed in range(25):
        findings = explain_study(made_study(rows=repeated(TWO_BY_TWO, 5), seed=seed))
        found += any(each.verdict == "found" for each in findings.findings)
        assert contradictions(findings) == []
    assert found <= 4


def with_one_restless_point(seed: int) -> StudyFindings:
    """Two by two, three rounds, no effect; at one point memory scatters eight times as far as at the others."""
    rows = repeated(TWO_BY_TWO, 3)
    noise_mib = np.random.default_rng([seed, 5]).normal(0, 5, len(rows))

    def rule(row: dict[str, Any], place: int) -> float:
        return float(noise_mib[place]) * (8.0 if row["amp"] and row["checkpoint"] == "full" else 1.0)

    return explain_study(made_study(rule, rows=rows, noise_mib=1e-3, seed=seed))


@pytest.mark.slow
def test_a_point_that_scatters_more_than_the_others_makes_no_findings():
    """Of 400 studies 20 may, give or take 4; it was 31, while one scatter was taken for all points."""
    found = 0
    for seed in range(400):
        findings = with_one_restless_point(seed)
        found += any(each.verdict == "found" for each in findings.findings)
        assert contradictions(findings) == []
    assert found <= 28


def test_a_difference_to_a_restless_point_is_as_unsure_as_that_point():
    """Three repeats of it have two degrees of freedom: Student's t at 4.3, where twelve trials in all gave 3.1."""
    quiet, restless = [0.0, 0.1, -0.1], [100.0, 140.0, 60.0]
    points = rows_of_trials(6).point_of // 3
    base = Base(np.column_stack([np.ones(6), points]), rows_of_trials(6))
    question = Estimand(key=("difference",), base=base, contrasts=np.array([[0.0, 1.0]]))
    y = np.array([*quiet, *restless])
    scatter = scatter_of_points(base, Rows(points, np.full(2, np.sqrt(3.0))), y)
    assert scatter is not None
    _, low, high = answer([question], y, scatter)["difference",].change
    assert (high - low) / 2 == pytest.approx(40 / np.sqrt(3) * 4.3, rel=0.1)
    _, low, high = answer([question], y)["difference",].change
    assert (high - low) / 2 < 40 / np.sqrt(3) * 3.5


# ---- the numbers beside a finding ------------------------------------------------------------------------------------


def test_what_one_hyperparameter_explains_alone_it_explains_beyond_nothing_else_as_well():
    """Alone it was looked at on both scales, beyond the rest (of which there is none) on one: 39 % and 14 %."""
    random = np.random.default_rng(7)
    rows = [{"width": int(number)} for number in np.exp(random.uniform(0, 9, 40))]
    findings = explain_study(made_study(lambda row, place: row["width"] / 20, rows=rows, noise_mib=2.0))
    (finding,) = findings.about("hyperparameter", "width")
    assert finding.share is not None
    assert finding.share_beyond is not None
    assert abs(finding.share - finding.share_beyond) < 0.01


def test_between_many_options_the_largest_difference_that_is_sure_is_told():
    """The surest was told: between two options that were tried often, and differ by little."""
    sizes = {"common": 0.0, "often": 20.0, "rare": 300.0}
    rows = [{"model": name} for name in [*["common"] * 16, *["often"] * 14, *["rare"] * 6]]
    order = np.random.default_rng(1).permutation(len(rows))
    rows = [rows[index] | {"lr": place / 100} for place, index in enumerate(order)]

    def rule(row: dict[str, Any], place: int) -> float:
        return sizes[row["model"]] + 60 * (row["model"] == "rare") * (place % 3)

    findings = explain_study(made_study(rule, rows=rows, noise_mib=0.5))
    assert "from common to rare" in findings.about("hyperparameter", "model")[0].sentence


def test_a_hyperparameter_that_followed_time_is_said_to_have_done_so():
    """Memory only drifted; the width, which rose from trial to trial, was credited `everything else held fixed`."""
    random = np.random.default_rng(2)
    widths = 100 + 20 * np.arange(40) + random.normal(0, 25, 40)
    rows: list[dict[str, Any]] = [{"width": int(width), "lr": float(random.random())} for width in widths]
    findings = explain_study(made_study(lambda row, place: 3.0 * place, rows=rows, noise_mib=1.0))
    (width,) = findings.about("hyperparameter", "width")
    assert width.verdict != "found" or "everything else but the order of recording" in width.sentence
    mixed = [rows[index] for index in random.permutation(40)]
    findings = explain_study(made_study(lambda row, place: row["width"] / 10, rows=mixed, noise_mib=1.0))
    assert "everything else held fixed" in findings.about("hyperparameter", "width")[0].sentence


def test_what_repeats_explain_is_a_share_of_all_trials():
    """Two points have two means, which explain all between points: 100 % was said beside 'no effect stands out'."""
    rows = repeated([{"alloc": "a"}, {"alloc": "b"}], 10)
    (alloc,) = explain_study(made_study(rows=rows, noise_mib=30.0, seed=3)).about("hyperparameter", "alloc")
    assert alloc.verdict != "found"
    assert alloc.share is not None
    assert alloc.share < 0.3


def test_repeated_lists_of_widths_are_compared_as_they_are():
    rows = repeated([{"hidden": widths} for widths in WIDTHS], 8)
    findings = explain_study(made_study(lambda row, place: sum(row["hidden"]) / 8, rows=rows, noise_mib=1.0))
    assert "from [64] to [256, 256, 256]" in findings.about("hyperparameter", "hidden")[0].sentence
    assert contradictions(findings) == []


def test_points_that_were_run_once_do_not_spoil_those_that_were_repeated():
    counts = {("adam", True): 6, ("adam", False): 1, ("sgd", True): 4, ("sgd", False): 1}
    rows = [{"opt": opt, "amp": amp} for (opt, amp), count in counts.items() for _ in range(count)]
    rows = [rows[index] for index in np.random.default_rng(5).permutation(len(rows))]
    findings = explain_study(made_study(lambda row, place: 100.0 * (row["opt"] == "adam"), rows=rows, noise_mib=1.0))
    assert verdict_of(findings, "opt") == "found"
    assert verdict_of(findings, "amp") != "found"


def test_a_peak_that_is_known_as_a_range_only_is_not_taken_for_a_number():
    """Jobs as small as the process that started them: one was 3 MiB beside others of 11, and nothing said that it may
    have been 11 as well."""
    study = made_study(lambda row, place: 40.0 * (place % 2), rows=[{"w": place % 2} for place in range(14)])
    first = study.trials[0]
    assert first.peak.value is not None
    peak = msgspec.structs.replace(first.peak, low=first.peak.value, high=first.peak.value + 30 * 2**20)
    unsure = msgspec.structs.replace(study, trials=(msgspec.structs.replace(first, peak=peak), *study.trials[1:]))
    (note,) = [each for each in explain_study(unsure).notes if "range" in each]
    assert "the peak of 1 trial is known as a range only, up to 30.0 MiB wide" in note
    assert not [each for each in explain_study(study).notes if "range" in each]
    assert "1 x the peak is the lower end of a range" in study_text(unsure)
    assert "lower end" not in study_text(study)
