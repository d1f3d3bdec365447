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
