"""Does `memfit study` read every kind of study, say how it went, and refuse what it cannot do in one line?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from memfit.commands import main

TRIAL = """
import nni
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result(x)
nni.report_final_result(x)
"""
SPACE = {"x": {"_type": "choice", "_value": [1, 2, 3]}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trial.py").write_text(TRIAL)
    (tmp_path / "space.json").write_text(json.dumps(SPACE))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def memfit(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["study", *words])
    return left.value.code if isinstance(left.value.code, int) else 0


def in_shell(*words: str) -> tuple[str, ...]:
    return ("--", sys.executable, *words)


def test_a_space_and_a_command_make_a_study(here: Path, capsys: pytest.CaptureFixture[str]):
    assert memfit("--space", "space.json", "--tuner", "GridSearch", *in_shell("trial.py")) == 0
    shown = capsys.readouterr()
    assert "3 done" in shown.out
    assert "Best: trial 0, metric 1" in shown.out
    assert shown.err.count("done") == 3
    assert (here / "memfit-studies" / "trial" / "memory.png").stat().st_size > 1000
    assert (here / "memfit-studies" / "trial" / "parallel.png").stat().st_size > 1000
    assert memfit("show", "memfit-studies/trial") == 0
    assert "x=3" in capsys.readouterr().out


def test_json_is_the_record(here: Path, capsys: pytest.CaptureFixture[str]):
    options = ("--space", "space.json", "--tuner", "Random", "--trials", "1", "--no-figures", "--json", "-q")
    assert memfit(*options, *in_shell("trial.py")) == 0
    record = json.loads(capsys.readouterr().out)
    assert [trial["outcome"]["kind"] for trial in record["trials"]] == ["done"]
    assert json.loads((here / "memfit-studies" / "trial" / "study.json").read_text())["study_id"] == record["study_id"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--job-memory", "1GiB"), "--job-memory without --on"),
        (("--env", "MEMFIT_NO_SUCH_VARIABLE"), "MEMFIT_NO_SUCH_VARIABLE"),
        (("--on", "lsf"), "no command bsub"),
    ],
)
def test_a_refused_option_makes_no_folder_and_leaves_the_study_that_is_there(
    here: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], found: str
):
    """With --overwrite, the study was gone before the option was refused."""
    study = ("--space", "space.json", "--tuner", "GridSearch", "--no-figures", "-q", "-o", "one")
    assert memfit(*study, *options, *in_shell("trial.py")) == 2
    assert found in capsys.readouterr().err
    assert not (here / "one").exists()
    assert memfit(*study, *in_shell("trial.py")) == 0
    assert memfit(*study, "-f", *options, *in_shell("trial.py")) == 2
    assert len(json.loads((here / "one" / "study.json").read_text())["trials"]) == 3


def test_a_study_whose_first_trials_all_die_alike_has_failed(here: Path, capsys: pytest.CaptureFixture[str]):
    """Exit code 1, in scripts as well; one in which some trials fail is done."""
    (here / "trial.py").write_text("raise ValueError('no such layer')")
    (here / "space.json").write_text(json.dumps({"x": {"_type": "choice", "_value": list(range(20))}}))
    study = ("--space", "space.json", "--tuner", "Random", "--no-figures", "-q")
    assert memfit(*study, "--trials", "9", "-o", "all", *in_shell("trial.py")) == 1
    assert "all failed alike" in capsys.readouterr().err
    (here / "trial.py").write_text(TRIAL + "assert nni.get_sequence_id()")
    assert memfit(*study, "--trials", "2", "-o", "some", *in_shell("trial.py")) == 0


def test_a_config_of_nni_runs_as_it_is(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "config.yml").write_text(
        f"searchSpaceFile: space.json\ntrialCommand: {sys.executable} trial.py\ntrialConcurrency: 2\n"
        "maxTrialNumber: 2\ntuner:\n  name: Random\ntrainingService:\n  platform: local\n"
    )
    assert memfit("config.yml", "--no-figures") == 0
    assert "2 done" in capsys.readouterr().out


def test_a_study_goes_on_with_more_trials(here: Path, capsys: pytest.CaptureFixture[str]):
    options = ("--space", "space.json", "--tuner", "GridSearch", "--no-figures", "-o", "mine")
    assert memfit(*options, "--trials", "1", *in_shell("trial.py")) == 0
    assert memfit("resume", "mine", "--trials", "3", "--no-figures") == 0
    assert "3 done" in capsys.readouterr().out


BAD = {
    "an unknown tuner": (("--space", "space.json", "--tuner", "Magic", "--", "true"), "Magic"),
    "no command": (("--space", "space.json"), "no command"),
    "no such file": (("nothing.toml",), "nothing.toml"),
    "no study at all": ((), "which study"),
    "a folder that is no study": (("resume", "."), "not a study"),
    "a changed study": (("resume", ".", "--seed", "3"), "seed"),
    "a bad space": (("--space", "bad.json", "--", "true"), "bad.json: lr"),
    "a space as a study": (("space.json",), "search space"),
    "published trials": (("paper-mnist",), "is now `memfit reproduce hyperparameters --data mnist`"),
    "published ranges": (("paper-cifar-10", "--random", "3"), "reproduce hyperparameters --data cifar-10"),
    "a setting of a command": (("--space", "space.json", "--set", "a=1", "--", "true"), "--set"),
    "a size without a unit": (("--space", "space.json", "--limit", "8", "--", "true"), "--limit"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_done_is_refused_in_one_clear_line(name: str, here: Path, capsys: pytest.CaptureFixture[str]):
    words, needle = BAD[name]
    (here / "bad.json").write_text('{"lr": {"_type": "uniform", "_value": [1]}}')
    assert memfit(*words) in (1, 2)
    errors = capsys.readouterr().err
    assert needle in errors
    assert "Traceback" not in errors
    assert not (here / "memfit-studies").exists()


def test_figures_show_every_parameter_also_of_branches_that_were_not_taken(here: Path):
    from memfit.records.figure import measured
    from memfit.records.study import Proposal, SearchSpace, Study, StudySettings, TrialOutcome, TrialRecord
    from memfit.show.figures.study import draw_study
    from memfit.show.views.study_axes import axes_of

    points = [{"m": {"_name": "a", "w": 1.0}, "lr": 1e-4}, {"m": {"_name": "b"}, "lr": 1e-1}]
    trials = tuple(
        TrialRecord(
            proposal=Proposal(number=number, parameters=point),
            outcome=TrialOutcome(kind="done"),
            metric=float(number),
            peak=measured(1e8 * (number + 1), "bytes", "test"),
        )
        for number, point in enumerate(points)
    )
    by_name = {axis.name: axis for axis in axes_of([trial.flat_parameters for trial in trials])}
    assert list(by_name) == ["m", "m/a/w", "lr"]
    assert by_name["m/a/w"].has_gaps
    assert by_name["m/a/w"].place(None) < 0
    assert by_name["lr"].is_log
    study = Study(study_id="s", settings=StudySettings(space=SearchSpace(parameters=())), trials=trials)
    assert [path.name for path in draw_study(study, here)] == ["memory.png", "parallel.png", "parallel_memory.png"]
