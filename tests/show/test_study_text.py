"""Does the table of a study keep every hyperparameter of every trial, and every note?"""

from __future__ import annotations

import re

import msgspec
import pytest

from memfit.records.study import Study
from memfit.show.terminal.study import MOST_NOTES, study_text
from memfit.testing.made_records.studies import made_study


def with_many(study: Study, num_parameters: int) -> Study:
    """The same study with so many more hyperparameters, whose values are long."""
    extra = {f"parameter_{k:02d}": f"value-{k:02d}-{'x' * 20}" for k in range(num_parameters)}
    trials = [
        msgspec.structs.replace(t, proposal=msgspec.structs.replace(t.proposal, parameters={**t.parameters, **extra}))
        for t in study.trials
    ]
    return msgspec.structs.replace(study, trials=tuple(trials))


def test_a_text_that_could_be_taken_for_another_value_stands_in_quotes():
    values = {
        "a": "1",
        "b": 1,
        "c": "None",
        "d": None,
        "e": "true",
        "f": "",
        "g": "two words",
        "h": "relu",
        "i": "x\ny",
    }
    trial = made_study(1).trials[0]
    proposal = msgspec.structs.replace(trial.proposal, parameters=values)
    study = msgspec.structs.replace(made_study(1), trials=(msgspec.structs.replace(trial, proposal=proposal),))
    text = study_text(study, width=None)
    assert 'a="1" b=1 c="None" d=None e="true" f="" g="two words" h=relu i="x\\ny"' in text


@pytest.mark.parametrize("width", [None, 80, 120, 200])
def test_no_hyperparameter_is_ever_lost(width: int | None):
    study = with_many(made_study(20), 30)
    text = study_text(study, width=width)
    assert "…" not in text
    words = re.sub(r"\s+", " ", text)
    for trial in study.trials:
        for name, value in trial.flat_parameters.items():
            if isinstance(value, str):
                assert f"{name}={value}" in words
    assert len(re.findall(r"parameter_29=value-29-x{20}", words)) == len(study.trials)


def test_without_a_terminal_a_trial_is_one_line_with_every_digit():
    study = made_study(50)
    lines = study_text(study, width=None).splitlines()
    for trial in study.trials:
        (line,) = [line for line in lines if re.match(rf" *{trial.number}  \w", line)]
        for name, value in trial.flat_parameters.items():
            assert f"{name}={value!r}" in line.replace("=relu", "='relu'") or f"{name}={value}" in line


def test_a_line_on_a_terminal_keeps_to_its_width():
    text = study_text(with_many(made_study(5), 30), width=140)
    table = text.split("\n\n")[1]
    assert max(len(line) for line in table.splitlines()) <= 140


def test_notes_are_all_listed_or_the_missing_ones_counted():
    study = made_study(40)
    trials = [msgspec.structs.replace(t, notes=(f"note {t.number}",)) for t in study.trials]
    study = msgspec.structs.replace(study, trials=tuple(trials))
    assert study_text(study, width=None).count("1 x note ") == 40
    shown = study_text(study, width=120)
    assert shown.count("1 x note ") == MOST_NOTES
    assert f"and {40 - MOST_NOTES} more" in shown
