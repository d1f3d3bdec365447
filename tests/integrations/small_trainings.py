"""Four steps of a small network under the Trainers of Hugging Face and of Lightning, with a callback of the test's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


class Rows(torch.utils.data.Dataset):
    """Sixteen examples."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index)), "labels": torch.tensor([1.0])}


class Net(nn.Module):
    """One layer with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.inner(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def transformers_fit(folder: Path, callback: Any, model: nn.Module, **arguments: Any) -> None:
    """Train with Hugging Face's Trainer; `arguments` are further ones of its own."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="transformers trains only with accelerate installed")
    settings = transformers.TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, max_steps=4, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, **arguments,
    )  # fmt: skip
    evaluated = {"eval_dataset": Rows()} if "eval_strategy" in arguments else {}
    transformers.Trainer(model=model, args=settings, train_dataset=Rows(), callbacks=[callback], **evaluated).train()


def lightning_fit(folder: Path, callback: Any, model: nn.Module, **arguments: Any) -> None:
    """Train with Lightning's Trainer; `arguments` are further ones of its own."""
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    usual = {"logger": False, "num_sanity_val_steps": 0, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[callback], enable_checkpointing=False, accelerator="cpu",
        default_root_dir=str(folder), **(usual | arguments),
    )  # fmt: skip
    trainer.fit(Lit(), loader, loader)
