"""Do tuner and assessor classes that were written for NNI run unchanged, and go on after a restart?"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from study_jobs import GOOD, PATIENCE_SECONDS, memfit_study, run, script, settings_for, wait_until

from memfit.errors import UsageError
from memfit.records.study import (
    Choice,
    Goal,
    Intermediate,
    Opaque,
    Proposal,
    SearchSpace,
    Study,
    StudySettings,
    Tool,
    TrialOutcome,
    TrialRecord,
)
from memfit.study.engine.engine import SearchEngine

TUNER = '''
import nni
from nni.tuner import Tuner
from nni.utils import extract_scalar_reward


class Doubling(Tuner):
    """Asks for 1, 2, 4, ...; remembers everything it hears."""

    def __init__(self, most):
        self.most, self.heard, self.next = most, [], 1

    def update_search_space(self, search_space):
        self.heard.append(("space", search_space))

    def generate_parameters(self, parameter_id, **kwargs):
        self.heard.append(("asked", parameter_id))
        if self.next > self.most:
            raise nni.NoMoreTrialError("no more")
        self.next, value = self.next * 2, self.next
        return {"x": value, "told": sum(1 for what, *_ in self.heard if what == "result")}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        self.heard.append(("result", parameter_id, parameters["x"], extract_scalar_reward(value)))

    def receive_infeasible(self, parameter_id, parameters, violation):
        self.heard.append(("infeasible", parameter_id, violation))

    def trial_end(self, parameter_id, success, **kwargs):
        self.heard.append(("end", parameter_id, success))
'''
ASSESSOR = '''
from nni.assessor import Assessor, AssessResult


class Impatient(Assessor):
    """Stops what falls below the last result of a trial that ended well."""

    def __init__(self):
        self.bar, self.last = None, {}

    def assess_trial(self, trial_job_id, trial_history):
        value = trial_history[-1]["default"] if isinstance(trial_history[-1], dict) else trial_history[-1]
        self.last[trial_job_id] = value
        return AssessResult.Bad if self.bar is not None and value < self.bar else AssessResult.Good

    def trial_end(self, trial_job_id, success):
        if success:
            self.bar = self.last[trial_job_id]
'''


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder with both classes, and an import system that is left as it was found."""
    (tmp_path / "made_tuner.py").write_text(TUNER)
    (tmp_path / "made_assessor.py").write_text(ASSESSOR)
    before, path = set(sys.modules), list(sys.path)
    yield str(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("nni", "made_tuner", "made_assessor", "made_noting", "made_slow"):
            del sys.modules[name]


def settings_of(folder: str, most: int = 1000, **changes: object) -> StudySettings:
    return StudySettings(
        space=SearchSpace(parameters=(Choice(name="x", options=(1, 2)),)),
        tuner=Tool(class_name="made_tuner.Doubling", code_folder=folder, arguments={"most": most}),
        goal=Goal(direction="maximize"),
        **changes,  # pyright: ignore[reportArgumentType]
    )


def done(proposal: Proposal | None, kind: str = "done", others: dict[str, object] | None = None) -> TrialRecord:
    assert proposal is not None
    metric = float(proposal.parameters["x"]) if kind == "done" else None
    return TrialRecord(
        proposal=proposal,
        outcome=TrialOutcome(kind=kind),  # pyright: ignore[reportArgumentType]
        metric=metric,
        others=others or {},
        trial_id=f"t{proposal.number}",
    )


def test_a_tuner_hears_what_nni_would_tell_it_and_of_memory_if_it_asks_for_it(folder: str):
    engine = SearchEngine(settings_of(folder))
    kinds = ["done", "failed", "out of memory", "stopped early", "done"]
    for kind in kinds:
        engine.tell(done(engine.ask(), kind, {"loss": 1} if kind == "done" else None))
    engine.ask()
    heard = [entry for entry in engine.tuner.tuner.heard if entry[0] != "asked"]  # pyright: ignore[reportAttributeAccessIssue]
    assert heard == [
        ("space", {"x": {"_type": "choice", "_value": [1, 2]}}),
        ("result", 0, 1, 1.0),
        ("end", 0, True),
        ("end", 1, False),
        ("infeasible", 2, 1.0),
        ("end", 2, False),
        ("end", 3, False),
        ("result", 4, 16, 16.0),
        ("end", 4, True),
    ]


def test_a_tuner_that_has_no_more_ends_the_study_once_nothing_runs(folder: str):
    engine = SearchEngine(settings_of(folder, most=2))
    first, second = engine.ask(), engine.ask()
    assert engine.ask() is None
    assert not engine.is_finished
    engine.tell(done(first))
    engine.tell(done(second))
    assert engine.ask() is None
    assert engine.is_finished


def test_after_a_restart_the_tuner_has_heard_the_same_story(folder: str):
    unbroken = SearchEngine(settings_of(folder))
    stored: dict[int, bytes] = {}
    running: list[Proposal] = []
    for _ in range(6):
        while len(running) < 2:
            proposal = unbroken.ask()
            assert proposal is not None
            running.append(proposal)
            stored[proposal.number] = msgspec.json.encode(TrialRecord(proposal=proposal))
        trial = unbroken.tell(done(running.pop(len(running) % 2)))
        stored[trial.number] = msgspec.json.encode(trial)
        unbroken.hand_on()
    resumed = SearchEngine(settings_of(folder))
    resumed.restore(msgspec.json.decode(raw, type=TrialRecord) for raw in stored.values())
    assert resumed.ask() == unbroken.ask()
    assert resumed.tuner.tuner.heard == unbroken.tuner.tuner.heard  # pyright: ignore[reportAttributeAccessIssue]


def test_an_assessor_sees_results_as_they_were_reported_and_hears_of_ends(folder: str):
    assessor = Tool(class_name="made_assessor.Impatient", code_folder=folder)
    engine = SearchEngine(settings_of(folder, assessor=assessor))

    def reported(proposal: Proposal | None, values: list[float], kind: str = "running") -> TrialRecord:
        reports = tuple(Intermediate(sequence=i, value=value, others={"loss": 1}) for i, value in enumerate(values))
        return msgspec.structs.replace(done(proposal, kind), intermediates=reports)

    first, second = engine.ask(), engine.ask()
    assert not engine.assess(reported(first, [0.5])).stop
    engine.tell(reported(first, [0.5], "done"))
    assert not engine.assess(reported(second, [0.6])).stop
    assessment = engine.assess(reported(second, [0.6, 0.4]))
    assert assessment.stop
    assert "Impatient" in assessment.reason


NOTING = """
from nni.assessor import Assessor, AssessResult
from nni.tuner import Tuner


def note(line):
    with open("heard.txt", "a") as file:
        file.write(line + "\\n")


class Noting(Tuner):
    def __init__(self, raises_at=None):
        self.raises_at = raises_at

    def update_search_space(self, search_space):
        pass

    def generate_parameters(self, parameter_id, **kwargs):
        return {"x": parameter_id}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        note(f"result {parameter_id} {value:g}")
        if parameter_id == self.raises_at:
            raise ValueError("a bug in the tuner")

    def _on_exit(self):
        note("tuner exit")

    def _on_error(self):
        note("tuner error")


class Counting(Assessor):
    def assess_trial(self, trial_job_id, trial_history):
        return AssessResult.Good

    def trial_end(self, trial_job_id, success):
        note("assessed end")

    def _on_exit(self):
        note("assessor exit")
"""
REPORTS = (
    "import nni\nx = nni.get_next_parameter()['x']\nnni.report_intermediate_result(x)\nnni.report_final_result(x * x)"
)


def noting_study(folder: Path, **arguments: int) -> tuple[Study, list[str], list[str]]:
    """A study of three trials, two at a time; also what its classes heard, and what was said."""
    (folder / "made_noting.py").write_text(NOTING.replace("heard.txt", str(folder / "heard.txt")))
    tuner = Tool(class_name="made_noting.Noting", code_folder=str(folder), arguments=dict(arguments))
    assessor = Tool(class_name="made_noting.Counting", code_folder=str(folder))
    settings = settings_for(folder, REPORTS, tuner=tuner, assessor=assessor, max_trials=3, concurrency=2)
    study, watcher = run(settings, folder / "study")
    return study, (folder / "heard.txt").read_text().splitlines(), watcher.notes


@pytest.mark.usefixtures("folder")
def test_a_tuner_and_an_assessor_hear_of_every_trial_and_of_the_end_of_the_study(tmp_path: Path):
    study, heard, notes = noting_study(tmp_path)
    assert [trial.kind for trial in study.trials] == ["done"] * 3
    assert sorted(heard[:-2]) == ["assessed end"] * 3 + ["result 0 0", "result 1 1", "result 2 4"]
    assert heard[-2:] == ["tuner exit", "assessor exit"]
    assert notes == []


@pytest.mark.usefixtures("folder")
def test_a_tuner_that_raises_at_the_last_result_is_named_and_the_result_is_kept(tmp_path: Path):
    study, heard, notes = noting_study(tmp_path, raises_at=2)
    assert [trial.metric for trial in study.trials] == [0, 1, 4]
    assert sorted(trial.end_order for trial in study.trials if trial.end_order is not None) == [0, 1, 2]
    assert any("failed at the result of trial 2: ValueError: a bug in the tuner" in note for note in notes)
    assert heard.count("result 2 4") == 1
    assert "tuner error" in heard


def test_types_that_only_a_custom_tuner_knows_reach_it_as_they_were_written(folder: str):
    written = {"_type": "factor", "_value": [2, 8]}
    space = SearchSpace(parameters=(Opaque(name="f", written=written),))
    engine = SearchEngine(msgspec.structs.replace(settings_of(folder), space=space))
    assert engine.tuner.tuner.heard == [("space", {"f": written})]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UsageError, match="does not know the type of f"):
        SearchEngine(StudySettings(space=space, tuner=Tool(name="Random")))


@pytest.mark.parametrize(
    ("class_name", "arguments", "message"),
    [
        ("Doubling", {"most": 1}, "needs module.Class"),
        ("nowhere.Doubling", {"most": 1}, "cannot be imported"),
        ("made_tuner.Nobody", {"most": 1}, "cannot be imported"),
        ("made_tuner.Doubling", {}, "does not take its arguments"),
    ],
)
def test_a_class_that_cannot_be_made_is_refused(folder: str, class_name: str, arguments: dict[str, int], message: str):
    tool = Tool(class_name=class_name, code_folder=folder, arguments=arguments)
    with pytest.raises(UsageError, match=message):
        SearchEngine(msgspec.structs.replace(settings_of(folder), tuner=tool))


# ---- classes that take long ------------------------------------------------------------------------------------------

SLOW = '''
import os, time
from nni.tuner import Tuner


class Slow(Tuner):
    """Answers the first question at once and every other one after so many seconds, or when a file is there."""

    def __init__(self, seconds, notes):
        self.seconds, self.notes = seconds, notes

    def update_search_space(self, search_space):
        pass

    def note(self, words):
        with open(self.notes, "a") as file:
            print(words, file=file)

    def generate_parameters(self, parameter_id, **kwargs):
        deadline = time.monotonic() + self.seconds * (parameter_id > 0)
        while time.monotonic() < deadline:
            time.sleep(0.02)
        self.note(f"asked {parameter_id}")
        return {"x": parameter_id}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        self.note(f"result {parameter_id} {value:g}")

    def _on_exit(self):
        self.note("exit")
'''
SLEEPS = """
import nni, time
x = nni.get_next_parameter()["x"]
time.sleep(SECONDS)
nni.report_final_result(x)
"""


def slow_settings(folder: str, seconds: float, *, trial_seconds: float, **changes: object) -> StudySettings:
    (Path(folder) / "made_slow.py").write_text(SLOW)
    arguments = {"seconds": seconds, "notes": str(Path(folder) / "notes.txt")}
    tool = Tool(class_name="made_slow.Slow", code_folder=folder, arguments=arguments)
    text = SLEEPS.replace("SECONDS", str(trial_seconds))
    return settings_for(Path(folder), text, tuner=tool, **changes)


def test_a_tuner_that_takes_long_hears_of_everything_once_and_in_order(folder: str):
    """It is asked while trials end: their results wait until it has answered, as in NNI."""
    settings = slow_settings(folder, 0.7, trial_seconds=0.0, max_trials=4, concurrency=2)
    study, _ = run(settings, Path(folder) / "study")
    assert [trial.metric for trial in study.trials] == [0.0, 1.0, 2.0, 3.0]
    notes = (Path(folder) / "notes.txt").read_text().splitlines()
    assert [each for each in notes if each.startswith("asked")] == [f"asked {number}" for number in range(4)]
    assert sorted(each for each in notes if each.startswith("result")) == [f"result {n} {n}" for n in range(4)]
    assert notes[:2] == ["asked 0", "asked 1"]
    assert notes[-1] == "exit"


def test_a_tuner_that_does_not_answer_keeps_no_trial_beyond_its_time_and_no_study_beyond_its_own(folder: str):
    """A tuner of NNI's own tests waits in its question for a result; the study stood still for ever, and a trial whose
    time was up ran on."""
    settings = slow_settings(
        folder, 600.0, trial_seconds=50.0, max_trials=2, concurrency=2, max_trial_seconds=1.0, max_seconds=4.0
    )
    began = time.monotonic()
    study, watcher = run(settings, Path(folder) / "study")
    assert time.monotonic() - began < 40
    (trial,) = study.trials
    assert trial.kind == "out of time"
    assert trial.duration.value is not None
    assert trial.duration.value < 10
    assert any("it was still at its last call" in note for note in watcher.notes)


STUCK = """
import time
from nni.assessor import Assessor


class Stuck(Assessor):
    def assess_trial(self, trial_job_id, trial_history):
        open("stuck", "w").close()
        while True:
            time.sleep(0.02)
"""
STUCK_CONFIG = """
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialCommand: COMMAND
trialConcurrency: 1
maxTrialNumber: 2
tuner: {name: Random}
assessor: {className: made_stuck.Stuck, codeDirectory: .}
trainingService: {platform: local}
"""


def test_an_assessor_that_never_answers_does_not_keep_a_study_from_being_ended(tmp_path: Path):
    """Nothing but kill -9 ended it: what is to be done on SIGTERM was done between two rounds only."""
    (tmp_path / "made_stuck.py").write_text(STUCK)
    (tmp_path / "config.yml").write_text(STUCK_CONFIG.replace("COMMAND", script(tmp_path, GOOD)))
    process = memfit_study("config.yml", "-o", "study", "--no-figures", cwd=tmp_path)
    try:
        wait_until(lambda: (tmp_path / "stuck").exists(), "the assessor")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "ToolGivenUp: it was interrupted while it was busy" in errors
