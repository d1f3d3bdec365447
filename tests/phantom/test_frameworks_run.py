"""Do the frameworks people train with run on the phantom GPU, unmodified? Skipped where a package is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.engine import predict_on_phantom
from memfit.predict.phantom.library.installed import has_cuda_torch
from memfit.records.prediction import Prediction

pytestmark = [
    pytest.mark.skipif(not has_cuda_torch(), reason="needs a CUDA build of torch (make test-gpu)"),
    pytest.mark.timeout(300),
]

LIGHTNING = """
import torch, lightning
from torch.utils.data import DataLoader, TensorDataset
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
data = DataLoader(TensorDataset(torch.randn(64, 256), torch.randn(64, 8)), batch_size=8)
lightning.Trainer(accelerator="gpu", devices=1, max_steps=5, precision="bf16-mixed").fit(Net(), data)
"""
LIGHTNING_PARAMETER_BYTES = 4 * (256 * 1024 + 1024 + 1024 * 8 + 8)

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=2, n_head=4))
rows = [{"input_ids": torch.arange(64), "labels": torch.arange(64)} for _ in range(64)]
settings = {"per_device_train_batch_size": 4, "max_steps": 6, "bf16": True, "report_to": [], "save_strategy": "no"}
Trainer(model, TrainingArguments("out", **settings), train_dataset=rows).train()
"""

ADAPTER = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from peft import LoraConfig, get_peft_model
config = LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
model = get_peft_model(LlamaForCausalLM(config).cuda(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for step in range(3):
    tokens = torch.randint(0, 512, (2, 64), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

EIGHT_BITS = """
import torch, bitsandbytes
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = bitsandbytes.optim.Adam8bit(model.parameters())
for step in range(3):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NUM_PARAMETERS = 4 * (1024 * 1024 + 1024)


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def predict(path: str) -> Prediction:
    return predict_on_phantom(describe_job(path), parse_device("cuda:a100-40gb"), num_steps=3, most_seconds=250)


def category(prediction: Prediction, name: str) -> int:
    return next((share.num_bytes for share in prediction.at_peak.by_category if share.name == name), 0)


@needs("lightning")
def test_a_lightning_trainer_runs_to_its_steps(script: Callable[..., str]):
    prediction = predict(script(LIGHTNING))
    assert prediction.num_steps == 3
    assert category(prediction, "parameter") == LIGHTNING_PARAMETER_BYTES
    assert category(prediction, "optimizer state") >= 2 * LIGHTNING_PARAMETER_BYTES


@needs("transformers", "accelerate")
def test_a_hugging_face_trainer_runs_to_its_steps(script: Callable[..., str]):
    prediction = predict(script(TRAINER))
    assert prediction.num_steps == 3
    assert category(prediction, "optimizer state") >= 2 * category(prediction, "parameter") > 0


@needs("transformers", "peft")
def test_an_adapter_has_optimizer_state_for_itself_only(script: Callable[..., str]):
    prediction = predict(script(ADAPTER))
    assert prediction.num_steps == 3
    assert 0 < category(prediction, "optimizer state") < category(prediction, "parameter") // 20


@needs("bitsandbytes")
def test_an_optimizer_with_eight_bits_keeps_about_two_bytes_for_each_parameter(script: Callable[..., str]):
    prediction = predict(script(EIGHT_BITS))
    assert prediction.num_steps == 3
    assert category(prediction, "optimizer state") == pytest.approx(2 * NUM_PARAMETERS, rel=0.1)
