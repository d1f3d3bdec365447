"""The training loops of xMem's evaluation: what is zeroed, moved and kept when, and so alive at the same time.

Gradients are zeroed at the start of an iteration, before the batch is moved to the GPU; the results of an iteration
(scores, loss, for language models also keys and values) stay until the next one replaces them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.accuracy.torch_xmem_language import WORDS, cerebras_111m, gpt_neo_125m
from benchmarks.accuracy.torch_xmem_mobile import (
    CONVNEXT_BASE,
    CONVNEXT_TINY,
    MOBILE_V3_LARGE,
    MOBILE_V3_SMALL,
    ConvNeXt,
    MobileNetV2,
    MobileNetV3,
)
from benchmarks.accuracy.torch_xmem_vision import (
    REGNET_X_400,
    REGNET_Y_400,
    RESNET_152,
    VGG_16,
    VGG_19,
    MnasNet,
    RegNet,
    ResNet,
    Vgg,
)
from memfit.job.training import Training

IMAGE_SIZE, LENGTH = 86, 128
VISION: dict[str, Callable[[], nn.Module]] = {
    "VGG16": lambda: Vgg(VGG_16),
    "VGG19": lambda: Vgg(VGG_19),
    "ResNet101": ResNet,
    "ResNet152": lambda: ResNet(RESNET_152),
    "MnasNet": MnasNet,
    "RegNetX400MF": lambda: RegNet(REGNET_X_400, 16, False),
    "RegNetY400MF": lambda: RegNet(REGNET_Y_400, 8, True),
    "MobileNetV2": MobileNetV2,
    "MobeNetV3Large": lambda: MobileNetV3(MOBILE_V3_LARGE, 1280),
    "MobeNetV3Small": lambda: MobileNetV3(MOBILE_V3_SMALL, 1024),
    "ConvNeXtTiny": lambda: ConvNeXt(CONVNEXT_TINY, 0.1),
    "ConvNeXtBase": lambda: ConvNeXt(CONVNEXT_BASE, 0.5),
}
LANGUAGE: dict[str, Callable[..., nn.Module]] = {
    "EleutherAI/gpt-neo-125M": gpt_neo_125m,
    "cerebras/Cerebras-GPT-111M": cerebras_111m,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a loop over pictures may do otherwise."""

    frees_batch: bool = False
    """The last batch is gone before the next one is moved."""
    zeroes: Literal["first", "late", "last"] = "first"
    """Where gradients are zeroed: before the batch is moved, between forward and backward, or at the end."""


AS_DESCRIBED = Habits()


def build(
    model: str, optimizer: str, batch_size: int, *, shifts_scores: bool = False, habits: Habits = AS_DESCRIBED
) -> Training:
    """One job by the names of the table."""
    if model in VISION:
        return _pictures(VISION[model](), optimizer, batch_size, habits)
    return _texts(LANGUAGE[model](shifts_scores=shifts_scores), optimizer, batch_size)


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    return getattr(torch.optim, name)(model.parameters(), lr=1e-3)


def _pictures(model: nn.Module, optimizer_name: str, batch_size: int, habits: Habits) -> Training:
    model = model.to("cuda").train()
    optimizer, criterion = _optimizer(optimizer_name, model), nn.CrossEntropyLoss()
    kept: dict[str, Any] = {}

    def step() -> None:
        images = torch.empty(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
        labels = torch.zeros(batch_size, dtype=torch.int64)
        if habits.frees_batch:
            kept["inputs"] = kept["targets"] = None
        if habits.zeroes == "first":
            optimizer.zero_grad()
        inputs, targets = images.to("cuda"), labels.to("cuda")
        kept["inputs"], kept["targets"] = inputs, targets
        kept["outputs"] = model(inputs)
        kept["loss"] = criterion(kept["outputs"], targets)
        if habits.zeroes == "late":
            optimizer.zero_grad()
        kept["loss"].backward()
        optimizer.step()
        kept["best"] = torch.max(kept["outputs"], 1)
        if habits.zeroes == "last":
            optimizer.zero_grad()

    return Training(model=model, optimizer=optimizer, step=step)


def _texts(model: nn.Module, optimizer_name: str, batch_size: int) -> Training:
    optimizer = _optimizer(optimizer_name, model)
    model = model.to("cuda").train()
    kept: dict[str, Any] = {}

    def step() -> None:
        tokens = torch.randint(0, WORDS, (batch_size, LENGTH))
        optimizer.zero_grad()
        kept["batch"] = [tokens.to("cuda"), torch.ones_like(tokens).to("cuda"), tokens.clone().to("cuda")]
        kept["outputs"] = model(*kept["batch"])
        kept["loss"] = kept["outputs"][0]
        kept["loss"].backward()
        optimizer.step()

    return Training(model=model, optimizer=optimizer, step=step)
