"""Do trials run in jobs of a real Slurm, and outlive a coordinator that is killed?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Slurm, why_not
from study_jobs import PATIENCE_SECONDS, WAITS, carriers, wait_until

from memfit.study.folder import read_folder
from memfit.study.trials.cluster.cluster_jobs import HOLDER_FILE, JobWish
from memfit.study.trials.cluster.distributed_jobs import cluster_for

SEES = """
import nni, os
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result(x)
nni.report_final_result({"default": x, "job": os.environ["SLURM_JOB_ID"], "token": os.environ["TOKEN"],
                         "partition": os.environ["SLURM_JOB_PARTITION"]})
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path / "slurm"
    folder.mkdir()
    first = 20000 + os.getpid() % 20000
    made = Slurm(folder, (first, first + 1))
    try:
        made.start()
        yield made
    finally:
        made.close()


def study_on(slurm: Slurm, folder: Path, *words: str) -> subprocess.Popen[str]:
    """`memfit study ... --on slurm` as a process of its own."""
    command = [sys.executable, "-m", "memfit", "study", *words]
    environment = {**slurm.environment(), "TOKEN": "carried", "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def options_for(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "trial.py").write_text(text)
    (folder / "space.json").write_text('{"x": {"_type": "choice", "_value": [1, 2, 3]}}')
    return ("-o", "study", "--space", "space.json", "--tuner", "GridSearch", "--no-figures", "--on", "slurm")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_trials_run_in_jobs_with_their_variables_and_the_jobs_end_with_the_study(tmp_path: Path, slurm: Slurm):
    options = options_for(tmp_path, SEES)
    more = ("--partition", "small", "--concurrency", "2", "--env", "TOKEN", "--job-time", "10min", "--cpus", "1")
    process = study_on(slurm, tmp_path, *options, *more, "--job-memory", "500MiB", "--", sys.executable, "trial.py")
    output, errors = process.communicate(timeout=4 * PATIENCE_SECONDS)
    assert process.returncode == 0, output + errors
    study = read_folder(tmp_path / "study")
    assert [trial.metric for trial in study.trials] == [1.0, 2.0, 3.0]
    assert {(trial.others["token"], trial.others["partition"]) for trial in study.trials} == {("carried", "small")}
    assert {trial.others["job"] for trial in study.trials} <= {"1", "2"}
    assert all(trial.peak.value and trial.worker.startswith("tcp://") for trial in study.trials)
    wait_until(lambda: slurm.jobs() == [], "the end of the jobs")
    assert not (tmp_path / "study" / HOLDER_FILE).exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_trial_outlives_its_coordinator_and_is_taken_up_by_the_next(tmp_path: Path, slurm: Slurm):
    options = options_for(tmp_path, WAITS)
    words = ("--trials", "2", "--job-time", "10min", "--", sys.executable, "trial.py")
    process = study_on(slurm, tmp_path, *options, *words)
    (trial_pid, *_) = wait_until(lambda: carriers(f"NNI_CODE_DIR={tmp_path}\0"), "the first trial")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(slurm.jobs()) == 1
    again = study_on(slurm, tmp_path, "resume", "study", "--no-figures", "--on", "slurm")
    wait_until(lambda: (tmp_path / "study" / "coordinator.json").exists(), "the next session")
    assert trial_pid in carriers(f"NNI_CODE_DIR={tmp_path}\0")
    (tmp_path / "go").touch()
    output, errors = again.communicate(timeout=2 * PATIENCE_SECONDS)
    assert again.returncode == 0, output + errors
    assert "the jobs of an earlier session are still there" in errors + output
    study = read_folder(tmp_path / "study")
    assert [(trial.kind, trial.metric, trial.num_attempts) for trial in study.trials] == [
        ("done", 1.0, 1), ("done", 2.0, 1),
    ]  # fmt: skip
    wait_until(lambda: slurm.jobs() == [], "the end of the jobs")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (
            "slurm",
            ["-p gpu", "-A lab", "--cpus-per-task=8", "--mem=16384M", "-t 02:00:00", "--gres=gpu:2", "--nodes=1"],
        ),
        ("pbs", ["-q gpu", "-A lab", "select=1:ncpus=8:mem=16384mb:ngpus=2", "walltime=02:00:00", "--nodes=1"]),
        ("lsf", ["-q gpu", '-P "lab"', "-n 8", "-W 02:00", '-gpu "num=2"', "--nodes=1"]),
    ],
)
def test_a_job_asks_its_batch_system_for_what_was_wished(system: str, expected: list[str], tmp_path: Path):
    wish = JobWish(
        system=system,  # pyright: ignore[reportArgumentType]
        partition="gpu", account="lab", num_gpus=2, num_cpus=8, memory_bytes=2**34, seconds=7200,
        options=("--nodes=1",),
    )  # fmt: skip
    with cluster_for(wish, tmp_path) as cluster:
        script = cluster.job_script()  # pyright: ignore[reportAttributeAccessIssue]
    assert [words for words in expected if words not in script] == [], script
    assert script.rstrip().endswith("--memory-limit 0 --resources memory=17179869184,GPU=2")
