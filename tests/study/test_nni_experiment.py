"""Do programs and commands written for NNI drive studies: nni.experiment, nnictl, advisors, spaces of a tuner's own?"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from study_jobs import WAITS, carriers, wait_until

from memfit.api import nni_environment
from memfit.records.study import Intermediate, Proposal, StudySettings, TrialOutcome, TrialRecord
from memfit.study.engine.advisor import EVENTS
from memfit.study.engine.engine import SearchEngine
from memfit.study.files.kinds import read_study_file
from memfit.study.folder import read_folder
from memfit.study.trials.files import shim_folder

PROGRAM = """
import json, sys
from nni.experiment import Experiment

experiment = Experiment("local")
config = experiment.config
config.experiment_name = "two"
config.trial_command = sys.executable + " trial.py"
config.trial_code_directory = "code"
config.search_space = {"x": {"_type": "choice", "_value": [3, 1, 2]}}
config.tuner.name = "GridSearch"
config.tuner.class_args["optimize_mode"] = "maximize"
config.max_trial_number = 2
config.trial_concurrency = 1
config.training_service.use_active_gpu = True
ended = experiment.run(8123)
jobs = experiment.list_trial_jobs()
metrics = experiment.get_job_metrics()
print(json.dumps({
    "ended": ended, "id": experiment.id, "status": experiment.get_status(),
    "statistics": experiment.get_job_statistics(),
    "results": [[result.parameter, result.value] for result in experiment.export_data()],
    "jobs": [[job.sequenceId, job.status, job.hyperParameters[0].parameters] for job in jobs],
    "metrics": [[[each.type, each.data] for each in metrics[job.trialJobId]] for job in jobs],
    "most": experiment.get_experiment_profile()["params"]["maxTrialNumber"],
}))
try:
    config.trial_comand = "misspelt"
except AttributeError as error:
    print(error)
experiment.stop()
"""
TRIAL = """
import nni
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result(x / 10)
nni.report_final_result({"default": x, "loss": -x})
"""


def environment(folder: Path) -> dict[str, str]:
    """What `memfit nni` sets, with experiments in a place of the test's own."""
    return {**os.environ, **nni_environment(os.environ), "MEMFIT_NNI_HOME": str(folder / "home")}


def nnictl(folder: Path, *words: str) -> str:
    command = [sys.executable, str(shim_folder() / "bin" / "nnictl"), *words]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_program_with_an_experiment_runs_a_study_and_gets_what_nni_would_give_it(tmp_path: Path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "trial.py").write_text(TRIAL)
    (tmp_path / "main.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "memfit", "nni", sys.executable, "main.py"]
    home = {**os.environ, "MEMFIT_NNI_HOME": str(tmp_path / "home")}
    done = subprocess.run(words, cwd=tmp_path, env=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert found.pop("ended") is True
    study = read_folder(tmp_path / "home" / found["id"])
    assert study.study_id == found.pop("id")
    assert all(trial.peak.value for trial in study.trials)
    assert found == {
        "status": "DONE",
        "statistics": [{"trialJobStatus": "SUCCEEDED", "trialJobNumber": 2}],
        "results": [[{"x": 3}, {"default": 3.0, "loss": -3}], [{"x": 1}, {"default": 1.0, "loss": -1}]],
        "jobs": [
            [0, "SUCCEEDED", {"x": 3}],
            [1, "SUCCEEDED", {"x": 1}],
        ],
        "metrics": [
            [["PERIODICAL", 0.3], ["FINAL", {"default": 3.0, "loss": -3}]],
            [["PERIODICAL", 0.1], ["FINAL", {"default": 1.0, "loss": -1}]],
        ],
        "most": 2,
    }
    assert "ExperimentConfig does not have field trial_comand" in done.stdout


def test_a_config_that_cannot_be_run_is_an_error_of_the_program_with_the_reason(tmp_path: Path):
    (tmp_path / "main.py").write_text(PROGRAM.replace("GridSearch", "GridSearsh"))
    (tmp_path / "code").mkdir()
    words = [sys.executable, "main.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 1
    assert "RuntimeError: memfit: experiment.json: tuner.name: there is no such tuner" in done.stderr
    assert "did you mean GridSearch?" in done.stderr


def test_a_program_for_another_platform_is_told_what_to_do(tmp_path: Path):
    """NNI's own example of a hybrid experiment imports the machines of its remote half."""
    words = [sys.executable, "-c", "from nni.experiment import Experiment, RemoteMachineConfig"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 1
    assert "RemoteMachineConfig is for another platform than 'local'" in done.stderr
    assert "memfit study --on slurm" in done.stderr


CONFIG = """
experimentName: waiting
trialCommand: PYTHON trial.py
trialCodeDirectory: .
trialConcurrency: 1
maxTrialNumber: 2
searchSpace: {x: {_type: choice, _value: [0.5, 0.25, 0.125]}}
tuner: {name: GridSearch}
trainingService: {platform: local}
"""


@pytest.mark.slow
def test_nnictl_creates_lists_ends_a_trial_stops_resumes_and_exports(tmp_path: Path):
    (tmp_path / "trial.py").write_text(WAITS)
    (tmp_path / "config.yml").write_text(CONFIG.replace("PYTHON", sys.executable))
    nnictl(tmp_path, "create", "--config", "config.yml", "--port", "8124")
    (entry,) = json.loads((tmp_path / "home" / ".memfit-experiments.json").read_text()).values()
    folder = Path(entry["folder"])
    listed = nnictl(tmp_path, "experiment", "list").splitlines()[1].split()
    assert listed[:4] == [folder.name, "waiting", "RUNNING", "8124"]
    (first,) = wait_until(lambda: json.loads(nnictl(tmp_path, "trial", "ls")), "the first trial")
    assert (first["status"], first["hyperParameters"][0]["parameters"]) == ("RUNNING", {"x": 0.5})
    nnictl(tmp_path, "trial", "kill", "--trial_id", first["trialJobId"])
    wait_until(lambda: len(json.loads(nnictl(tmp_path, "trial", "ls"))) == 2, "the second trial")
    nnictl(tmp_path, "update", "trialnum", "--value", "3")
    wait_until(lambda: read_folder(folder).settings.max_trials == 3, "the request")
    nnictl(tmp_path, "stop")
    assert "no experiment running" in nnictl(tmp_path, "experiment", "list")
    assert carriers(f"NNI_EXP_ID={folder.name}") == []
    (tmp_path / "go").touch()
    nnictl(tmp_path, "resume", folder.name, "--foreground")
    jobs = json.loads(nnictl(tmp_path, "trial", "ls"))
    assert [job["status"] for job in jobs] == ["USER_CANCELED", "SUCCEEDED", "SUCCEEDED"]
    assert [json.loads(nnictl(tmp_path, "experiment", "status"))["status"]] == ["DONE"]
    nnictl(tmp_path, "experiment", "export", "--type", "csv", "--filename", "out.csv", "--intermediate")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [(row["x"], row["reward"], row["intermediate"]) for row in rows] == [
        ("0.25", "0.25", "[0.25]"), ("0.125", "0.125", "[0.125]"),
    ]  # fmt: skip
    assert "0.25" in nnictl(tmp_path, "view", folder.name)


# ---- advisors, and spaces of a tuner's own ----

ADVISOR = '''
import json
from nni.runtime.msg_dispatcher_base import MsgDispatcherBase
from nni.runtime.tuner_command_channel import CommandType


class Ladder(MsgDispatcherBase):
    """Asks for 10, 11, ... up to `most`; ends every other trial once one of them falls; remembers everything."""

    def __init__(self, most):
        super().__init__()
        self.most, self.heard, self.sent = most, [], 0

    def handle_initialize(self, data):
        self.heard.append(("space", data))
        self.send(CommandType.Initialized, "")

    def handle_request_trial_jobs(self, data):
        for _ in range(data):
            if self.sent == self.most:
                self.send(CommandType.NoMoreTrialJobs, "")
                return
            new = {"parameter_id": 100 + self.sent, "parameters": {"x": 10 + self.sent}}
            self.sent += 1
            self.send(CommandType.NewTrialJob, json.dumps(new))

    def handle_report_metric_data(self, data):
        self.heard.append((data["type"], data["parameter_id"], data["sequence"], json.loads(data["value"])))
        if data["type"] == "PERIODICAL" and json.loads(data["value"]) < 0:
            self.send(CommandType.KillTrialJob, json.dumps("t0"))

    def handle_trial_end(self, data):
        self.heard.append((data["event"], data["trial_job_id"], json.loads(data["hyper_params"])["parameters"]))

    def handle_import_data(self, data):
        self.heard.append(("imported", data))
'''


@pytest.fixture
def code(tmp_path: Path) -> Iterator[str]:
    """A folder with the advisor, and an import system that is left as it was found."""
    (tmp_path / "made_advisor.py").write_text(ADVISOR)
    before, path = set(sys.modules), list(sys.path)
    yield str(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("nni", "made_advisor"):
            del sys.modules[name]


def advised(code: str, most: int = 3) -> StudySettings:
    written = {"anything": [1, 2], "of": {"its": "own"}}
    path = Path(code) / "config.json"
    tuner = {"className": "made_advisor.Ladder", "codeDirectory": ".", "classArgs": {"most": most}}
    config = {"searchSpace": written, "trialCommand": "true", "trialConcurrency": 2, "tuner": tuner}
    path.write_text(json.dumps(config))
    return read_study_file(path)


def record(proposal: Proposal | None, kind: str = "running", values: tuple[float, ...] = ()) -> TrialRecord:
    assert proposal is not None
    reports = tuple(Intermediate(sequence=step, value=value) for step, value in enumerate(values))
    return TrialRecord(
        proposal=proposal, trial_id=f"t{proposal.number}", intermediates=reports,
        outcome=TrialOutcome(kind=kind),  # pyright: ignore[reportArgumentType]
        metric=float(proposal.parameters["x"]) if kind == "done" else None,
    )  # fmt: skip


def test_an_advisor_gets_the_messages_of_nni_and_ends_whichever_trial_it_wants(code: str):
    engine = SearchEngine(advised(code))
    first, second = engine.ask(), engine.ask()
    assert [each.parameters for each in (first, second) if each] == [{"x": 10}, {"x": 11}]
    assert not engine.assess(record(second, values=(0.5,))).stop
    assert not engine.assess(record(second, values=(0.5, -1.0))).stop
    assert [name for name, _ in engine.take_ends()] == ["t0"]
    assert engine.take_ends() == []
    engine.tell(record(first, "stopped early", values=(0.25,)))
    third = engine.ask()
    engine.tell(record(second, "done", values=(0.5, -1.0, 2.0)))
    assert engine.ask() is None
    assert not engine.is_finished
    engine.tell(record(third, "out of memory"))
    assert engine.ask() is None
    assert engine.is_finished
    assert engine.tuner.advisor.heard == [  # pyright: ignore[reportAttributeAccessIssue]
        ("space", {"anything": [1, 2], "of": {"its": "own"}}),
        ("PERIODICAL", 101, 0, 0.5),
        ("PERIODICAL", 101, 1, -1.0),
        ("PERIODICAL", 100, 0, 0.25),
        ("EARLY_STOPPED", "t0", {"x": 10}),
        ("PERIODICAL", 101, 2, 2.0),
        ("FINAL", 101, 0, 11.0),
        ("SUCCEEDED", "t1", {"x": 11}),
        ("FAILED", "t2", {"x": 12}),
    ]


def test_after_a_restart_an_advisor_gets_the_ended_trials_as_imported_data(code: str):
    engine = SearchEngine(advised(code))
    first, second = engine.ask(), engine.ask()
    ended = engine.tell(record(first, "done"))
    resumed = SearchEngine(advised(code))
    resumed.restore([ended, record(second)])
    assert resumed.ask() is not None
    heard = resumed.tuner.advisor.heard  # pyright: ignore[reportAttributeAccessIssue]
    assert heard[1:] == [("imported", [{"parameter": {"x": 10}, "value": 10.0}])]


def test_an_advisor_gets_the_end_of_a_point_that_was_rejected_by_prediction(code: str):
    engine = SearchEngine(advised(code))
    first = engine.ask()
    engine.tell(record(first, "rejected by prediction"))
    assert engine.ask() is not None
    assert ("FAILED", "t0", {"x": 10}) in engine.tuner.advisor.heard  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("update_trial_concurrency(0)", "'the concurrency is a whole number from 1 on, found 0'"),
        ("update_trial_concurrency('two')", "found"),
        ("update_max_trial_number(-3)", "the number of trials"),
        ("update_max_experiment_duration('3 weeks')", "30s, 10m or 2h"),
        ("update_max_experiment_duration('')", "30s, 10m or 2h"),
        ("update_max_experiment_duration(-1)", "30s, 10m or 2h"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_before_it_is_sent(call: str, found: str):
    words = (
        f"from nni.experiment import Experiment\ntry:\n    Experiment('local').{call}\n"
        "except ValueError as error:\n    print(repr(str(error)))"
    )
    path = {**os.environ, "PYTHONPATH": str(shim_folder())}
    said = subprocess.run([sys.executable, "-c", words], env=path, capture_output=True, text=True, check=True).stdout
    assert found in said


@pytest.mark.parametrize(
    "body", ['{"concurrency": 0}', '{"max_trials": -1}', '{"max_seconds": 0}', '{"other": 1}', "["]
)
def test_a_request_that_makes_no_sense_is_refused_by_the_coordinator(tmp_path: Path, body: str):
    """A concurrency of nothing would end the study without a word."""
    from memfit.study.control import take_requests

    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "a.json").write_text(body)
    taken, refused = take_requests(tmp_path)
    assert (taken, len(refused)) == ([], 1)
    assert not list((tmp_path / "requests").iterdir())


def test_the_two_lists_of_nni_s_words_for_the_end_of_a_trial_agree():
    words = "from nni.experiment.data import STATUSES; import json; print(json.dumps(STATUSES))"
    path = {**os.environ, "PYTHONPATH": str(shim_folder())}
    found = json.loads(subprocess.check_output([sys.executable, "-c", words], env=path))
    assert {name: word for name, word in found.items() if name != "running"} == EVENTS


def test_a_custom_tuner_gets_its_space_as_it_is_written_and_others_are_refused_one_of_their_own(tmp_path: Path):
    written = {"free": {"_type": "randint", "_value": [0.5, 2.5]}, "odd": 7}
    config = {"trialCommand": "true", "trialConcurrency": 1, "searchSpace": written}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "tuner": {"className": "its.Own"}}))
    assert read_study_file(path).space.written == written
    path.write_text(json.dumps({**config, "searchSpace": {}, "tuner": {"className": "its.Own"}}))
    assert read_study_file(path).space.written == {}
    path.write_text(json.dumps({**config, "tuner": {"name": "Random"}}))
    with pytest.raises(Exception, match="odd"):
        read_study_file(path)


def test_expressions_of_parameters_follow_the_same_random_state_as_numpy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(shim_folder()))
    from nni import parameter_expressions as draw  # pyright: ignore[reportMissingImports]

    def fresh() -> np.random.RandomState:
        return np.random.RandomState(7)

    assert draw.uniform(2, 5, fresh()) == fresh().uniform(2, 5)
    assert draw.loguniform(0.1, 10, fresh()) == pytest.approx(np.exp(fresh().uniform(np.log(0.1), np.log(10))))
    assert draw.quniform(0, 10, 3, fresh()) == min(np.round(fresh().uniform(0, 10) / 3) * 3, 10)
    assert draw.qlognormal(1, 2, 0.5, fresh()) == np.round(np.exp(fresh().normal(1, 2)) / 0.5) * 0.5
    assert draw.choice("abc", fresh()) == "abc"[fresh().randint(3)]
    assert isinstance(draw.quniform(0, 10, 1, fresh()), float)
