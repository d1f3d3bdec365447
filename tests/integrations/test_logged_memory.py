"""Do the trainers' own loggers, the real ones, get memory beside the loss?"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from small_trainings import Net, lightning_fit, transformers_fit

from memfit.integrations.logged_memory import lightning_memory, with_memory

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, about their own settings
NAMES = {"memory/resident_bytes", "memory/peak_bytes"}


def train(folder: Path, callback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
    transformers_fit(folder, callback, Net(), logging_steps=2)


@pytest.mark.slow
def test_the_hugging_face_trainers_tensorboard_callback_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # pyright: ignore
    from transformers.integrations.integration_utils import TensorBoardCallback

    train(tmp_path, with_memory(TensorBoardCallback)(), monkeypatch)
    (path,) = tmp_path.rglob("events.out.tfevents.*")
    found = EventAccumulator(str(path.parent))
    found.Reload()
    tags = set(found.Tags()["scalars"])
    assert {f"train/{name}" for name in NAMES} <= tags
    assert "train/loss" in tags
    assert all(event.value > 1e7 for event in found.Scalars("train/memory/resident_bytes"))


@pytest.mark.slow
def test_the_hugging_face_trainers_mlflow_callback_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    from transformers.integrations.integration_utils import MLflowCallback

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    train(tmp_path, with_memory(MLflowCallback)(), monkeypatch)
    mlflow.end_run()
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert NAMES | {"loss"} <= set(run.data.metrics)


@pytest.mark.slow
def test_lightnings_own_logger_gets_it(tmp_path: Path):
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")

    logger = lightning.loggers.CSVLogger(str(tmp_path), flush_logs_every_n_steps=1)
    lightning_fit(tmp_path, lightning_memory(), Net(), logger=logger, log_every_n_steps=2)
    (path,) = tmp_path.rglob("metrics.csv")
    rows = list(csv.DictReader(path.open()))
    assert [row["step"] for row in rows if row["memory/resident_bytes"]] == ["2", "4"]
    assert set(rows[0]) >= NAMES
