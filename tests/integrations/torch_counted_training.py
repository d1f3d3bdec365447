"""One training by a framework in a process of its own, every step of it counted from below torch's allocator.

    python torch_counted_training.py NAME BUDGET_BYTES RECORD     (the counter of benchmarks/plans preloaded; 0: plain)

The record has, for every step of an optimizer, the highest bytes since the step before it, and a digest of all losses
and weights so far. What is alive while a plan is made is not a part of a step: the peak is reset when it is there.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from memfit.fit.training_loop import LoopFitter

WORDS, LONGEST, WIDTH = 50, 64, 64
COUNTER = ctypes.CDLL(os.environ["LD_PRELOAD"])
COUNTER.counted_peak.restype = ctypes.c_long


class Steps:
    """What every step took and left."""

    def __init__(self) -> None:
        self.peaks: list[int] = []
        self.digests: list[str] = []
        self._seen = hashlib.sha1()

    def add_value(self, value: torch.Tensor | float) -> None:
        """A loss, or whatever else has to be the same."""
        self._seen.update(value.detach().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())

    def end(self, model: nn.Module) -> None:
        """A step is over."""
        self.peaks.append(COUNTER.counted_peak())
        for tensor in model.state_dict().values():
            self.add_value(tensor)
        self.digests.append(self._seen.hexdigest())
        COUNTER.counted_reset()


def uncounted(fit: Callable[..., None]) -> Callable[..., None]:
    """Fitting is no part of a step."""

    def fitted(*args: Any) -> None:
        fit(*args)
        COUNTER.counted_reset()

    return fitted


def rows_of_words(num_rows: int) -> list[dict[str, Any]]:
    """Rows of 8 to LONGEST words."""
    lengths = torch.randint(8, LONGEST + 1, (num_rows,)).tolist()
    words = [torch.randint(1, WORDS, (length,)).tolist() for length in lengths]
    return [{"input_ids": row, "labels": sum(row) % 2} for row in words]


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch that is as long as its longest row."""
    longest = max(len(row["input_ids"]) for row in rows)
    words = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": words, "attention_mask": (words > 0).long(), "labels": labels}


def distilbert(steps: Steps, callbacks: list[Any]) -> None:
    """Fine-tune a small DistilBERT with the Hugging Face Trainer, 100 steps."""
    import transformers

    class Counting(transformers.TrainerCallback):
        def on_step_end(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            steps.end(model)

        def on_log(self, *args: Any, logs: Any = None, **kwargs: Any) -> None:
            steps.add_value(logs.get("loss", 0.0))

    config = transformers.DistilBertConfig(
        vocab_size=WORDS, max_position_embeddings=LONGEST, dim=32, hidden_dim=64, n_heads=4, n_layers=4
    )
    rows = rows_of_words(400)
    arguments = transformers.TrainingArguments(
        output_dir=os.path.dirname(sys.argv[3]), per_device_train_batch_size=8, max_steps=100, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, learning_rate=1e-3, seed=0,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.DistilBertForSequenceClassification(config), args=arguments, train_dataset=rows,
        data_collator=padded, callbacks=[Counting(), *callbacks],
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    COUNTER.counted_reset()
    trainer.train()


def blocks(num_outputs: int) -> nn.Sequential:
    """Some layers with dropout, for Lightning."""
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(8))
    return nn.Sequential(*layers, nn.Linear(WIDTH, num_outputs))


def train_with_lightning(module: Any, steps: Steps, callbacks: list[Any], **settings: Any) -> None:
    """Batches of 512 rows, the last of an epoch smaller; the model is validated after every epoch."""
    import pytorch_lightning as lightning
    from torch.utils.data import DataLoader, TensorDataset

    rows = TensorDataset(torch.randn(512 * 3 + 100, WIDTH), torch.randint(0, 4, (512 * 3 + 100,)))
    trainer = lightning.Trainer(
        max_epochs=3, callbacks=callbacks, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", default_root_dir=os.path.dirname(sys.argv[3]), **settings,
    )  # fmt: skip
    trainer.fit(module, DataLoader(rows, batch_size=512, shuffle=True), DataLoader(rows, batch_size=512))


def lightning_module(steps: Steps) -> Any:
    """What both modules share: validation, and the end of a step."""
    import pytorch_lightning as lightning

    class Counted(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = blocks(4)

        def validation_step(self, batch: Any, index: int) -> None:
            steps.add_value(F.cross_entropy(self.classifier(batch[0]), batch[1]))

    return Counted


def lightning_accumulating(steps: Steps, callbacks: list[Any]) -> None:
    """Lightning steps by itself, once for two batches, and clips."""

    class Classifier(lightning_module(steps)):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = F.cross_entropy(self.classifier(batch[0]), batch[1])
            steps.add_value(loss)
            return loss

        def on_train_batch_end(self, *args: Any) -> None:
            steps.end(self)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    train_with_lightning(Classifier(), steps, callbacks, accumulate_grad_batches=2, gradient_clip_val=1.0)


def lightning_manual(steps: Steps, callbacks: list[Any]) -> None:
    """Two optimizers that the module steps itself: a generator and a critic in turns."""

    class Adversaries(lightning_module(steps)):
        def __init__(self) -> None:
            super().__init__()
            self.generator = blocks(WIDTH)
            self.automatic_optimization = False

        def training_step(self, batch: Any, index: int) -> None:
            for_generator, for_critic = self.optimizers()
            for_generator.zero_grad()
            made = self.generator(torch.randn_like(batch[0]))
            self._step(for_generator, F.cross_entropy(self.classifier(made), batch[1]))
            for_critic.zero_grad()
            real, fake = self.classifier(torch.cat([batch[0], made.detach()])).chunk(2)
            self._step(for_critic, F.cross_entropy(real, batch[1]) + fake.square().mean())
            steps.end(self)

        def _step(self, optimizer: Any, loss: torch.Tensor) -> None:
            self.manual_backward(loss)
            optimizer.step()
            steps.add_value(loss)

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (self.generator, self.classifier)]

    train_with_lightning(Adversaries(), steps, callbacks)


TRAININGS = {each.__name__: each for each in (distilbert, lightning_accumulating, lightning_manual)}


def callback_for(name: str, budget_bytes: int) -> Any:
    """The callback of the framework."""
    if name == "distilbert":
        from memfit.integrations.transformers_fit import MemfitFit
    else:
        from memfit.integrations.lightning_fit import MemfitFit
    return MemfitFit(budget_bytes)


def main() -> None:
    """Train once, plainly or within a budget."""
    name, budget_bytes, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    LoopFitter._fit = uncounted(LoopFitter._fit)
    callback = callback_for(name, budget_bytes) if budget_bytes else None
    steps = Steps()
    torch.manual_seed(0)
    TRAININGS[name](steps, [callback] if callback is not None else [])
    record: dict[str, Any] = {"peaks": steps.peaks, "digests": steps.digests}
    if callback is not None:
        found = callback.found
        record |= {"is_within": found.within_budget, "num_plans": len(found.fits), "num_passes": found.num_passes}
        record |= {"is_exact": all(fit.proof is not None and fit.proof.bit_equal for fit in found.fits)}
    with open(path, "w") as file:
        json.dump(record, file)


if __name__ == "__main__":
    main()
