"""Are several studies shown side by side, and is what differs between them found at equal hyperparameters?"""

from __future__ import annotations

import msgspec
from made_studies import made_study

from memfit.explain.study.several import explain_studies
from memfit.records.study import Study
from memfit.show.terminal.findings import studies_text
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
