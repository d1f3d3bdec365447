"""Which jobs are laid beside each other on both engines: models x optimizers x types x attention x GPUs?

Every group is a full product of its axes. Sizes are small on purpose: what is compared is the order and the size of
every allocation, and that is the same in two layers as in forty.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ATTENTION = f"{Path(__file__).with_name('phantom_grid_job.py')}:attend"
LAYERS = Path(__file__).with_name("torch_grid_layers.py")
OPTIMIZERS = [
    "sgd", "sgd-momentum", "adam", "adamw", "adamw-fused", "adamw-forloop", "adam-amsgrad", "rmsprop", "adagrad",
    "adadelta", "adamax", "nadam", "radam", "asgd", "rprop", "adafactor",
]  # fmt: skip
A100, H100, RTX_3060, T4 = "cuda:a100-40gb", "cuda:h100-80gb", "cuda:rtx3060-12gb", "cuda:t4-16gb"


@dataclass(frozen=True, slots=True)
class GridJob:
    """A workload, its settings and a GPU."""

    model: str
    settings: tuple[tuple[str, str | int | float | bool], ...]
    device: str

    @property
    def name(self) -> str:
        """As a person names it."""
        values = [value if isinstance(value, str) else f"{name} {value}" for name, value in self.settings]
        return " ".join([self.model.rpartition(":")[2], *values, self.device.removeprefix("cuda:")])


@dataclass(frozen=True, slots=True)
class Group:
    """A model and the axes that are crossed."""

    model: str
    axes: Mapping[str, Sequence[str | int | float | bool]]
    devices: tuple[str, ...] = (A100,)


GROUPS = (
    Group("mlp", {"optimizer": OPTIMIZERS, "precision": ["fp32"]}),
    Group("mlp", {"optimizer": ["sgd", "adam", "adamw", "rmsprop"], "precision": ["bf16", "fp16"]}),
    Group("mlp", {"optimizer": ["adamw"], "clip": [1.0], "accumulate": [2], "precision": ["fp32", "bf16"]}),
    Group("gpt", {"optimizer": ["adamw", "adamw-fused", "sgd"], "precision": ["fp32", "bf16", "fp16"]}),
    Group("gpt", {"precision": ["fp32", "bf16"], "dropout": [0.1]}),
    Group("gpt", {"precision": ["fp32", "bf16"], "checkpoint": [True]}),
    Group("gpt", {"dtype": ["bfloat16"], "optimizer": ["adamw", "adafactor"]}),
    Group("gpt", {"precision": ["fp32", "bf16"]}, (H100, RTX_3060, T4)),
    Group(
        ATTENTION, {"attention": ["flash", "efficient", "math", "eager"], "precision": ["bf16"], "optimizer": ["adamw"]}
    ),
    Group(ATTENTION, {"attention": ["efficient", "math", "eager"], "precision": ["fp32"], "optimizer": ["sgd"]}),
    Group("distilbert", {"batch_size": [4], "length": [128], "precision": ["fp32", "bf16"]}),
    Group("gan", {"optimizer": ["adam"]}),
    Group("cnn", {"optimizer": ["adam", "sgd"], "precision": ["fp32", "bf16"]}),
    Group("cnn", {"precision": ["fp32", "bf16"], "channels_last": [True]}),
    Group("cnn", {"precision": ["fp32"]}, (H100, RTX_3060)),
    Group("resnet18", {"optimizer": ["sgd"], "precision": ["fp32", "bf16"]}),
    Group("resnet50", {"optimizer": ["sgd-momentum"], "batch_size": [4], "size": [96]}),
    Group(f"{LAYERS}:padded", {"kind": ["LSTM"]}),
    Group(f"{LAYERS}:packed", {"kind": ["LSTM"]}),
    Group(f"{LAYERS}:packed", {"kind": ["GRU"], "layers": [2]}),
    Group(f"{LAYERS}:packed", {"kind": ["LSTM"], "layers": [2], "both_ways": [True], "dropout": [0.2]}),
    Group(f"{LAYERS}:embedded", {"tokens": [1024, 4096]}),
    Group(f"{LAYERS}:embedded", {"tokens": [65536], "words": [20000]}),
    Group(f"{LAYERS}:shared_heads", {"precision": ["bf16", "fp32"]}),
    Group(f"{LAYERS}:normed", {"kind": ["rms", "layer", "group"], "precision": ["fp32", "bf16"]}),
    Group(f"{LAYERS}:pictured", {"weights": [True, False], "precision": ["fp32", "bf16"]}),
    Group(f"{LAYERS}:classified", {"precision": ["fp32", "bf16"], "smoothing": [0.0, 0.1]}),
    Group(f"{LAYERS}:indexed", {"how": ["read", "masked", "written", "added"]}),
)

RECORDED = (
    "mlp adafactor fp32 a100-40gb",
    "mlp adamw clip 1.0 accumulate 2 fp32 a100-40gb",
    "gpt adamw bf16 a100-40gb",
    "gpt fp32 dropout 0.1 a100-40gb",
    "gpt bf16 checkpoint True a100-40gb",
    "gpt bf16 t4-16gb",
    "gpt fp32 rtx3060-12gb",
    "attend flash bf16 adamw a100-40gb",
    "attend efficient bf16 adamw a100-40gb",
    "attend math fp32 sgd a100-40gb",
    "gan adam a100-40gb",
    "cnn fp32 channels_last True a100-40gb",
    "padded LSTM a100-40gb",
    "packed LSTM a100-40gb",
    "packed GRU layers 2 a100-40gb",
    "packed LSTM layers 2 both_ways True dropout 0.2 a100-40gb",
    "embedded tokens 1024 a100-40gb",
    "embedded tokens 4096 a100-40gb",
    "embedded tokens 65536 words 20000 a100-40gb",
    "shared_heads bf16 a100-40gb",
)
"""Jobs whose events are kept beside the tests: one for every rule of what kernels allocate inside."""


def grid() -> Iterator[GridJob]:
    """Every job of every group."""
    for group in GROUPS:
        for values in itertools.product(*group.axes.values()):
            for device in group.devices:
                yield GridJob(group.model, tuple(zip(group.axes, values, strict=True)), device)
