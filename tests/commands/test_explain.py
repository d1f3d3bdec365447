"""Does `memfit explain` answer in the terminal, as JSON, and refuse what is no study?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from memfit.commands import cli, main
from memfit.reproduce.hyperparameters.published_tables import published_study
from memfit.study.json_file import write_study_json


def test_a_published_table_is_explained_in_sentences():
    shown = CliRunner().invoke(cli, ["explain", "paper-mnist"]).output
    assert "trials 1-5 and trials 6-11 differ by when they were recorded" in shown
    assert shown.index("Found") < shown.index("Cannot be concluded")


def test_a_study_in_a_file_gives_the_same_findings_as_json(tmp_path: Path):
    write_study_json(published_study("mnist"), tmp_path / "study.json")
    answers = [
        json.loads(CliRunner().invoke(cli, ["explain", target, "--json"]).output)
        for target in (str(tmp_path / "study.json"), "paper-mnist")
    ]
    assert answers[0] == answers[1]
    assert answers[0]["findings"][0]["verdict"] == "found"


@pytest.mark.parametrize(
    ("content", "says"), [(None, "is no study"), ("{", "is no study's record"), ('{"study_id": 3}', "study_id")]
)
def test_what_is_no_study_is_refused(
    tmp_path: Path, content: str | None, says: str, capsys: pytest.CaptureFixture[str]
):
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(SystemExit) as left:
        main(["explain", str(tmp_path / "study.json")])
    assert left.value.code == 1
    assert says in capsys.readouterr().err
