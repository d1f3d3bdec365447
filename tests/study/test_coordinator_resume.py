"""Is nothing lost when a study is interrupted: by Ctrl-C, by SIGTERM, by kill -9 of whoever?"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from study_jobs import GOOD, PATIENCE_SECONDS, WAITS, carriers, memfit_study, run, settings_for, wait_until

from memfit.errors import MemfitError, UsageError
from memfit.records.study import GpuWish, Proposal, Study
from memfit.study.folder import create, find, read_folder, storage_of
from memfit.study.options import StudyOptions, environment_of
from memfit.study.storage.interface import Proposed, Started, StudyExtent, fact
from memfit.study.trials.descendants import is_of_study, start_ticks
from memfit.study.trials.gpus import GpuPool, used_by_others
from memfit.study.trials.process import SamplerName, TrialProcess, kept_gpus
from memfit.study.trials.trial_order import TrialOrder

SPACE = '{"x": {"_type": "uniform", "_value": [0, 1]}}'
OPTIONS = ("-o", "study", "--space", "space.json", "--tuner", "Random", "--no-figures", "--concurrency", "2")


def start(folder: Path, trials: int = 4) -> subprocess.Popen[str]:
    (folder / "space.json").write_text(SPACE)
    line = settings_for(folder, WAITS).command.split()
    return memfit_study(*OPTIONS, "--trials", str(trials), "--", *line, cwd=folder)


def resume(folder: Path) -> Study:
    (folder / "go").touch()
    process = memfit_study("resume", "study", "--no-figures", cwd=folder)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    return read_folder(folder / "study")


def two_are_running(folder: Path) -> Study:
    """Wait until both trials have reported, so that they are well under way."""

    def running() -> Study | None:
        reports = list((folder / "study").glob("trials/*/metrics.jsonl"))
        try:
            return read_folder(folder / "study") if len(reports) == 2 else None
        except MemfitError:
            return None

    return wait_until(running, "two running trials")


def sampler_pid(folder: Path, number: int) -> int:
    raw = (folder / "study" / "trials" / f"{number:05d}" / "sampler.json").read_bytes()
    return msgspec.json.decode(raw, type=SamplerName).pid


def end(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return errors


def as_never_interrupted(folder: Path, trials: int) -> list[dict[str, float]]:
    """The parameters of the same study in one go."""
    study, _ = run(settings_for(folder, GOOD, max_trials=trials), folder / "undisturbed")
    return [trial.parameters for trial in study.trials]


def test_ctrl_c_waits_for_what_runs_and_starts_nothing_new(tmp_path: Path):
    process = start(tmp_path)
    two_are_running(tmp_path)
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    errors = end(process)
    assert process.returncode == 130, errors
    stopped = read_folder(tmp_path / "study")
    assert [trial.kind for trial in stopped.trials] == ["done", "done"]
    whole = resume(tmp_path)
    assert [trial.kind for trial in whole.trials] == ["done"] * 4
    assert [trial.num_attempts for trial in whole.trials] == [1] * 4
    assert [trial.parameters for trial in whole.trials] == as_never_interrupted(tmp_path, 4)


@pytest.mark.parametrize("how", ["sigterm", "ctrl-c twice"])
def test_ended_trials_are_run_again_with_the_same_parameters(tmp_path: Path, how: str):
    process = start(tmp_path)
    before = two_are_running(tmp_path)
    if how == "sigterm":
        process.send_signal(signal.SIGTERM)
    else:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "again to end them" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
    errors = end(process)
    assert process.returncode == 130, errors
    assert carriers(str(tmp_path / "study")) == []
    whole = resume(tmp_path)
    assert [trial.parameters for trial in whole.trials[:2]] == [trial.parameters for trial in before.trials]
    assert [trial.kind for trial in whole.trials] == ["done"] * 4
    assert [trial.num_attempts for trial in whole.trials] == [2, 2, 1, 1]


def test_trials_outlive_a_killed_coordinator_and_are_taken_up_again(tmp_path: Path):
    process = start(tmp_path)
    two_are_running(tmp_path)
    process.kill()
    end(process)
    assert len(carriers(str(tmp_path / "study" / "trials" / "00000"))) > 0
    whole = resume(tmp_path)
    assert [trial.kind for trial in whole.trials] == ["done"] * 4
    assert [trial.num_attempts for trial in whole.trials] == [1] * 4
    assert carriers(str(tmp_path / "study")) == []


def test_a_trial_that_ended_without_its_coordinator_keeps_its_result(tmp_path: Path):
    process = start(tmp_path, trials=2)
    two_are_running(tmp_path)
    process.kill()
    end(process)
    (tmp_path / "go").touch()
    wait_until(lambda: not carriers(str(tmp_path / "study")), "the end of both trials")
    whole = resume(tmp_path)
    assert [trial.kind for trial in whole.trials] == ["done", "done"]
    assert [trial.num_attempts for trial in whole.trials] == [1, 1]
    assert [trial.metric for trial in whole.trials] == [trial.parameters["x"] for trial in whole.trials]


def test_when_everything_is_killed_the_trials_are_run_again(tmp_path: Path):
    """As after a power cut: the coordinator, the samplers and the trials are gone at once."""
    process = start(tmp_path, trials=2)
    before = two_are_running(tmp_path)
    process.kill()
    for number in range(2):
        os.kill(sampler_pid(tmp_path, number), signal.SIGKILL)
    end(process)
    whole = resume(tmp_path)
    assert [trial.kind for trial in whole.trials] == ["done", "done"]
    assert [trial.num_attempts for trial in whole.trials] == [2, 2]
    assert [trial.parameters for trial in whole.trials] == [trial.parameters for trial in before.trials]
    assert carriers(str(tmp_path / "study")) == []


def test_a_killed_sampler_costs_one_attempt_and_leaves_no_process(tmp_path: Path):
    process = start(tmp_path, trials=2)
    two_are_running(tmp_path)
    os.kill(sampler_pid(tmp_path, 0), signal.SIGKILL)
    second = tmp_path / "study" / "trials" / "00000.2" / "metrics.jsonl"
    wait_until(second.exists, "the second attempt")
    assert carriers(str(tmp_path / "study" / "trials" / "00000\0")) == []
    (tmp_path / "go").touch()
    errors = end(process)
    assert process.returncode == 0, errors
    study = read_folder(tmp_path / "study")
    assert [trial.kind for trial in study.trials] == ["done", "done"]
    assert [trial.num_attempts for trial in study.trials] == [2, 1]


def test_a_study_that_was_killed_before_anything_was_stored_begins_again(tmp_path: Path):
    create(tmp_path / "study", "")
    study, _ = run(settings_for(tmp_path, GOOD), tmp_path / "study")
    assert [trial.kind for trial in study.trials] == ["done"]


def test_a_study_whose_database_was_removed_says_so_and_is_not_begun_again(tmp_path: Path):
    run(settings_for(tmp_path, GOOD), tmp_path / "study")
    for path in (tmp_path / "study").glob("study.db*"):
        path.unlink()
    with pytest.raises(MemfitError, match="not there"):
        run(settings_for(tmp_path, GOOD), tmp_path / "study")


def test_a_time_limit_of_trials_that_changes_when_a_study_goes_on_is_obeyed(tmp_path: Path):
    (tmp_path / "go").touch()
    first, _ = run(settings_for(tmp_path, WAITS), tmp_path / "study")
    (tmp_path / "go").unlink()
    again = settings_for(tmp_path, WAITS, max_trials=2, max_trial_seconds=1.0)
    study, _ = run(again, tmp_path / "study")
    assert [trial.kind for trial in study.trials] == ["done", "out of time"]
    assert (first.settings.max_trial_seconds, study.settings.max_trial_seconds) == (None, 1.0)
    assert read_folder(tmp_path / "study").settings.max_trial_seconds == 1.0


def test_a_stored_change_from_before_the_time_limit_could_change_leaves_it_as_it_was(tmp_path: Path):
    settings = settings_for(tmp_path, GOOD, max_trial_seconds=7.0)
    older = msgspec.json.decode(b'{"max_trials":3,"max_seconds":null,"concurrency":2}', type=StudyExtent)
    assert (older.applied(settings).max_trial_seconds, older.applied(settings).max_trials) == (7.0, 3)


def test_the_time_limit_of_a_trial_that_is_taken_up_again_counts_from_its_own_start(tmp_path: Path):
    settings = settings_for(tmp_path, GOOD)
    order = TrialOrder(
        study_id="s", trial_id="t", proposal=Proposal(number=0, parameters={}), command=("true",),
        code_folder=settings.code_folder, folder=str(tmp_path), max_seconds=3600,
    )  # fmt: skip
    child = subprocess.Popen(["sleep", "60"])
    try:
        time.sleep(0.6)
        name = SamplerName(pid=child.pid, start_ticks=start_ticks(child.pid) or 0)
        (tmp_path / "sampler.json").write_bytes(msgspec.json.encode(name))
        trial = TrialProcess(order)
        assert trial.adopt()
        assert 0.5 < trial.seconds < 30
        trial.take_leave()
    finally:
        child.kill()
        child.wait()


def test_a_sampler_that_is_stuck_does_not_keep_the_study_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from memfit.study.trials import process
    from memfit.study.trials.runner import LocalRunner

    monkeypatch.setattr(process, "SAMPLER_SECONDS", 0.5)
    settings = settings_for(tmp_path, WAITS)
    order = TrialOrder(
        study_id="s", trial_id="t", proposal=Proposal(number=0, parameters={"x": 0.5}),
        command=tuple(settings.command.split()), code_folder=settings.code_folder, folder=str(tmp_path / "trial"),
        grace_seconds=0.2,
    )  # fmt: skip
    runner = LocalRunner(1)
    runner.start(order)
    wait_until(lambda: (tmp_path / "trial" / "metrics.jsonl").exists(), "a trial that is under way")
    sampler = runner.trials[0].sampler_pid
    assert sampler is not None
    os.kill(sampler, signal.SIGSTOP)
    runner.close()
    assert not runner.trials
    assert carriers(str(tmp_path / "trial")) == []


def test_a_trial_on_a_gpu_whose_end_was_lost_is_run_again_on_it(tmp_path: Path):
    settings = settings_for(tmp_path, GOOD, max_trials=2, gpus=GpuWish(num_gpus=1, indices=(3,)))
    where = create(tmp_path / "study", "")
    first = Proposed(proposal=Proposal(number=0, parameters={"x": 0.5}), trial_id="aaaaa")
    begun = Started(attempt=1, folder="trials/00000", started_at="2026-01-01T00:00:00+00:00")
    storage = storage_of(tmp_path / "study", where)
    bodies = [("study", "study", settings, None), ("p0", "proposed", first, 0), ("s0.1", "started", begun, 0)]
    storage.append(where.study_id, [fact(n, *each) for n, each in enumerate(bodies)])  # pyright: ignore[reportArgumentType]
    storage.close()
    study, _ = run(None, tmp_path / "study")
    assert [(trial.kind, trial.num_attempts) for trial in study.trials] == [("done", 2), ("done", 1)]


def test_a_trial_that_is_taken_up_again_keeps_the_gpu_that_it_runs_on(tmp_path: Path):
    wish = GpuWish(num_gpus=1, indices=(0, 1))
    (tmp_path / "sampler.json").write_bytes(msgspec.json.encode(SamplerName(pid=1, start_ticks=1, gpu_indices=(1,))))
    pool, kept = GpuPool(wish, (0, 1)), kept_gpus(tmp_path)
    assert kept == (1,)
    pool.hold(5, (1,))
    assert pool.take(5) == (1,)
    assert pool.take(6) == (0,)
    assert not pool.has_room()
    pool.give_back(5)
    assert pool.take(7) == (1,)
    assert kept_gpus(tmp_path / "nowhere") is None


def test_gpus_that_other_programs_use_are_named_and_those_of_our_own_trials_are_not(tmp_path: Path):
    environment = {**os.environ, "MEMFIT_TRIAL_FOLDER": str(tmp_path / "trials" / "00000")}
    ours = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        wait_until(lambda: is_of_study(ours.pid, str(tmp_path)), "the environment of a child")
        assert not is_of_study(ours.pid, str(tmp_path.parent / "another"))
        notes = used_by_others({0: [ours.pid], 1: [ours.pid, 1], 2: []}, lambda pid: is_of_study(pid, str(tmp_path)))
    finally:
        ours.kill()
        ours.wait()
    assert len(notes) == 1
    assert "GPU 1 is used by other programs (process 1)" in notes[0]


def test_a_storage_of_an_unknown_kind_is_refused_before_a_folder_is_made(tmp_path: Path):
    with pytest.raises(UsageError, match="this storage is not known"):
        run(settings_for(tmp_path, GOOD), tmp_path / "study", storage="mysql://somewhere/x")
    assert not (tmp_path / "study").exists()
    study, _ = run(settings_for(tmp_path, GOOD), tmp_path / "study", storage="sqlite:///own.db")
    assert [trial.kind for trial in study.trials] == ["done"]
    assert (tmp_path / "study" / "own.db").is_file()


TOKEN = """
import nni, os
nni.get_next_parameter()
nni.report_final_result({"default": 1, "token": os.environ.get("MEMFIT_TEST_TOKEN", "none")})
"""


def test_a_variable_that_was_named_once_is_given_to_the_trials_of_later_sessions(tmp_path: Path, monkeypatch):
    """On a cluster they ran without it, and nobody said so: workers have an environment of their own."""
    folder, settings = tmp_path / "study", settings_for(tmp_path, TOKEN)
    monkeypatch.setenv("MEMFIT_TEST_TOKEN", "secret-one")
    run(settings, folder, env=("MEMFIT_TEST_TOKEN",))
    assert b"secret" not in (folder / "where.json").read_bytes()
    monkeypatch.delenv("MEMFIT_TEST_TOKEN")
    with pytest.raises(UsageError, match="an earlier session gave the trials a variable that is not set here") as error:
        run(None, folder, trials=2)
    assert "--env MEMFIT_TEST_TOKEN=VALUE" in str(error.value)
    run(None, folder, trials=2, env=("MEMFIT_TEST_TOKEN=another",))
    monkeypatch.setenv("MEMFIT_TEST_TOKEN", "set-again")
    study, _ = run(None, folder, trials=3)
    assert [trial.others["token"] for trial in study.trials] == ["secret-one", "another", "set-again"]
    kept = find(folder)
    assert kept is not None
    assert environment_of(StudyOptions(), {"MEMFIT_TEST_TOKEN": "x", "OTHER": "y"}, kept.variables) == {
        "MEMFIT_TEST_TOKEN": "x"
    }
