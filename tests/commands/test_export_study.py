"""Does `memfit export` take every kind of record, say what it wrote, and refuse what a record does not have?"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from memfit import api
from memfit.commands import cli
from memfit.errors import NotARun, RecordError, UsageError
from memfit.show.as_json import to_json
from memfit.testing.made_records.studies import made_study, write_made_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies") / "mine"
    write_made_study(path, made_study(12))
    return path


def memfit(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)


def test_openmetrics_is_printed_whole_and_written_where_a_path_is_given(folder: Path, tmp_path: Path):
    printed = memfit("export", folder, "--to", "openmetrics").output
    assert printed.endswith("# EOF\n")
    memfit("export", folder, "--to", "openmetrics", "-o", tmp_path / "study.prom")
    assert (tmp_path / "study.prom").read_text() == printed


def test_event_files_go_into_the_studys_own_folder_and_are_counted(folder: Path):
    for verb in (("export",), ("study", "export")):
        shown = memfit(*verb, folder, "--to", "tensorboard").output
        assert "and 12 more" in shown
        assert f"tensorboard --logdir {folder / 'trials'}" in shown
    assert len(list(folder.rglob("events.out.tfevents.*"))) == 13


def test_figures_are_drawn_with_the_curves_that_were_asked_for_or_not_at_all(folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="no intermediate results"):
        memfit("export", folder, "--to", "figures", "--curve", "999", "-o", tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_a_study_in_json_is_a_record_and_another_file_is_none(tmp_path: Path):
    path = tmp_path / "study.json"
    path.write_bytes(to_json(made_study(3)))
    assert "memfit_study_trials" in memfit("export", path, "--to", "openmetrics").output
    path.write_text("{}")
    with pytest.raises(NotARun, match="no record of memfit"):
        memfit("export", path, "--to", "json")


def test_a_format_that_a_record_does_not_have_is_refused_with_those_it_has(folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="one of csv, json, tensorboard"):
        memfit("export", folder, "--to", "perfetto", "-o", tmp_path / "x")


def test_a_study_of_others_does_not_say_where_its_event_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A study in a JSON file names the folder it was in: that may be any folder of this machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    study = msgspec.structs.replace(made_study(3), folder=str(tmp_path / "home"))
    (tmp_path / "study.json").write_bytes(msgspec.json.encode(study))
    written = api.export_record(api.read_record("study.json"), "tensorboard")
    assert list((tmp_path / "home").iterdir()) == []
    assert all(path.resolve().is_relative_to(tmp_path / "home-tensorboard") for path in written)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format":"memfit-prediction","format_version":99}', "newer memfit"),
        ('{"format":"memfit-prediction","format_version":3,"target":', "not whole"),
        ('{"format":"memfit-grid","format_version":99}', "newer memfit"),
        ('{"format":"memfit-plan","format_version":3}', "no record of memfit"),
    ],
)
def test_a_record_that_is_damaged_or_newer_is_said_to_be_so(tmp_path: Path, text: str, said: str):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=said):
        api.read_record(path)
