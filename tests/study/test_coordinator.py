"""Does every trial end in a record, whatever it does, and does a study keep to its settings?"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from study_jobs import GOOD, carriers, one_of, run, settings_for

from memfit.errors import RunExists, UsageError
from memfit.records.figure import Figure
from memfit.records.study import MemoryRule, Study, Tool, TrialRecord
from memfit.study.folder import read_folder
from memfit.study.options import StudyOptions
from memfit.study.session import SilentStudy, open_session
from memfit.study.trials import prediction
from memfit.study.tuners.replicated_blocks import OrderedTuner, ordered_tool
from memfit.units import MIB

HEAD = "import nni, os, sys, time\nx = nni.get_next_parameter()['x']\n"


def one_trial(folder: Path, text: str, **changes: object) -> TrialRecord:
    study, _ = run(settings_for(folder, HEAD + text, **changes), folder / "study")
    assert len(study.trials) == 1
    return study.trials[0]


def test_a_trial_is_measured_and_its_results_are_kept(tmp_path: Path):
    study, watcher = run(settings_for(tmp_path, GOOD, max_trials=3), tmp_path / "study")
    assert [trial.number for trial in study.trials] == [0, 1, 2]
    assert [trial.end_order for trial in study.trials] == [0, 1, 2]
    for trial in study.trials:
        x = trial.parameters["x"]
        assert trial.kind == "done"
        assert trial.metric == pytest.approx(x * x)
        assert [report.value for report in trial.intermediates] == pytest.approx([0, x, 2 * x])
        assert trial.peak.value is not None
        assert 4 * MIB < trial.peak.value < 200 * MIB
        assert trial.background.value is not None
        assert trial.duration.value is not None
        assert trial.epoch_time.value is not None
        assert trial.energy.value is not None or trial.energy.reason
        assert (tmp_path / "study" / trial.run_folder / "run.json").is_file()
    assert watcher.notes == []


ENDINGS = {
    "raises": ("raise ValueError('no such layer')", "failed", "no such layer"),
    "leaves with a code": ("nni.report_final_result(1)\nsys.exit(7)", "failed", "exit code 7"),
    "is killed": ("os.kill(os.getpid(), 9)", "failed", "signal 9"),
    "has no memory": ("raise MemoryError", "out of memory", "MemoryError"),
    "ends well": ("nni.report_final_result(2.5)", "done", "exit code 0"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_trial_that_dies_is_a_result(tmp_path: Path, name: str):
    text, kind, words = ENDINGS[name]
    trial = one_trial(tmp_path, text)
    assert trial.kind == kind
    assert words in trial.outcome.message
    assert (trial.metric is not None) == (kind == "done")
    assert trial.metric is not None or trial.metric_reason


BAD_METRICS = {
    "nan": ("nni.report_final_result(float('nan'))", "nan"),
    "infinite": ("nni.report_final_result(float('inf'))", "inf"),
    "text": ("nni.report_final_result('good')", "good"),
    "dict without default": ("nni.report_final_result({'loss': 1})", "default"),
    "nothing": ("pass", "no final result"),
}


@pytest.mark.parametrize("name", BAD_METRICS)
def test_a_metric_that_is_no_number_leaves_the_trial_done_and_says_why(tmp_path: Path, name: str):
    text, words = BAD_METRICS[name]
    trial = one_trial(tmp_path, text)
    assert trial.kind == "done"
    assert trial.metric is None
    assert words in trial.metric_reason


def test_of_two_final_results_the_first_counts_and_what_comes_after_is_noted(tmp_path: Path):
    trial = one_trial(
        tmp_path, "nni.report_final_result(1)\nnni.report_final_result(2)\nnni.report_intermediate_result(3)"
    )
    assert trial.metric == 1
    assert any("2 final results" in note for note in trial.notes)
    assert any("after the final" in note for note in trial.notes)


def test_an_intermediate_result_that_is_no_number_is_kept_with_its_reason(tmp_path: Path):
    trial = one_trial(tmp_path, "nni.report_intermediate_result(float('nan'))\nnni.report_final_result(1)")
    assert trial.intermediates[0].value is None
    assert "nan" in trial.intermediates[0].reason
    assert trial.metric == 1


def test_a_trial_above_the_memory_limit_is_ended_and_told_as_infeasible(tmp_path: Path):
    text = "held = bytearray(300 * 2**20)\nheld[::4096] = b'x' * len(held[::4096])\ntime.sleep(60)"
    limit = MemoryRule(use="limit", limit_bytes=100 * MIB)
    trial = one_trial(tmp_path, text, memory=limit)
    assert trial.kind == "over the limit"
    assert trial.is_infeasible


def test_a_trial_that_takes_too_long_is_ended(tmp_path: Path):
    trial = one_trial(tmp_path, "nni.report_intermediate_result(1)\ntime.sleep(600)", max_trial_seconds=1.0)
    assert trial.kind == "out of time"
    assert [report.value for report in trial.intermediates] == [1]


def test_an_ended_trial_leaves_no_descendants(tmp_path: Path):
    """A child in the same group, one in a session of its own, one orphaned twice, and one that ignores SIGTERM."""
    text = """
import signal, subprocess
line = [sys.executable, "-c", "import time, signal; signal.signal(15, 1); time.sleep(600)", os.environ["NNI_EXP_ID"]]
subprocess.Popen(line)
subprocess.Popen(line, start_new_session=True)
again = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", again, *line])
nni.report_intermediate_result(1)
time.sleep(600)
"""
    settings = settings_for(tmp_path, HEAD + text, max_trial_seconds=2.0)
    study, _ = run(settings, tmp_path / "study")
    assert study.trials[0].kind == "out of time"
    assert carriers(str(tmp_path / "study")) == []
    assert carriers(study.study_id) == []


def test_processes_that_outlive_a_trial_that_ended_well_are_ended_and_named(tmp_path: Path):
    text = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nnni.report_final_result(1)"
    trial = one_trial(tmp_path, text)
    assert trial.kind == "done"
    assert any("still running after its end" in note for note in trial.notes)
    assert carriers(str(tmp_path / "study")) == []


def test_no_more_trials_run_at_a_time_than_asked_for(tmp_path: Path):
    text = HEAD + (  # each waits for its partner, so that two have run at the same moment however slow the machine is
        "open('here-' + nni.get_trial_id(), 'w').close()\n"
        "end = time.monotonic() + 30\n"
        "while sum(f.startswith('here-') for f in os.listdir()) < 2 and time.monotonic() < end: time.sleep(0.01)\n"
        "time.sleep(0.2)\nnni.report_final_result(x)"
    )
    study, _ = run(settings_for(tmp_path, text, max_trials=4, concurrency=2), tmp_path / "study")
    spans = [(datetime.fromisoformat(t.started_at), datetime.fromisoformat(t.ended_at)) for t in study.trials]
    together = [sum(begin <= start < end for begin, end in spans) for start, _ in spans]
    assert max(together) == 2
    assert all("other trials are in its background" in " ".join(trial.notes) for trial in study.trials)


def test_a_finite_space_ends_the_study(tmp_path: Path):
    study, _ = run(settings_for(tmp_path, GOOD, space=one_of(1, 2, 3), max_trials=None), tmp_path / "study")
    assert sorted(trial.parameters["x"] for trial in study.trials) == [1, 2, 3]


def test_the_assessor_stops_a_hopeless_trial_early(tmp_path: Path):
    text = HEAD + (
        "for step in range(3):\n    nni.report_intermediate_result(x)\n"
        "if x == 1: time.sleep(600)\nnni.report_final_result(x)"
    )
    points = [{"x": 0}, {"x": 0}, {"x": 1}]
    assessor = Tool(name="Medianstop", arguments={"optimize_mode": "minimize"})
    settings = settings_for(
        tmp_path, text, tuner=ordered_tool(points, 1), max_trials=None, assessor=assessor, seed=first_seed(points)
    )
    study, _ = run(settings, tmp_path / "study")
    stopped = [trial for trial in study.trials if trial.parameters["x"] == 1]
    assert [trial.kind for trial in stopped] == ["stopped early"]
    assert "median" in stopped[0].outcome.message
    assert stopped[0].metric is None


def first_seed(points: list[dict[str, int]]) -> int:
    """A seed whose order leaves the bad point for last, when there is something to compare it with."""
    return next(seed for seed in range(100) if OrderedTuner(points, 1, seed).order[-1][0] == 2)


def test_a_point_that_cannot_fit_is_rejected_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def predicted(self: object, built_with: dict[str, int]) -> Figure:
        asked.append(built_with)
        size_bytes = built_with["width"] * MIB
        if size_bytes > 1000 * MIB:  # as for a process whose heap differs from run to run
            return Figure(value=None, unit="bytes", low=size_bytes, high=2 * size_bytes, reason="only a range is known")
        return Figure(value=size_bytes, unit="bytes", source="predicted")

    monkeypatch.setattr(prediction.PointPredictions, "peak", predicted)
    (tmp_path / "job.py").write_text("def train(width):\n    return float(width)\n")
    space = msgspec.structs.replace(one_of(1, 2), parameters=(one_of(10, 9000).parameters[0],))
    parameter = msgspec.structs.replace(space.parameters[0], name="width")
    settings = settings_for(
        tmp_path,
        GOOD,
        command="",
        workload=f"{tmp_path / 'job.py'}:train",
        space=msgspec.structs.replace(space, parameters=(parameter,)),
        memory=MemoryRule(use="limit", limit_bytes=1000 * MIB),
        max_trials=None,
    )
    study, _ = run(settings, tmp_path / "study")
    by_width = {trial.parameters["width"]: trial for trial in study.trials}
    assert by_width[9000].kind == "rejected by prediction"
    assert not by_width[9000].was_run
    assert by_width[9000].is_infeasible
    assert by_width[10].kind == "done"
    assert by_width[10].metric == 10
    assert by_width[10].predicted_peak.value == 10 * MIB
    assert len(asked) == 2


def test_while_a_point_is_predicted_the_time_limits_of_trials_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second point takes longer to predict than the first trial may run."""
    predicted_at = []

    def predicted(self: object, built_with: dict[str, int]) -> Figure:
        if predicted_at:
            time.sleep(4.0)
        predicted_at.append(time.monotonic())
        return Figure(value=float(MIB), unit="bytes", source="predicted")

    monkeypatch.setattr(prediction.PointPredictions, "peak", predicted)
    (tmp_path / "job.py").write_text("import time\n\n\ndef train(x):\n    time.sleep(30)\n    return 0.0\n")
    settings = settings_for(
        tmp_path, GOOD, command="", workload=f"{tmp_path / 'job.py'}:train", max_trial_seconds=1.0, max_trials=2,
        memory=MemoryRule(use="limit", limit_bytes=1000 * MIB), concurrency=2,
    )  # fmt: skip
    study, _ = run(settings, tmp_path / "study")
    first, second = study.trials
    assert [trial.kind for trial in study.trials] == ["out of time", "out of time"]
    assert first.duration.value is not None
    assert first.duration.value < 3.5
    assert datetime.fromisoformat(first.ended_at) < datetime.fromisoformat(second.started_at)


def test_a_study_whose_first_trials_all_die_alike_stops_and_says_why(tmp_path: Path):
    settings = settings_for(tmp_path, HEAD + "raise ValueError(f'no such layer at {os.getpid()}')", max_trials=50)
    study, watcher = run(settings, tmp_path / "study")
    assert [trial.kind for trial in study.trials] == ["failed"] * 5
    (note,) = watcher.notes
    assert "the first 5 trials all failed alike, so no further one is started" in note
    assert "no such layer" in note


def test_a_study_in_which_one_trial_of_the_first_ends_well_goes_on(tmp_path: Path):
    text = "if nni.get_sequence_id() != 2: raise ValueError('no such layer')\nnni.report_final_result(1)"
    study, _ = run(settings_for(tmp_path, HEAD + text, max_trials=8), tmp_path / "study")
    assert len(study.trials) == 8


def test_a_command_that_does_not_exist_fails_every_trial_and_says_so(tmp_path: Path):
    settings = msgspec.structs.replace(settings_for(tmp_path, GOOD), command="no-such-program-at-all", max_trials=2)
    study, _ = run(settings, tmp_path / "study")
    assert [trial.kind for trial in study.trials] == ["failed", "failed"]
    assert "no-such-program-at-all" in study.trials[0].outcome.message


def test_a_tuner_that_raises_ends_the_study_with_its_words(tmp_path: Path):
    (tmp_path / "lost_tuner.py").write_text(
        "from nni.tuner import Tuner\n"
        "class Bad(Tuner):\n"
        "    def update_search_space(self, space): pass\n"
        "    def receive_trial_result(self, *args, **kwargs): pass\n"
        "    def generate_parameters(self, number, **kwargs):\n"
        "        if number: raise RuntimeError('I am lost')\n"
        "        return {'x': 0.5}\n"
    )
    tool = Tool(class_name="lost_tuner.Bad", code_folder=str(tmp_path))
    study, watcher = run(settings_for(tmp_path, GOOD, tuner=tool, max_trials=5), tmp_path / "study")
    assert [trial.kind for trial in study.trials] == ["done"]
    assert any("I am lost" in note for note in watcher.notes)


# ---- one folder, one study -------------------------------------------------------------------------------------------


def test_running_a_finished_study_again_starts_nothing(tmp_path: Path):
    settings = settings_for(tmp_path, GOOD, max_trials=2)
    first, _ = run(settings, tmp_path / "study")
    second, _ = run(settings, tmp_path / "study")
    assert as_stored(second) == as_stored(first)


def test_more_trials_go_on_where_fewer_ended(tmp_path: Path):
    together, _ = run(settings_for(tmp_path, GOOD, max_trials=4), tmp_path / "one")
    run(settings_for(tmp_path, GOOD, max_trials=2), tmp_path / "two")
    apart, _ = run(settings_for(tmp_path, GOOD, max_trials=4), tmp_path / "two")
    assert [trial.parameters for trial in apart.trials] == [trial.parameters for trial in together.trials]


def test_another_study_in_the_same_folder_is_refused(tmp_path: Path):
    run(settings_for(tmp_path, GOOD), tmp_path / "study")
    with pytest.raises(RunExists, match="other settings") as caught:
        run(settings_for(tmp_path, GOOD, seed=5), tmp_path / "study")
    assert "seed" in caught.value.found


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "thesis.tex").write_text("everything")
    with pytest.raises(RunExists, match="not a study"):
        run(settings_for(tmp_path, GOOD), tmp_path / "study")
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["thesis.tex"]


def test_a_second_coordinator_of_a_running_study_is_refused(tmp_path: Path):
    settings = settings_for(tmp_path, GOOD)
    first = open_session(settings, StudyOptions(output=str(tmp_path / "study")), SilentStudy())
    with pytest.raises(UsageError, match="running already"):
        open_session(settings, StudyOptions(output=str(tmp_path / "study")), SilentStudy())
    first.close()
    open_session(settings, StudyOptions(output=str(tmp_path / "study")), SilentStudy()).close()


def test_what_is_read_back_is_what_was_returned(tmp_path: Path):
    study, _ = run(settings_for(tmp_path, GOOD, max_trials=2), tmp_path / "study")
    assert as_stored(read_folder(tmp_path / "study")) == as_stored(study)


def as_stored(study: Study) -> bytes:
    return msgspec.json.encode(study)
