"""One step of a model, run plainly, under a tool that others recommend, and under our plan for that tool's peak.

Every way has a copy of the model to itself, so that each is measured in its steady state. A round runs each way once,
one right after the other, in an order that turns from round to round; ratios are taken within rounds.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from memfit.model.step import storage_bytes, tensors_of
from memfit.profile.meter.meter import record_events

Attach = Callable[[nn.Module], None]
RIGHT = 1e-4
"""A gradient is right when it differs from the plain one by less than this share of the largest."""


@dataclass(slots=True)
class Step:
    """A model with its batch and loss."""

    model: nn.Module
    batch: Any
    loss: Callable[..., Any] | None
    what: str

    def run(self) -> None:
        """One forward and backward, from no gradients."""
        self.model.zero_grad(set_to_none=True)
        if isinstance(self.batch, dict):
            value = self.model(**self.batch).loss
        else:
            assert self.loss is not None
            value = self.loss(self.model(self.batch[0]), self.batch[1])
        value.backward()

    def copied(self) -> Step:
        """The same with a model of its own."""
        return Step(copy.deepcopy(self.model), self.batch, self.loss, self.what)


# ---- the models --------------------------------------------------------------------------------------------------


def _words(rows: int = 4, length: int = 128) -> torch.Tensor:
    return torch.randint(3, 999, (rows, length))


def _hugging_face(kind: str, config: str, batch: dict[str, torch.Tensor], **settings: Any) -> Step:
    import transformers

    transformers.logging.set_verbosity_error()
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    given = " x ".join(str(size) for size in next(iter(batch.values())).shape)
    return Step(model.train(), batch, None, f"transformers' {kind}, batch {given}")


def _gpt2() -> Step:
    ids = _words()
    batch = {"input_ids": ids, "labels": ids}
    sizes = {"n_layer": 8, "n_embd": 256, "n_head": 8, "vocab_size": 1000, "n_positions": 128, "use_cache": False}
    return _hugging_face("GPT2LMHeadModel", "GPT2Config", batch, **sizes)


def _llama() -> Step:
    ids = _words()
    sizes = {"num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8}
    sizes |= {"num_key_value_heads": 4, "vocab_size": 1000, "use_cache": False}
    return _hugging_face("LlamaForCausalLM", "LlamaConfig", {"input_ids": ids, "labels": ids}, **sizes)


def _bert() -> Step:
    ids = _words()
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    sizes = {"num_hidden_layers": 8, "hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 1024}
    return _hugging_face("BertForMaskedLM", "BertConfig", batch, **sizes, vocab_size=1000)


def _distilbert() -> Step:
    ids = _words()
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(0, 2, (len(ids),))}
    sizes = {"n_layers": 6, "dim": 256, "n_heads": 8, "hidden_dim": 1024, "vocab_size": 1000}
    return _hugging_face("DistilBertForSequenceClassification", "DistilBertConfig", batch, **sizes)


def _vit(layers: int = 8, width: int = 256) -> Step:
    batch = {"pixel_values": torch.randn(8, 3, 64, 64), "labels": torch.randint(0, 10, (8,))}
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    sizes |= {"num_attention_heads": 8}
    more = {"image_size": 64, "patch_size": 8, "num_labels": 10}
    return _hugging_face("ViTForImageClassification", "ViTConfig", batch, **sizes, **more)


def _t5() -> Step:
    batch = {"input_ids": _words(), "labels": _words(length=64)}
    sizes = {"d_model": 256, "d_ff": 1024, "d_kv": 32, "num_layers": 5, "num_heads": 8, "vocab_size": 1000}
    more = {"use_cache": False, "decoder_start_token_id": 0}
    return _hugging_face("T5ForConditionalGeneration", "T5Config", batch, **sizes, **more)


def _neox() -> Step:
    ids = _words()
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1024}
    batch = {"input_ids": ids, "labels": ids}
    return _hugging_face("GPTNeoXForCausalLM", "GPTNeoXConfig", batch, **sizes, vocab_size=1000, use_cache=False)


def _qwen() -> Step:
    ids = _words()
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4}
    sizes |= {"intermediate_size": 688, "vocab_size": 1000, "use_cache": False}
    return _hugging_face("Qwen2ForCausalLM", "Qwen2Config", {"input_ids": ids, "labels": ids}, **sizes)


def _swin() -> Step:
    batch = {"pixel_values": torch.randn(8, 3, 64, 64), "labels": torch.randint(0, 10, (8,))}
    sizes = {"image_size": 64, "patch_size": 2, "embed_dim": 48, "window_size": 4, "num_labels": 10}
    more = {"depths": [2, 2, 2], "num_heads": [3, 6, 12]}
    return _hugging_face("SwinForImageClassification", "SwinConfig", batch, **sizes, **more)


def _whisper() -> Step:
    batch = {"input_features": torch.randn(4, 40, 256), "labels": _words(length=64)}
    sizes = {"d_model": 256, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
    sizes |= {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "num_mel_bins": 40, "vocab_size": 1000}
    more = {"max_source_positions": 128, "use_cache": False, "decoder_start_token_id": 0, "pad_token_id": 1}
    more |= {"bos_token_id": 0, "eos_token_id": 2}
    return _hugging_face("WhisperForConditionalGeneration", "WhisperConfig", batch, **sizes, **more)


def _classes(model: nn.Module, inputs: torch.Tensor, what: str) -> Step:
    given = " x ".join(str(size) for size in inputs.shape)
    labels = torch.randint(0, 10, (len(inputs),))
    return Step(model, (inputs, labels), nn.functional.cross_entropy, f"{what}, batch {given}")


def _mlp() -> Step:
    layers = [layer for _ in range(16) for layer in (nn.Linear(384, 384), nn.GELU())]
    return _classes(nn.Sequential(*layers, nn.Linear(384, 10)), torch.randn(1024, 384), "16 x Linear, GELU")


def _encoder() -> Step:
    def block() -> nn.Module:
        return nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)

    model = nn.Sequential(*(block() for _ in range(8)), nn.Flatten(), nn.Linear(128 * 256, 10))
    return _classes(model, torch.randn(4, 128, 256), "8 x TransformerEncoderLayer with dropout")


def _convolutions() -> Step:
    def block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.GELU())

    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)
    model = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), *(block() for _ in range(16)), *ends)
    return _classes(model, torch.randn(8, 3, 48, 48), "16 x convolution, GroupNorm, GELU")


def _narrowing() -> Step:
    def block(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

    layers = block(3, 16, 1)
    for before, after, stride in ((16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += block(before, after, stride) + block(after, after, 1)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return _classes(model, torch.randn(8, 3, 64, 64), "VGG-like: convolution, BatchNorm, ReLU, 16 to 128 channels")


class _Shortcut(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.second, self.last = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        is_same = before == after and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.relu(self.norm(self.first(x)))
        return nn.functional.relu(self.last(self.second(inner)) + self.shortcut(x))


def _residual() -> Step:
    sizes = (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), *(_Shortcut(*each) for each in sizes), *ends)
    return _classes(model, torch.randn(8, 3, 48, 48), "ResNet-like: 6 blocks, 32 to 128 channels")


MODELS: dict[str, Callable[[], Step]] = {
    "GPT-2": _gpt2,
    "Llama": _llama,
    "BERT": _bert,
    "DistilBERT": _distilbert,
    "ViT": _vit,
    "T5": _t5,
    "MLP": _mlp,
    "encoder layers": _encoder,
    "convolutions": _convolutions,
    "VGG-like": _narrowing,
    "GPT-NeoX": _neox,
    "Qwen2": _qwen,
    "Swin": _swin,
    "Whisper": _whisper,
    "wide ViT": lambda: _vit(4, 512),
    "ResNet-like": _residual,
}


def build(name: str) -> Step:
    """One of the models, always with the same weights and batch."""
    torch.manual_seed(0)
    return MODELS[name]()


# ---- what others recommend ---------------------------------------------------------------------------------------

HUGGING_FACE = "gradient_checkpointing_enable"
SEGMENTS = (2, 4)
KNOBS = (0.7, 0.4, 0.2)


def peers_of(step: Step, *, compiled: bool) -> dict[str, Attach]:
    """The tools that this model can be given to."""
    found: dict[str, Attach] = {}
    if hasattr(step.model, HUGGING_FACE):
        found[HUGGING_FACE] = lambda model: getattr(model, HUGGING_FACE)()
    if isinstance(step.model, nn.Sequential):
        found |= {f"checkpoint_sequential, {each} segments": _sequential(each) for each in SEGMENTS}
    if compiled:
        found |= {f"activation_memory_budget {each}": _knob(each) for each in KNOBS}
    return found


def _sequential(segments: int) -> Attach:
    def attach(model: nn.Module) -> None:
        assert isinstance(model, nn.Sequential)
        model.forward = lambda input: checkpoint_sequential(model, segments, input, use_reentrant=False)

    return attach


def _knob(ratio: float) -> Attach:
    """`aot_eager` has the partitioner that obeys the knob, and the kernels of the eager step."""
    from torch._dynamo.backends.registry import lookup_backend
    from torch._functorch import config

    plain: Any = lookup_backend("aot_eager")

    def backend(graph: Any, inputs: Any, **options: Any) -> Any:
        with config.patch(activation_memory_budget=ratio):
            return plain(graph, inputs, **options)

    def attach(model: nn.Module) -> None:
        model.forward = torch.compile(model.forward, backend=backend)

    return attach


# ---- looking -----------------------------------------------------------------------------------------------------


def fixed_bytes(step: Step) -> int:
    """What is alive before a step: parameters, buffers and the batch."""
    return storage_bytes([*step.model.parameters(), *step.model.buffers(), *tensors_of(step.batch)])


def peak_bytes(step: Step) -> int:
    """The most that is alive in a step, by memfit's own meter; the second of two."""
    _seeded(step)
    step.model.zero_grad(set_to_none=True)
    gc.collect()
    return fixed_bytes(step) + record_events(step.run, torch.device("cpu")).peak_bytes


def _seeded(step: Step) -> None:
    torch.manual_seed(7)
    step.run()


def equality(step: Step, plain: Step) -> str:
    """Whether two copies, at the same weights, get the same gradients from the same random numbers."""
    for each in (plain, step):
        each.model.load_state_dict(plain.model.state_dict())
        _seeded(each)
    pairs = list(zip(_gradients(step), _gradients(plain), strict=True))
    if all(torch.equal(mine, theirs) for mine, theirs in pairs):
        return "to the bit"
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)
    off = max(float((mine - theirs).abs().max()) for mine, theirs in pairs) / largest
    return "rounded" if off < RIGHT else f"**wrong** by {off:.0%}"


def _gradients(step: Step) -> list[torch.Tensor]:
    return [p.grad for p in step.model.parameters() if p.grad is not None]


def rounds(ways: dict[str, Step], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of every way in every round, of the processor: other programs of the machine count little."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-2, num_rounds):  # two to warm up
        at = number % len(names)
        order = names[at:] + names[:at]
        for name in order if number // len(names) % 2 == 0 else reversed(order):
            start = time.process_time()
            ways[name].run()
            taken = time.process_time() - start
            ways[name].model.zero_grad(set_to_none=True)
            if number >= 0:
                seconds[name].append(taken)
    return seconds


@contextlib.contextmanager
def quiet_warnings() -> Any:
    """Leave out what libraries warn of while they are compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def names(wanted: Sequence[str]) -> list[str]:
    """The models asked for; all of them when none is."""
    return list(wanted) or list(MODELS)
