"""Do the trainers' own loggers, the real ones, get memory beside the loss?"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memfit.integrations.logged_memory import lightning_memory, with_memory

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, about their own settings
NAMES = {"memory/resident_bytes", "memory/peak_bytes"}


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index)), "labels": torch.tensor([1.0])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.inner(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def train(folder: Path, callback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="transformers trains only with accelerate installed")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
    settings = transformers.TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, max_steps=4, logging_steps=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model=Net(), args=settings, train_dataset=Rows(), callbacks=[callback]).train()


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

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    logger = lightning.loggers.CSVLogger(str(tmp_path), flush_logs_every_n_steps=1)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[lightning_memory()], logger=logger, enable_checkpointing=False, log_every_n_steps=2,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", default_root_dir=str(tmp_path),
    )  # fmt: skip
    trainer.fit(Lit(), torch.utils.data.DataLoader(Rows(), batch_size=4))
    (path,) = tmp_path.rglob("metrics.csv")
    rows = list(csv.DictReader(path.open()))
    assert [row["step"] for row in rows if row["memory/resident_bytes"]] == ["2", "4"]
    assert set(rows[0]) >= NAMES
