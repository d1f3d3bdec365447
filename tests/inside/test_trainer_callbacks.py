"""Do the callbacks for the two trainers mark a real training, and leave nothing behind?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from memfit import inside
from memfit.records.marks_file import MarksFile, read_marks


def read(folder: Path) -> MarksFile:
    (path,) = folder.glob("marks-*.txt")
    marks = read_marks(path, process=0, clock_start_ns=0)
    assert marks is not None
    return marks


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index)), "labels": torch.tensor([1.0])}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        out = self.inner(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_trainer_is_marked_from_its_beginning_to_its_end(tmp_path: Path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="transformers trains only with accelerate installed")
    from memfit.measure.transformers_callback import MemfitCallback

    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, max_steps=4, eval_strategy="steps",
        eval_steps=2, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callback = MemfitCallback(tmp_path / "run", ledger_every=2)
    transformers.Trainer(
        model=Net(), args=settings, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[callback]
    ).train()
    assert not inside.is_recording()
    marks = read(tmp_path / "run")
    assert len(marks.steps) == 4
    assert marks.exited
    assert "evaluation" in {name for _, name, _ in marks.named_phases}
    assert list((tmp_path / "run").glob("ledger-*.jsonl"))


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_trainer_is_marked_from_its_beginning_to_its_end(tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from memfit.measure.lightning_callback import MemfitCallback

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _index):
            return self.net(**batch)["loss"]

        def validation_step(self, batch, _index):
            self.net(**batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[MemfitCallback(tmp_path / "run")], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", default_root_dir=str(tmp_path),
    )  # fmt: skip
    trainer.fit(Lit(), loader, loader)
    assert not inside.is_recording()
    marks = read(tmp_path / "run")
    assert len(marks.steps) == 4
    assert "evaluation" in {name for _, name, _ in marks.named_phases}
