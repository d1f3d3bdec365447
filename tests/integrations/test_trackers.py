"""Do Weights & Biases and MLflow, the real ones and offline, hold every trial with its hyperparameters and memory?"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path

import pytest

from memfit.integrations.logged_memory import memory_now, with_memory
from memfit.integrations.trial_logs import TrackedTrials, trial_results
from memfit.records.study import TrialRecord
from memfit.runfolder.reader import read_run
from memfit.testing.made_records.runs import MadeRun, write_made_run
from memfit.testing.made_records.studies import made_mixed_study, made_study

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_mlflow_has_every_trial_with_its_parameters_metrics_and_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    from memfit.integrations.mlflow_trials import log_run, log_study

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    study = made_study(12)
    assert log_study(study) == 12
    client = mlflow.MlflowClient()
    place = client.get_experiment_by_name("made study")
    runs = {run.info.run_name: run for run in client.search_runs([place.experiment_id])}
    assert len(runs) == 12
    for trial in study.trials:
        run = runs[f"trial {trial.number}"]
        assert run.data.metrics["memory/peak_bytes"] == trial.peak.value
        assert set(run.data.params) == set(trial.flat_parameters)
        assert run.data.tags["outcome"] == trial.kind
        assert (run.info.status == "FINISHED") == (trial.kind in ("done", "stopped early"))
        curve = client.get_metric_history(run.info.run_id, "intermediate") if trial.intermediates else []
        assert [(m.step, m.value) for m in curve] == [(each.sequence, each.value) for each in trial.intermediates]
        began_ms = round(1000 * datetime.fromisoformat(trial.started_at).timestamp())
        assert run.info.start_time == began_ms
        assert [m.timestamp for m in curve] == [began_ms + 1000 * each.sequence + 1000 for each in trial.intermediates]
    record = read_run(write_made_run(tmp_path / "run", MadeRun(seconds=20.0)))
    run_id = log_run(record, experiment="runs")
    curve = client.get_metric_history(run_id, "timeline/job_bytes")
    assert max(point.value for point in curve) == record.tree.tree_bytes.max()
    info = client.get_run(run_id).info
    assert info.end_time - info.start_time == round(1000 * record.duration_seconds)  # of the run, not of logging it


@pytest.mark.slow
def test_mlflow_keeps_nested_parameters_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file for 'model' beside a folder for 'model/conv/width' cannot be; a database takes both."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    from memfit.integrations.mlflow_trials import log_study

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    study = made_mixed_study(6)
    assert log_study(study, experiment="nested") == 6
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("nested").experiment_id])
    nested = {name for run in runs for name in run.data.params if name.startswith("model")}
    assert nested == {"model", "model.conv.width", "model.mlp.dropout"}


@pytest.mark.slow
def test_wandb_has_a_trial_with_its_config_curve_and_memory_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    from memfit.integrations.wandb_trials import WandbTrials

    monkeypatch.setenv("WANDB_SILENT", "true")
    study = made_study(2)
    follower = WandbTrials(mode="offline", project="made", dir=str(tmp_path))
    follower.ended(study.trials[0], None)  # pyright: ignore[reportArgumentType]
    wandb.teardown()  # its own process writes the file
    (path,) = tmp_path.rglob("*.wandb")
    rows, config, summary = read_offline(path)
    trial = study.trials[0]
    assert [row["intermediate"] for row in rows if "intermediate" in row] == [
        each.value for each in trial.intermediates
    ]
    assert set(trial.flat_parameters) <= set(config)
    assert summary["memory/peak_bytes"] == trial.peak.value
    assert summary["outcome"] == trial.kind


def framed(raw: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a log of 32 KiB blocks behind a head of 7 bytes, as LevelDB writes them."""
    assert raw.startswith(b":W&B")
    place, parts = 7, b""
    while place + 7 <= len(raw):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        parts += raw[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def read_offline(path: Path) -> tuple[list[dict[str, object]], dict[str, object], dict[str, object]]:
    """History, config and summary in a file of wandb's own format, parsed by wandb's own messages."""
    wandb_internal_pb2 = import_module("wandb.proto.wandb_internal_pb2")
    rows, config, summary = [], {}, {}
    for raw in framed(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(raw)
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
        for update in (*record.config.update, *record.run.config.update):
            config[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
        for update in record.summary.update:
            summary[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
    return rows, config, summary


def test_a_logging_callback_gets_memory_beside_what_the_trainer_logs():
    seen: list[dict[str, float]] = []

    class Logging:
        def on_log(
            self, args: object, state: object, control: object, model: object = None, logs: object = None
        ) -> None:
            seen.append(dict(logs))  # pyright: ignore

    callback = with_memory(Logging)()
    callback.on_log(None, None, None, logs={"loss": 1.0}, model=None)
    assert seen[0]["loss"] == 1.0
    assert seen[0]["memory/resident_bytes"] > 1e6


def test_the_peak_is_that_of_the_kernel_and_whoever_else_measures_is_not_disturbed():
    before = memory_now()
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    after = memory_now()
    assert after["memory/peak_bytes"] >= before["memory/peak_bytes"]
    assert after["memory/peak_bytes"] >= before["memory/resident_bytes"] + 48 * 2**20
    assert memory_now()["memory/peak_bytes"] == after["memory/peak_bytes"]  # nothing was reset


def test_what_is_not_known_is_left_out():
    trial = made_study(1).trials[0]
    assert "energy/joules" not in trial_results(trial)
    assert trial_results(trial)["memory/peak_bytes"] == trial.peak.value


class Unreachable(TrackedTrials):
    tracker = "a tracker"

    def __init__(self, fails: Iterator[bool]) -> None:
        super().__init__()
        self.fails, self.logged = fails, list[int]()

    def log(self, trial: TrialRecord) -> None:
        if next(self.fails):
            raise ConnectionError("no route to host")
        self.logged.append(trial.number)


def test_a_tracker_that_cannot_be_reached_costs_its_rows_and_not_the_study():
    trials = made_study(9).trials
    follower = Unreachable(iter([False, True, False, True, True, True, False]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for trial in trials:
            follower.ended(trial, None)  # pyright: ignore[reportArgumentType]
    assert follower.logged == [0, 2]
    assert follower.not_logged == [1, 3, 4, 5, 6, 7, 8]
    assert len(said) == 4
    assert "no route to host" in str(said[0].message)
    assert "no further trial" in str(said[-1].message)
