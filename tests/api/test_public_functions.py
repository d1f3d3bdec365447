"""Does every public function say what it takes, show an example, and name the nearest option when one is misspelt?"""

from __future__ import annotations

import inspect
from pathlib import Path

import click
import pytest

import memfit
from memfit import api
from memfit.commands.fit import command as fit_command
from memfit.commands.study import command as study_command
from memfit.errors import UsageError
from memfit.fit.options import FitOptions
from memfit.records.study import SearchSpace, StudySettings
from memfit.study.options import StudyOptions

FUNCTIONS = sorted(name for name in memfit.__all__ if inspect.isfunction(getattr(memfit, name)))
LEFT = {"predict_peak"}
"""Gets its options record by itself."""


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in LEFT])
def test_a_public_function_has_a_full_signature_and_an_example(name: str):
    function = getattr(memfit, name)
    signature = inspect.signature(function)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())
    assert signature.return_annotation is not inspect.Signature.empty
    assert ">>> " in (function.__doc__ or "")


@pytest.mark.parametrize(
    ("name", "wrong", "meant"),
    [
        ("run_study", "trails", "trials"),
        ("fit_to_budget", "bugdet", "budget"),
        ("fit_script", "argument", "arguments"),
        ("measure_run", "interval", "interval_seconds"),
        ("measure_command", "ouput", "output"),
        ("explain_study", "quantify", "quantity"),
        ("replay_snapshot", "memory", "memory_bytes"),
        ("write_report", "predicted", "prediction"),
        ("draw_study", "foldr", "folder"),
        ("read_study", "storge", "storage"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest_one(name: str, wrong: str, meant: str):
    with pytest.raises(TypeError, match=rf"{name}\(\) has no option '{wrong}'; did you mean '{meant}'\?"):
        getattr(memfit, name)(**{wrong: 1})


def test_an_option_like_no_other_is_answered_with_all_of_them():
    with pytest.raises(TypeError, match="its options are study, quantity"):
        memfit.explain_study(zzz=1)  # pyright: ignore[reportCallIssue]


def test_the_names_in_the_package_and_for_the_type_checker_are_those_of_api():
    source = Path(inspect.getsourcefile(memfit) or "").read_text(encoding="utf-8")
    for name in memfit.__all__:
        assert name == "__version__" or name == "MemfitError" or getattr(memfit, name) is getattr(api, name)
        assert f"        {name},\n" in source or name in ("__version__", "MemfitError")


def options_of(command: click.Command) -> set[str]:
    return {parameter.name or "" for parameter in command.params if isinstance(parameter, click.Option)}


OF_STOP_AND_EXPORT = {"now", "trial", "to"}
"""Options of `memfit study stop` and `export`, which run nothing."""


def test_the_options_of_a_study_have_one_name_from_the_command_line_to_the_session():
    record = set(StudyOptions.__struct_fields__)
    assert set(inspect.signature(memfit.run_study).parameters) - {"target", "progress"} == record
    assert options_of(study_command) - {"quiet", "as_json", "figures", *OF_STOP_AND_EXPORT} == record


def test_the_options_of_fit_have_one_name_from_the_command_line_to_the_place_that_obeys_them():
    record = set(FitOptions.__struct_fields__)
    taken = {name for function in (api.fit_target, api.fit_script) for name in inspect.signature(function).parameters}
    assert taken - {"target", "say"} == record
    flags = {parameter.name or "" for parameter in fit_command.params}
    assert flags - {"target", "as_json"} == record - {"measure_every"}


def test_a_study_that_goes_on_is_not_removed_first(tmp_path: Path):
    """It was: `memfit study resume FOLDER --force` deleted the study and then found none."""
    (tmp_path / "s").mkdir()
    with pytest.raises(UsageError, match="goes on with the settings it has"):
        memfit.run_study(None, output=tmp_path / "s", overwrite=True)
    assert (tmp_path / "s").exists()


def test_options_that_would_have_no_effect_are_refused(tmp_path: Path):
    settings = StudySettings(space=SearchSpace(parameters=()), command="true")
    with pytest.raises(UsageError, match="part of the settings"):
        memfit.run_study(settings, output=tmp_path / "s", trials=3)
    with pytest.raises(UsageError, match="goes on with the settings it has"):
        memfit.run_study(None, output=tmp_path / "s", seed=3)
    with pytest.raises(UsageError, match="memfit reproduce hyperparameters --data mnist"):
        memfit.run_study("paper-mnist", output=tmp_path / "s")
    assert not (tmp_path / "s").exists()
