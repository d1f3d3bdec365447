"""Recipe of a training: an optimizer and memory techniques put on a job from outside, and which of them go together."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal

import msgspec

from memfit.errors import UsageError

DeviceKind = Literal["cpu", "cuda"]


class Technique(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train with less memory."""

    name: str
    meaning: str
    code: str
    """The line a user writes to have it; {value} stands for its number."""
    number: Literal["none", "whole", "decimal"] = "none"
    """Whether it takes a number, as `batch=8` does."""
    usual: float | None = None
    """The number where none was written; None where one has to be."""
    only_on: DeviceKind | None = None
    why_only: str = ""


TECHNIQUES: dict[str, Technique] = {
    technique.name: technique
    for technique in (
        Technique(
            name="bf16",
            meaning="forward under bfloat16 autocast; parameters stay float32",
            code='with torch.autocast(device_type, dtype=torch.bfloat16): loss = ...',
        ),
        Technique(
            name="fp16",
            meaning="forward under float16 autocast with a gradient scaler; parameters stay float32",
            code='with torch.autocast(device_type, dtype=torch.float16): loss = ...; scaler = torch.amp.GradScaler()',
        ),
        Technique(
            name="pure-bf16",
            meaning="parameters, gradients and optimizer state in bfloat16",
            code="model.to(torch.bfloat16)",
        ),
        Technique(
            name="checkpoint",
            meaning="activations of repeated blocks are computed again in the backward",
            code="x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
            "  # transformers: model.gradient_checkpointing_enable()",
        ),
        Technique(name="batch", number="whole", meaning="another batch size", code="batch_size={value}"),
        Technique(
            name="accumulate", number="whole", usual=2,
            meaning="the batch in equal parts, one backward each, one step for all",
            code="for part in batch.chunk({value}): (loss_of(part) / {value}).backward()",
        ),
        Technique(
            name="clip", number="decimal", usual=1.0, meaning="gradients clipped by the norm of all",
            code="torch.nn.utils.clip_grad_norm_(model.parameters(), {value})",
        ),
        Technique(
            name="keep-gradients", meaning="gradients are set to zero and kept, not dropped",
            code="optimizer.zero_grad(set_to_none=False)",
        ),
        Technique(
            name="step-in-backward",
            meaning="each parameter is stepped as soon as its gradient is there, and the gradient dropped",
            code="p.register_post_accumulate_grad_hook(lambda p: (optimizers[p].step(), optimizers[p].zero_grad()))",
        ),
        Technique(
            name="optimizer-on-host",
            meaning="the optimizer's state and its step are on the host",
            code="torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW)",
            only_on="cuda",
            why_only="on a CPU the optimizer's state is in host memory already",
        ),
        Technique(
            name="offload-activations",
            meaning="what the backward needs is kept in host memory until then",
            code="with torch.autograd.graph.save_on_cpu(pin_memory=True): loss = ...",
            only_on="cuda",
            why_only="on a CPU activations are in host memory already",
        ),
        Technique(
            name="chunked-loss",
            meaning="last linear layer and cross entropy in chunks of rows: logits are never there as a whole",
            code="memfit.fit_to_budget(..., allow=['chunked-loss'])",
        ),
        Technique(
            name="lora", number="whole", usual=8,
            meaning="low-rank adapters beside frozen linear layers; the number is their rank",
            code="peft.get_peft_model(model, peft.LoraConfig(r={value}, target_modules='all-linear'))",
        ),
        Technique(
            name="compile", meaning="the model is compiled by torch.compile", code="model = torch.compile(model)",
            only_on="cuda", why_only="what the compiler makes for a CPU cannot be predicted",
        ),
        Technique(
            name="pinned-malloc",
            meaning="glibc's threshold for own mappings is pinned, so that freed tensors leave the process",
            code="MALLOC_MMAP_THRESHOLD_=65536 python train.py",
            only_on="cpu",
            why_only="it is a setting of the C heap, which a GPU's tensors are not in",
        ),
    )
}  # fmt: skip

MARK_BYTES = 7919
"""Size of the blocks that mark moments in a record whose parts are joined later: a prime that no tensor has."""
PLAIN = "plain"
"""The column without any technique."""

_ALL_AT_ONCE = "every gradient is stepped and dropped before the last one is there"
CONTRADICTIONS: tuple[tuple[str, str, str], ...] = (
    ("bf16", "fp16", "autocast has one type"),
    ("bf16", "pure-bf16", "the parameters are bfloat16 already: autocast has nothing to cast"),
    ("fp16", "pure-bf16", "autocast would cast bfloat16 parameters to float16"),
    ("step-in-backward", "accumulate", f"accumulating needs the gradients of all parts at once, and {_ALL_AT_ONCE}"),
    ("step-in-backward", "clip", f"clipping needs all gradients at once, and {_ALL_AT_ONCE}"),
    ("step-in-backward", "fp16", f"the scaler looks at all gradients before a step, and {_ALL_AT_ONCE}"),
    ("step-in-backward", "keep-gradients", "gradients are dropped as soon as they are stepped"),
    ("step-in-backward", "optimizer-on-host", "both replace the optimizer's step"),
    ("step-in-backward", "compile", "hooks on parameters run between compiled parts, which is not predicted"),
    ("optimizer-on-host", "fp16", "the scaler unscales gradients on the GPU, and the step is on the host"),
    ("chunked-loss", "bf16", "the loss is not cut into chunks under autocast"),
    ("chunked-loss", "fp16", "the loss is not cut into chunks under autocast"),
    ("chunked-loss", "compile", "the loss is not cut into chunks in a compiled model"),
    ("chunked-loss", "lora", "the last layer is frozen or has an adapter, and only a plain one can be cut"),
)  # fmt: skip
"""Pairs that do not go together, with the reason; the order within a pair means nothing."""


class ChosenTechnique(msgspec.Struct, frozen=True, kw_only=True):
    """A technique as a user wrote it."""

    name: str
    value: float | None = None

    @property
    def text(self) -> str:
        """As it is written: 'batch=8'."""
        return self.name if self.value is None else f"{self.name}={self.value:g}"

    @property
    def code(self) -> str:
        """The line of code that has it."""
        return TECHNIQUES[self.name].code.replace("{value}", "" if self.value is None else f"{self.value:g}")


class Recipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is put on a job: an optimizer instead of its own, and techniques."""

    optimizer: str = ""
    """As `job.torch_optimizers.make_optimizer` reads it; empty for the job's own."""
    techniques: tuple[ChosenTechnique, ...] = ()
    part: Literal["step", "all but the update", "the update alone"] = "step"
    """Which part of a step is run; the two parts of many recipes are traced apart and joined."""

    def value_of(self, name: str) -> float | None:
        """The number of a technique; None where it is not there or has none."""
        return next((choice.value for choice in self.techniques if choice.name == name), None)

    def has(self, name: str) -> bool:
        """Whether a technique is part of it."""
        return any(choice.name == name for choice in self.techniques)


def parse_techniques(text: str) -> tuple[ChosenTechnique, ...]:
    """Read 'bf16+checkpoint+batch=8'; 'plain' is none."""
    words = [word.strip() for word in text.split("+")]
    if words == [PLAIN]:
        return ()
    choices = tuple(_parse_choice(word, text) for word in words)
    names = [choice.name for choice in choices]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is there twice", found=text, hint="name each technique once")
    return choices


def techniques_text(choices: Sequence[ChosenTechnique]) -> str:
    """As a column is called: 'bf16+checkpoint', or 'plain'."""
    return "+".join(choice.text for choice in choices) or PLAIN


def contradiction(choices: Sequence[ChosenTechnique]) -> str:
    """Why these techniques do not go together; empty where they do."""
    names = {choice.name for choice in choices}
    return next((f"{a} and {b}: {why}" for a, b, why in CONTRADICTIONS if {a, b} <= names), "")


def missing_on(choices: Sequence[ChosenTechnique], kind: DeviceKind) -> str:
    """Which technique a device does not have, and why; empty where it has them all."""
    for choice in choices:
        technique = TECHNIQUES[choice.name]
        if technique.only_on not in (None, kind):
            return f"{choice.name}: {technique.why_only}"
    return ""


def _parse_choice(word: str, text: str) -> ChosenTechnique:
    name, equals, number = word.partition("=")
    technique = TECHNIQUES.get(name)
    if technique is None:
        near = difflib.get_close_matches(name, [*TECHNIQUES, PLAIN], n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"there is no technique {name!r}", found=text, hint=f"{hint}one of {', '.join(TECHNIQUES)}")
    if technique.number == "none":
        if equals:
            raise UsageError(f"{name} takes no number", found=word, hint=name)
        return ChosenTechnique(name=name)
    if not equals and technique.usual is not None:
        return ChosenTechnique(name=name, value=technique.usual)
    return ChosenTechnique(name=name, value=_parse_number(technique, word, number))


def _parse_number(technique: Technique, word: str, number: str) -> float:
    try:
        value = int(number) if technique.number == "whole" else float(number)
    except ValueError:
        value = 0
    if not 0 < value < 2**31:
        raise UsageError(f"{technique.name} needs a number above zero", found=word, hint=f"{technique.name}=8")
    return value
