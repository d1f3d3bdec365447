"""Does a Trainer with the callback train as it would without, within the budget, and leave torch as it was?"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memfit.errors import DoesNotFit, UsageError
from memfit.fit.tensors_alive import alive_bytes
from memfit.integrations.trainer_fit import refuse_ranks
from memfit.records.fit import LoopFit

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, about their own settings

WORDS, LONGEST = 50, 64


@pytest.fixture(autouse=True)
def _one_thread():
    """Operators are small here: more threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows_of_words(num_rows: int) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(num_rows):
        length = int(torch.randint(8, LONGEST + 1, (1,), generator=draw))
        words = torch.randint(1, WORDS, (length,), generator=draw).tolist()
        rows.append({"input_ids": words, "labels": sum(words) % 2})
    return rows


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch that is as long as its longest row."""
    longest = max(len(row["input_ids"]) for row in rows)
    words = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    labels = [row["labels"] for row in rows]
    return {"input_ids": torch.tensor(words), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def train_distilbert(
    folder: Path, num_steps: int, callback: Any = None, collate: Any = padded, **settings: Any
) -> list[float]:
    """Fine-tune with the real Trainer; the loss of every step."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="transformers trains only with accelerate installed")
    gc.collect()
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=WORDS, max_position_embeddings=LONGEST, dim=32, hidden_dim=64, n_heads=4, n_layers=4
    )
    model = transformers.DistilBertForSequenceClassification(config)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=8, max_steps=num_steps, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, learning_rate=1e-3, seed=0, **settings,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows_of_words(200), data_collator=collate,
        callbacks=[callback] if callback is not None else [],
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def transformers_fit(budget: str | int, **options: Any) -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from memfit.integrations.transformers_fit import MemfitFit

    return MemfitFit(budget, measure_every=1, **options)


def left_over_bytes() -> int:
    """What earlier trainings of this process keep alive: it counts in every budget."""
    gc.collect()
    return alive_bytes(torch.device("cpu"))


def highest_bytes(found: LoopFit | None) -> int:
    assert found is not None
    assert found.measured_peak_bytes is not None
    return max(found.measured_peak_bytes, found.first_peak_bytes or 0)


def check_within(found: LoopFit | None, budget_bytes: int, num_steps: int, num_unknown: int = 0) -> None:
    assert found is not None
    assert found.num_measured >= found.num_passes - num_unknown
    assert found.num_passes + len(found.fits) == num_steps
    assert found.within_budget
    assert highest_bytes(found) <= budget_bytes
    assert all(fit.proof is not None and fit.proof.bit_equal for fit in found.fits)


@pytest.mark.slow
def test_a_distilbert_trains_100_steps_within_60_percent_of_its_peak_with_the_same_losses(tmp_path: Path):
    plain = train_distilbert(tmp_path, 100)
    before_bytes, plenty = left_over_bytes(), transformers_fit("1TiB")
    assert train_distilbert(tmp_path, 100, plenty) == plain
    budget_bytes = int(0.6 * (highest_bytes(plenty.found) - before_bytes)) + left_over_bytes()
    callback = transformers_fit(budget_bytes)
    assert train_distilbert(tmp_path, 100, callback) == plain
    check_within(callback.found, budget_bytes, 100)


@pytest.mark.slow
def test_gradients_that_add_up_over_batches_are_within_the_budget_as_well(tmp_path: Path):
    settings = {"gradient_accumulation_steps": 2}
    plain = train_distilbert(tmp_path, 4, **settings)
    before_bytes, plenty = left_over_bytes(), transformers_fit("1TiB")
    assert train_distilbert(tmp_path, 4, plenty, **settings) == plain
    budget_bytes = int(0.7 * (highest_bytes(plenty.found) - before_bytes)) + left_over_bytes()
    callback = transformers_fit(budget_bytes)
    assert train_distilbert(tmp_path, 4, callback, **settings) == plain
    check_within(callback.found, budget_bytes, 8)


@pytest.mark.slow
def test_a_budget_that_nothing_fits_into_is_refused_and_torch_is_as_it_was(tmp_path: Path):
    before = (nn.Module.__call__, torch.autograd.backward)
    with pytest.raises(DoesNotFit):
        train_distilbert(tmp_path, 4, transformers_fit("2MiB"))
    assert (nn.Module.__call__, torch.autograd.backward) == before


@pytest.mark.slow
def test_a_training_that_fails_is_over_when_the_next_begins_or_its_callback_is_gone(tmp_path: Path):
    def failing(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        raise MemoryError("on purpose")

    before = nn.Module.__call__
    callback = transformers_fit("1TiB")
    with pytest.raises(MemoryError):
        train_distilbert(tmp_path, 3, callback, collate=failing)
    assert nn.Module.__call__ is not before  # the Trainer tells nobody
    train_distilbert(tmp_path, 3, callback)
    assert nn.Module.__call__ is before
    assert callback.found.num_passes == 2
    with pytest.raises(MemoryError):
        train_distilbert(tmp_path, 3, callback, collate=failing)
    del callback
    gc.collect()
    assert nn.Module.__call__ is before


def train_with_lightning(folder: Path, num_steps: int, callback: Any = None, fails_at: int = -1) -> list[float]:
    """Train with the real Lightning, optimizing as it does by itself; the loss of every step."""
    lightning: Any = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    gc.collect()
    torch.manual_seed(0)
    losses: list[float] = []

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            blocks = (nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(8))
            self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(64, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(x))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == fails_at:
                raise MemoryError("on purpose")
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5)]

    rows = torch.utils.data.TensorDataset(torch.randn(512 * 5, 64), torch.randint(0, 4, (512 * 5,)))
    loader = torch.utils.data.DataLoader(rows, batch_size=512, shuffle=True)
    trainer = lightning.Trainer(
        max_steps=num_steps, max_epochs=-1, callbacks=[callback] if callback is not None else [], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        default_root_dir=str(folder),
    )  # fmt: skip
    trainer.fit(Classifier(), loader, loader)
    return losses


def lightning_fit(budget: str | int, **options: Any) -> Any:
    pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    from memfit.integrations.lightning_fit import MemfitFit

    return MemfitFit(budget, measure_every=1, **options)


@pytest.mark.slow
def test_lightning_trains_within_80_percent_of_its_peak_with_the_same_losses(tmp_path: Path, capsys: Any):
    plain = train_with_lightning(tmp_path, 20)
    assert len(plain) == 20
    before_bytes, plenty = left_over_bytes(), lightning_fit("1TiB")
    assert train_with_lightning(tmp_path, 20, plenty) == plain
    budget_bytes = int(0.8 * (highest_bytes(plenty.found) - before_bytes)) + left_over_bytes()
    callback = lightning_fit(budget_bytes)
    capsys.readouterr()
    assert train_with_lightning(tmp_path, 20, callback) == plain
    check_within(callback.found, budget_bytes, 20, num_unknown=1)  # gradients from before the first are released
    assert "in the training" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fit_of_lightning_that_fails_leaves_torch_as_it_was_and_a_record(tmp_path: Path):
    before = (nn.Module.__call__, torch.autograd.backward)
    callback = lightning_fit("1TiB")
    with pytest.raises(MemoryError):
        train_with_lightning(tmp_path, 20, callback, fails_at=4)
    assert (nn.Module.__call__, torch.autograd.backward) == before
    assert callback.found is not None
    assert callback.found.num_passes == 3


def test_what_spreads_a_training_over_ranks_is_refused_by_name():
    with pytest.raises(UsageError, match="FSDP"):
        refuse_ranks(1, "FSDP")
    with pytest.raises(UsageError, match="2 ranks"):
        refuse_ranks(2, "")
    refuse_ranks(1, "")


def test_a_budget_that_cannot_be_read_is_refused_before_anything_trains():
    with pytest.raises(UsageError):
        transformers_fit("8 apples")
