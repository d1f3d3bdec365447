"""Do the same trials run on a Dask cluster, through the loss of a worker, and do their records come home?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from study_jobs import GOOD, PATIENCE_SECONDS, WAITS, carriers, memfit_study, run, settings_for, wait_until

from memfit.errors import UsageError
from memfit.records.study import GpuWish, Tool
from memfit.runfolder.reader import read_run
from memfit.study.folder import read_folder

pytest.importorskip("distributed", reason="dask.distributed is not installed (pip install 'memfit[cluster]')")


class Cluster:
    """A scheduler and workers on loopback, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        self.address = wait_until(lambda: _address(file), "the scheduler")

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{words[0]}-{len(self.processes)}.log", "wb")  # noqa: SIM115
        command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
        process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=_environment() | variables)
        log.close()
        self.processes.append(process)
        return process

    def add_worker(self, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        """One worker without a nanny: killing the process kills the worker for good."""
        common = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self.folder))
        return self._start("worker", self.address, *common, "--memory-limit", "0", *options, **variables)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DASK")}


def _address(file: Path) -> str | None:
    try:
        return json.loads(file.read_text())["address"]
    except (OSError, ValueError, KeyError):
        return None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers; the test that kills one comes last."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    for _ in range(2):
        made.add_worker("--resources", "memory=1e9")
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_trials_run_on_workers_and_their_records_come_home(tmp_path: Path, cluster: Cluster):
    settings = settings_for(tmp_path, GOOD, max_trials=2)
    study, watcher = run(settings, tmp_path / "far", on=cluster.address)
    near, _ = run(settings, tmp_path / "near")
    assert [trial.kind for trial in study.trials] == ["done", "done"]
    assert [trial.parameters for trial in study.trials] == [trial.parameters for trial in near.trials]
    assert [trial.metric for trial in study.trials] == [trial.metric for trial in near.trials]
    for trial in study.trials:
        assert trial.worker.startswith("tcp://127.0.0.1")
        record = read_run(tmp_path / "far" / trial.run_folder)
        assert record.peak.value == trial.peak.value
        assert len(trial.intermediates) == 3
    assert [note for note in watcher.notes if "no workers yet" not in note] == []


ODD = """
import types
import memfit.study.trials.cluster.distributed_trial as trial
trial.time = types.SimpleNamespace(time=lambda: 0.0, monotonic=trial.time.monotonic)
trial.platform = types.SimpleNamespace(python_version=lambda: "3.2.1", node=trial.platform.node)
trial.VERSION = "0.0.1"
"""
SEES = """
import nni, os
nni.get_next_parameter()
nni.report_final_result(float(os.environ["CUDA_VISIBLE_DEVICES"]))
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_trial_runs_on_the_gpu_of_its_worker_and_an_odd_worker_is_named_once(tmp_path: Path, cluster: Cluster):
    """The other workers offer no GPU. This one's clock, Python and memfit are not the coordinator's."""
    (tmp_path / "odd.py").write_text(ODD)
    offer = ("--resources", "GPU=1,memory=1e9", "--preload", str(tmp_path / "odd.py"), "--name", "odd")
    worker = cluster.add_worker(*offer, CUDA_VISIBLE_DEVICES="5")
    log = cluster.folder / f"worker-{len(cluster.processes) - 1}.log"
    wait_until(lambda: "Registered to" in log.read_text(), "the odd worker")
    settings = settings_for(tmp_path, SEES, max_trials=2, gpus=GpuWish(num_gpus=1))
    study, watcher = run(settings, tmp_path / "study", on=cluster.address)
    worker.kill()
    assert [trial.metric for trial in study.trials] == [5.0, 5.0]
    (told,) = [note for note in watcher.notes if "the worker" in note]
    assert all(text in told for text in ("Python 3.2.1", "memfit 0.0.1", "a clock that is"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_assessor_stops_trials_on_workers_too(tmp_path: Path, cluster: Cluster):
    (tmp_path / "strict_assessor.py").write_text(
        "from nni.assessor import Assessor, AssessResult\n"
        "class Strict(Assessor):\n"
        "    def assess_trial(self, trial_id, history):\n"
        "        return AssessResult.Bad\n"
    )
    settings = settings_for(
        tmp_path, WAITS, assessor=Tool(class_name="strict_assessor.Strict", code_folder=str(tmp_path))
    )
    study, _ = run(settings, tmp_path / "study", on=cluster.address)
    assert [trial.kind for trial in study.trials] == ["stopped early"]
    assert "Strict" in study.trials[0].outcome.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_address_without_a_scheduler_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("memfit.study.trials.cluster.distributed_runner.CONNECT_SECONDS", 1)
    with pytest.raises(UsageError, match="no Dask scheduler"):
        run(settings_for(tmp_path, GOOD), tmp_path / "study", on="tcp://127.0.0.1:1")


def test_the_trial_of_a_killed_worker_runs_again_elsewhere_with_the_same_parameters(tmp_path: Path, cluster: Cluster):
    (tmp_path / "space.json").write_text('{"x": {"_type": "uniform", "_value": [0, 1]}}')
    line = settings_for(tmp_path, WAITS).command.split()
    options = ("-o", "study", "--space", "space.json", "--tuner", "Random", "--trials", "1", "--no-figures")
    process = memfit_study(*options, "--on", cluster.address, "--", *line, cwd=tmp_path)
    (trial_pid, *_) = wait_until(lambda: trial_processes(tmp_path), "the trial")
    before = read_folder(tmp_path / "study").trials[0].parameters
    os.kill(parent_of(parent_of(trial_pid)), signal.SIGKILL)
    wait_until(lambda: trial_pid not in trial_processes(tmp_path), "the end of the trial that lost its worker")
    wait_until(lambda: trial_processes(tmp_path), "another try on the other worker")
    (tmp_path / "go").touch()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors + output
    trial = read_folder(tmp_path / "study").trials[0]
    assert trial.kind == "done"
    assert trial.parameters == before
    assert trial.metric == before["x"]
    assert trial.num_attempts == 2
    assert any("workers were lost" in note for note in trial.notes)


@pytest.mark.slow
def test_a_trial_outlives_its_coordinator_and_the_next_session_takes_it_up(tmp_path: Path):
    cluster = Cluster(tmp_path)
    cluster.add_worker()
    (tmp_path / "space.json").write_text('{"x": {"_type": "uniform", "_value": [0, 1]}}')
    line = settings_for(tmp_path, WAITS).command.split()
    options = ("-o", "study", "--space", "space.json", "--tuner", "Random", "--trials", "2", "--no-figures")
    process = memfit_study(*options, "--on", cluster.address, "--", *line, cwd=tmp_path)
    try:
        (trial_pid, *_) = wait_until(lambda: trial_processes(tmp_path), "the trial")
        wait_until(lambda: "x" in read_folder(tmp_path / "study").trials[0].parameters, "its proposal")
        time.sleep(1)  # the scheduler hears within a moment that a worker has begun
        process.kill()
        process.communicate()
        again = memfit_study("resume", "study", "--no-figures", "--on", cluster.address, cwd=tmp_path)
        wait_until(lambda: (tmp_path / "study" / "coordinator.json").exists(), "the next session")
        assert trial_pid in trial_processes(tmp_path)
        (tmp_path / "go").touch()
        output, errors = again.communicate(timeout=PATIENCE_SECONDS)
        assert again.returncode == 0, output + errors
    finally:
        cluster.close()
    trials = read_folder(tmp_path / "study").trials
    assert [(trial.kind, trial.num_attempts) for trial in trials] == [("done", 1), ("done", 1)]
    assert [trial.metric for trial in trials] == [trial.parameters["x"] for trial in trials]


def trial_processes(folder: Path) -> list[int]:
    """The processes of trials whose code is in this folder."""
    return carriers(f"NNI_CODE_DIR={folder}\0")


def parent_of(pid: int) -> int:
    """The sampler of a trial, and the worker of a sampler."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_trials_that_no_worker_takes_are_spoken_of_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from memfit.records.study import Proposal
    from memfit.study.trials.cluster import distributed_runner
    from memfit.study.trials.trial_order import TrialOrder

    monkeypatch.setattr(distributed_runner, "PATIENT_SECONDS", 0.2)
    lonely, notes = Cluster(tmp_path), list[str]()
    client = distributed_runner.connect(lonely.address)
    runner = distributed_runner.DaskRunner(client, settings_for(tmp_path, GOOD), notes.append, lambda: "sbatch: error")
    order = TrialOrder(
        study_id="s", trial_id="t", proposal=Proposal(number=0, parameters={}), command=("true",),
        code_folder=str(tmp_path), folder=str(tmp_path / "trial"),
    )  # fmt: skip
    try:
        runner.start(order)
        for _ in range(4):
            runner.wait(0.2)
    finally:
        runner.close()
        lonely.close()
    assert [note for note in notes if "1 trials wait" in note and "sbatch: error" in note]


def test_a_batch_system_that_is_not_here_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    for system, command in (("slurm", "sbatch"), ("pbs", "qsub"), ("lsf", "bsub")):
        with pytest.raises(UsageError, match=command):
            run(settings_for(tmp_path, GOOD), tmp_path / system, on=system)
