"""Small models of many families, as people bring them: each makes a model, batches for it, and a loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WORDS = 64


@dataclass(frozen=True)
class Case:
    """A model with what makes its batches; no loss where the model returns one."""

    model: nn.Module
    batch: Callable[[], Any]
    loss: Callable[..., torch.Tensor] | None = None


FAMILIES: dict[str, Callable[[], Case]] = {}


def family(make: Callable[[], Case]) -> Callable[[], Case]:
    FAMILIES[make.__name__] = make
    return make


# ---- transformers ----------------------------------------------------------------------------------------------------


def hugging_face(name: str, config: str, **settings: Any) -> Any:
    import transformers

    return getattr(transformers, name)(getattr(transformers, config)(**settings))


def words(rows: int = 6, length: int = 32) -> torch.Tensor:
    return torch.randint(3, WORDS - 1, (rows, length))


def text() -> dict[str, torch.Tensor]:
    ids = words()
    return {"input_ids": ids, "labels": ids.clone()}


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 5, (4,))}


SIZES = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip


@family
def llama() -> Case:
    return Case(hugging_face("LlamaForCausalLM", "LlamaConfig", **SIZES, num_key_value_heads=1), text)


@family
def gpt2() -> Case:
    return Case(
        hugging_face("GPT2LMHeadModel", "GPT2Config", n_layer=3, n_embd=32, n_head=2, vocab_size=WORDS, n_positions=64),
        text,
    )


@family
def qwen2() -> Case:
    return Case(hugging_face("Qwen2ForCausalLM", "Qwen2Config", **SIZES, num_key_value_heads=1), text)


@family
def bert() -> Case:
    return Case(hugging_face("BertForMaskedLM", "BertConfig", **SIZES), text)


@family
def t5() -> Case:
    model = hugging_face(
        "T5ForConditionalGeneration", "T5Config", vocab_size=WORDS, d_model=32, d_ff=64, d_kv=16, num_layers=3,
        num_heads=2, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return Case(model, lambda: {"input_ids": words(), "labels": words(length=16)})


@family
def bart_with_layer_drop() -> Case:
    model = hugging_face(
        "BartForConditionalGeneration", "BartConfig", vocab_size=WORDS, d_model=32, encoder_layers=3, decoder_layers=3,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=64, encoder_layerdrop=0.2, decoder_layerdrop=0.2,
    )  # fmt: skip
    return Case(model, lambda: {"input_ids": words(), "labels": words(length=16)})


@family
def vit() -> Case:
    sizes = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    return Case(
        hugging_face("ViTForImageClassification", "ViTConfig", **sizes, image_size=32, patch_size=4, num_labels=5),
        images,
    )


@family
def segformer_that_installs_hooks() -> Case:
    model = hugging_face(
        "SegformerForSemanticSegmentation", "SegformerConfig", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
        decoder_hidden_size=16, num_attention_heads=[1, 2, 2, 4], num_labels=4,
    )  # fmt: skip
    return Case(model, lambda: {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.randint(0, 4, (2, 64, 64))})


@family
def wav2vec2() -> Case:
    model = hugging_face(
        "Wav2Vec2ForCTC", "Wav2Vec2Config", **{**SIZES, "vocab_size": 32}, conv_dim=(16, 16), conv_stride=(5, 4),
        conv_kernel=(10, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
        pad_token_id=0, layerdrop=0.1, mask_time_prob=0.0,
    )  # fmt: skip
    return Case(model, lambda: {"input_values": torch.randn(3, 800), "labels": torch.randint(1, 31, (3, 4))})


@family
def mixtral_with_router_loss() -> Case:
    model = hugging_face(
        "MixtralForCausalLM", "MixtralConfig", **SIZES, num_key_value_heads=1, num_local_experts=2,
        output_router_logits=True,
    )  # fmt: skip
    return Case(model, text)


@family
def mamba() -> Case:
    model = hugging_face(
        "MambaForCausalLM", "MambaConfig", vocab_size=WORDS, hidden_size=16, state_size=4, num_hidden_layers=3
    )
    return Case(model, lambda: {"input_ids": (ids := words(3, 12)), "labels": ids.clone()})


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank one beside it."""

    def __init__(self, base: nn.Module, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(num_inputs, 4, bias=False), nn.Linear(4, num_outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@family
def low_rank_adapters() -> Case:
    case = gpt2()
    case.model.requires_grad_(False)
    for block in case.model.transformer.h:  # type: ignore[union-attr]
        block.attn.c_attn = Adapted(block.attn.c_attn, 32, 96)
    return case


# ---- torch's own containers ------------------------------------------------------------------------------------------


def rows(width: int = 32, num_rows: int = 128, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(num_rows, width), torch.randint(0, classes, (num_rows,))


class Translator(nn.Module):
    """`nn.Transformer`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS)
        self.body = nn.Transformer(32, 2, 2, 2, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(self.embed(x), self.embed(x), tgt_mask=mask)).flatten(0, 1)


@family
def torch_transformer() -> Case:
    return Case(Translator(), lambda: ((ids := words()), ids.flatten()), F.cross_entropy)


class Recurrent(nn.Module):
    """LSTMs one after another, each of which returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.LSTM(32, 32, batch_first=True) for _ in range(4)), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return self.head(x[:, -1])


@family
def lstm_stack() -> Case:
    return Case(Recurrent(), lambda: (torch.randn(8, 24, 32), torch.randint(0, 5, (8,))), F.cross_entropy)


class Packed(Recurrent):
    """Hands a packed sequence from layer to layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.arange(x.shape[1], x.shape[1] - x.shape[0], -1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        for layer in self.layers:
            packed = layer(packed)[0]
        return self.head(nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0].mean(1))


@family
def packed_lstm() -> Case:
    return Case(Packed(), lambda: (torch.randn(8, 12, 32), torch.randint(0, 5, (8,))), F.cross_entropy)


def convolution(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_inputs, num_outputs, 3, padding=1), nn.BatchNorm2d(num_outputs), nn.ReLU(inplace=True)
    )


class UNet(nn.Module):
    """Skips from the way down to the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = convolution(3, 8), convolution(8, 16), convolution(16, 16)
        self.up2, self.up1, self.out = convolution(32, 8), convolution(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        y = F.interpolate(self.middle(F.max_pool2d(two, 2)), scale_factor=2)
        y = F.interpolate(self.up2(torch.cat([y, two], 1)), scale_factor=2)
        return self.out(self.up1(torch.cat([y, one], 1)))


@family
def unet() -> Case:
    return Case(UNet(), lambda: (torch.randn(2, 3, 32, 32), torch.randint(0, 2, (2, 32, 32))), F.cross_entropy)


class Residual(nn.Module):
    """A residual block that adds in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = convolution(8, 8), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.second(self.first(x)))
        y += x
        return F.relu(y, inplace=True)


@family
def resnet() -> Case:
    model = nn.Sequential(
        convolution(3, 8), *(Residual() for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    return Case(model, lambda: (torch.randn(4, 3, 24, 24), torch.randint(0, 5, (4,))), F.cross_entropy)


class Vae(nn.Module):
    """Draws between its two halves, and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * spread.exp()), mean, spread


@family
def vae() -> Case:
    def loss(out: tuple[torch.Tensor, ...], target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(out[0], target) + out[1].square().mean() + out[2].exp().mean()

    return Case(Vae(), lambda: ((x := torch.randn(512, 32)), x), loss)


def feed_forward() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))


class Nested(nn.Module):
    """Dictionaries of modules within dictionaries of modules; returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = nn.ModuleDict(
            {f"group{i}": nn.ModuleDict({"value": feed_forward(), "gate": feed_forward()}) for i in range(3)}
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for group in self.groups.values():
            x = x + group["value"](x) * torch.sigmoid(group["gate"](x))  # type: ignore[index]
        return {"logits": self.head(x), "size": x.square().mean()}


@family
def nested_dictionaries() -> Case:
    return Case(Nested(), rows, lambda out, target: F.cross_entropy(out["logits"], target) + 0.01 * out["size"])


class Spectral(nn.Module):
    """Parametrized weights with buffers that change in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(x))


@family
def spectral_norm() -> Case:
    return Case(nn.Sequential(*(Spectral() for _ in range(4)), nn.Linear(32, 5)), lambda: rows(num_rows=256),
                F.cross_entropy)  # fmt: skip


# ---- refused by name -------------------------------------------------------------------------------------------------


class SparseGraph(nn.Module):
    """Multiplies with a sparse matrix."""

    graph: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.register_buffer("graph", torch.eye(128).to_sparse(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(torch.sparse.mm(self.graph, x)))
        return x


class Ragged(nn.Module):
    """Works on rows of several lengths in one nested tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.as_nested_tensor([x[:5], x[5:8]], layout=torch.jagged)
        for layer in self.layers:
            nested = layer(nested)
        return torch.cat([*nested.unbind(), x[8:]])


class Counting(nn.Module):
    """Computes something else in every call, by a counter that belongs to no model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        COUNTER[0] += 1
        return torch.tanh(self.linear(x)) * (1.0 + 0.1 * COUNTER[0])


class PartOfManyRanks(nn.Module):
    """A part of it is wrapped for several ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.DataParallel(feed_forward())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


class Scripted(nn.Module):
    """A part of it runs in TorchScript's own executor."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.part = torch.jit.script(feed_forward())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


COUNTER = [0]
REFUSED: dict[str, tuple[Callable[[], Case], str]] = {
    "a sparse graph": (lambda: Case(SparseGraph(), rows, F.cross_entropy), "sparse tensors"),
    "nested tensors": (lambda: Case(Ragged(), rows, F.cross_entropy), "nested tensors"),
    "a wrapped part": (lambda: Case(PartOfManyRanks(), rows, F.cross_entropy), "wrapped by DataParallel"),
    "a scripted part": (lambda: Case(Scripted(), rows, F.cross_entropy), "TorchScript"),
    "a global counter": (
        lambda: Case(nn.Sequential(*(Counting() for _ in range(3))), rows, F.cross_entropy), "cannot be run twice",
    ),
}  # fmt: skip
