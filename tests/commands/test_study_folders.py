"""Are studies listed, stopped, shown and exported, also while they run?"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memfit.commands import cli
from memfit.errors import MemfitError
from memfit.records.study import Choice, Proposal, SearchSpace, Study, StudySettings, Tool, TrialOutcome, TrialRecord
from memfit.study.folder import read_folder
from memfit.testing.made_records.studies import write_made_study

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))
from study_jobs import PATIENCE_SECONDS, WAITS, memfit_study, script, wait_until  # pyright: ignore[reportMissingImports]


def memfit(*words: str) -> Result:
    done = CliRunner().invoke(cli, list(words), catch_exceptions=True)
    if isinstance(done.exception, MemfitError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize(
    ("tuner", "tried", "state"),
    [("Random", (1, 2, 3), "done"), ("Random", (1, 2), "stopped"), ("Hyperband", (1, 2, 3), "stopped")],
)
def test_a_study_that_tried_every_point_of_its_space_is_done(
    tmp_path: Path, tuner: str, tried: tuple[int, ...], state: str
):
    space = SearchSpace(parameters=(Choice(name="x", options=(1, 2, 3)),))
    settings = StudySettings(name="small", space=space, command="true", tuner=Tool(name=tuner), max_trials=14)
    trials = [
        TrialRecord(proposal=Proposal(number=number, parameters={"x": x}), outcome=TrialOutcome(kind="done"))
        for number, x in enumerate(tried)
    ]
    write_made_study(tmp_path / "small", Study(study_id="small", settings=settings, trials=tuple(trials)))
    (entry,) = json.loads(memfit("study", "list", str(tmp_path), "--json").output)
    assert (entry["state"], entry["num_trials"]) == (state, len(tried))


def test_a_running_study_is_listed_loses_one_trial_is_stopped_and_written_as_a_table(tmp_path: Path):
    folder = tmp_path / "studies" / "waiting"
    (tmp_path / "space.json").write_text('{"x": {"_type": "choice", "_value": [1, 2, 3, 4]}}')
    line = script(tmp_path, WAITS).split()
    options = ("-o", str(folder), "--space", "space.json", "--tuner", "GridSearch", "--concurrency", "2")
    process = memfit_study(*options, "--trials", "4", "--no-figures", "--", *line, cwd=tmp_path)
    wait_until(lambda: folder.exists() and (folder / "trials" / "00001" / "metrics.jsonl").exists(), "two trials")
    (entry,) = json.loads(memfit("study", "list", str(tmp_path / "studies"), "--json").output)
    assert (entry["state"], entry["num_trials"], entry["num_wanted"]) == ("running", 0, 4)
    with pytest.raises(MemfitError, match="trial 7 of"):
        memfit("study", "stop", str(folder), "--trial", "7")
    memfit("study", "stop", str(folder), "--trial", "0")
    wait_until(lambda: read_folder(folder).trials[0].is_finished, "the end of trial 0")
    wait_until(lambda: (folder / "trials" / "00002" / "metrics.jsonl").exists(), "the next trial")
    assert "memfit study resume" in memfit("study", "stop", str(folder)).output
    (tmp_path / "go").touch()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    kinds = [trial.kind for trial in read_folder(folder).trials]
    assert kinds == ["cancelled", "done", "done"]
    assert "stopped  3 of 4" in memfit("study", "list", str(tmp_path / "studies")).output
    memfit("study", "export", str(folder), "--to", "csv", "-o", str(tmp_path / "table.csv"))
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [(row["outcome"], row["metric"], row["params_x"]) for row in rows] == [
        ("cancelled", "", "1"), ("done", "2.0", "2"), ("done", "3.0", "3"),
    ]  # fmt: skip
    assert all(int(float(row["peak_bytes"])) > 0 for row in rows)
    memfit("export", str(folder), "--to", "json", "-o", str(tmp_path / "study.json"))
    assert memfit("show", str(folder)).output == memfit("study", "show", str(folder)).output
    with pytest.raises(MemfitError, match="is not running"):
        memfit("study", "stop", str(folder))
    with pytest.raises(MemfitError, match="--now is for"):
        memfit("study", "show", str(folder), "--now")
