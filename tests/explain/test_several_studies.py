"""Are several studies shown side by side, and is what differs between them found at equal hyperparameters?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from made_studies import made_study

from memfit.explain.study.several_studies import explain_studies
from memfit.records.study import Study
from memfit.show.terminal.findings import studies_text, study_rows
from memfit.units import MIB


def named(study: Study, name: str) -> Study:
    return msgspec.structs.replace(study, settings=msgspec.structs.replace(study.settings, name=name))


def test_a_study_that_takes_more_at_equal_hyperparameters_is_found_with_its_size():
    digits = named(made_study(lambda row, place: 0.5 * row["batch_size"], seed=1), "digits")
    photos = named(made_study(lambda row, place: 0.5 * row["batch_size"] + 80, seed=2), "photos")
    found = explain_studies([digits, photos])
    (level,) = [each for each in found.between if each.subjects == ("photos", "digits")]
    assert level.verdict == "found"
    assert level.effect is not None
    assert level.effect.low is not None
    assert level.effect.high is not None
    assert level.effect.low <= 80 * MIB <= level.effect.high
    text = studies_text(found, width=120)
    assert "digits" in text
    assert "photos" in text
    assert text.count("found: +") >= 2  # the batch, in each of them


def test_a_hyperparameter_that_acts_in_one_study_only_is_named():
    flat = named(made_study(seed=1), "flat")
    steep = named(made_study(lambda row, place: 0.4 * row["width"], seed=2), "steep")
    found = explain_studies([flat, steep])
    assert any(each.subjects == ("width",) and "does not act alike" in each.sentence for each in found.between)


def test_studies_of_one_name_are_distinguished_and_one_without_trials_is_shown_as_such():
    study = made_study(num_trials=12)
    empty = msgspec.structs.replace(study, trials=())
    found = explain_studies([study, study, empty])
    assert [each.title for each in found.studies] == ["made (1)", "made (2)", "made (3)"]
    assert found.studies[2].num_trials == 0
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) is not None
    assert "unknown" in studies_text(found, width=120)


def test_a_difference_that_is_not_found_is_not_called_chance_when_its_interval_is_without_zero():
    """Several questions share one error rate: an interval by itself may be without zero and the verdict open."""
    kept = 0
    for seed in range(12):
        small = named(made_study(seed=2 * seed), "small")
        large = named(made_study(lambda row, place: 3.2, seed=2 * seed + 1), "large")
        for each in explain_studies([small, large]).between:
            if each.verdict != "cannot tell" or each.effect is None:
                continue
            assert each.effect.low is not None
            assert each.effect.high is not None
            holds_zero = each.effect.low <= 0 <= each.effect.high
            assert ("could be anything" in each.sentence) == holds_zero, each.sentence
            assert ("perhaps" in each.sentence) == (not holds_zero), each.sentence
            kept += not holds_zero
    assert kept, "no study of these has the case that is meant"


def test_a_hyperparameter_that_is_called_study_is_not_replaced_by_the_study():
    def renamed(study: Study, name: str) -> Study:
        trials = tuple(
            msgspec.structs.replace(
                trial,
                proposal=msgspec.structs.replace(
                    trial.proposal,
                    parameters={("study" if key == "width" else key): v for key, v in trial.parameters.items()},
                ),
            )
            for trial in study.trials
        )
        return named(msgspec.structs.replace(study, trials=trials), name)

    flat = renamed(made_study(seed=1), "flat")
    steep = renamed(made_study(lambda row, place: 0.4 * row["width"], seed=2), "steep")
    found = explain_studies([flat, steep])
    assert any(each.subjects == ("study",) and "does not act alike" in each.sentence for each in found.between)


def changed(study: Study, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Study:
    """The same trials with other hyperparameters."""
    proposals = [msgspec.structs.replace(t.proposal, parameters=change(t.parameters)) for t in study.trials]
    pairs = zip(study.trials, proposals, strict=True)
    return msgspec.structs.replace(
        study, trials=tuple(msgspec.structs.replace(trial, proposal=proposal) for trial, proposal in pairs)
    )


def test_studies_that_differ_in_a_setting_that_neither_varied_are_not_compared_at_equal_hyperparameters():
    short = changed(named(made_study(seed=1), "short"), lambda row: {**row, "length": 128})
    long = changed(named(made_study(lambda row, place: 80, seed=2), "long"), lambda row: {**row, "length": 512})
    (only,) = explain_studies([short, long]).between
    assert only.verdict == "cannot tell"
    assert "length changed along with them" in only.sentence


def test_studies_without_a_hyperparameter_in_common_are_not_compared_and_absent_is_not_constant():
    first = changed(named(made_study(seed=1), "first"), lambda row: {"lr": row["lr"], "depth": 3})
    second = changed(named(made_study(seed=2), "second"), lambda row: {"width": row["width"]})
    found = explain_studies([first, second])
    assert [each.verdict for each in found.between] == ["cannot tell"]
    assert "no hyperparameter in common" in found.between[0].sentence
    rows = dict(study_rows(found))
    assert rows["width"][0] == "not in this study"
    assert rows["lr"][1] == "not in this study"


def test_what_only_some_studies_have_is_named_and_the_difference_stays_finite():
    nested = [
        {"opt": {"_name": "sgd", "momentum": place / 40}, "width": 32 * (place % 7)}
        if place % 2
        else {"opt": {"_name": "adam", "beta": place / 50, "fixed": 1}, "width": 32 * (place % 5)}
        for place in range(40)
    ]
    first = named(made_study(lambda row, place: row["width"] / 4, rows=nested), "first")
    second = named(made_study(lambda row, place: row["width"] / 4 + 50, seed=2), "second")
    (level,) = [each for each in explain_studies([first, second]).between if "second" in each.subjects]
    assert level.effect is not None
    assert level.effect.low is not None
    assert level.effect.high is not None
    assert -500 * MIB < level.effect.low <= 50 * MIB <= level.effect.high < 500 * MIB
    assert any("not all of them have" in line and "opt/sgd/momentum" in line for line in level.evidence)


def test_the_p_value_of_all_studies_at_once_does_not_stand_beside_one_that_takes_as_much():
    studies = [
        named(made_study(lambda row, place, s=s: 300 * (s == 2), seed=s, noise_mib=3), f"s{s}") for s in range(3)
    ]
    levels = {each.subjects[0]: each for each in explain_studies(studies).between if len(each.subjects) == 2}
    assert levels["s2"].verdict == "found"
    assert levels["s1"].verdict != "found"
    assert levels["s1"].p is None
    assert not any(line.startswith("p = ") for line in levels["s1"].evidence)


def test_bytes_per_byte_are_shown_with_the_digits_they_have():
    study = named(made_study(background=lambda place: 1e5 + 1e4 * (place % 7), num_trials=24), "made")
    cells = dict(study_rows(explain_studies([study, study])))["other programs"]
    assert all("0.00 to 0.00 " not in cell and "-0.00 " not in cell for cell in cells), cells
