"""Texts that name an optimizer, read without torch: 'adamw-fused', 'muon+adamw', 'torchao.optim.AdamW8bit(lr=0.1)'.

text     = one ["+" one]                    the first for matrices, the second for the rest
one      = base {"-" word} ["(" items ")"]
base     = a name of torch.optim, package.Class, or FILE.py:Class
items    = option "=" value, or a text: the optimizer that this one wraps
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import msgspec

from memfit.errors import UsageError

OptionValue = bool | int | float | str | tuple[object, ...] | None
TORCH_CLASSES = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "rprop": "Rprop",
    "asgd": "ASGD",
    "adafactor": "Adafactor",
    "sparseadam": "SparseAdam",
    "muon": "Muon",
    "lbfgs": "LBFGS",
}
"""Short name -> class of torch.optim."""
NO_OPTIMIZER = "none"
"""No update at all: what every optimizer is compared with."""
WORDS: dict[str, dict[str, OptionValue]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "forloop": {"foreach": False},
    "momentum": {"momentum": 0.9},
    "amsgrad": {"amsgrad": True},
    "centered": {"centered": True},
}
"""Suffix -> the options it stands for."""
_ONE = re.compile(r"(?P<base>[^()]+\.py:[A-Za-z_]\w*|[A-Za-z_][\w.]*)(?P<words>(-\w+)*)(\((?P<items>.*)\))?", re.DOTALL)
_EXAMPLES = "'adamw-fused', 'sgd-momentum', 'muon+adamw', 'pytorch_optimizer.Lion', 'opt.py:Mine(beta=0.9)'"


class OptimizerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which optimizer is meant, before anything is imported."""

    base: str
    """A short name of torch, in small letters; 'package.Class'; or 'FILE.py:Class'."""
    words: tuple[str, ...] = ()
    options: dict[str, OptionValue] = {}
    """As written in parentheses; those of the words are not among them."""
    inner: OptimizerSpec | None = None
    """The optimizer that this one wraps."""
    rest: OptimizerSpec | None = None
    """The optimizer of the parameters that this one does not take."""

    @property
    def all_options(self) -> dict[str, OptionValue]:
        """Those of the words, then those in parentheses."""
        found: dict[str, OptionValue] = {}
        for word in self.words:
            found.update(WORDS[word])
        return {**found, **self.options}

    @property
    def package(self) -> str:
        """'torch', the first part of an import path, or the file."""
        if self.base in TORCH_CLASSES or self.base == NO_OPTIMIZER:
            return "torch"
        path, colon, _ = self.base.rpartition(":")
        return path if colon else self.base.partition(".")[0]

    def __str__(self) -> str:
        inner = [] if self.inner is None else [str(self.inner)]
        items = ", ".join(inner + [f"{name}={value!r}" for name, value in self.options.items()])
        own = "-".join((self.base, *self.words)) + (f"({items})" if items else "")
        return own if self.rest is None else f"{own}+{self.rest}"


def parse_optimizer(text: str) -> OptimizerSpec:
    """Read the name of an optimizer; nothing is imported.

    >>> parse_optimizer("Adam-fused(betas=(0.9, 0.95))").all_options
    {'fused': True, 'betas': (0.9, 0.95)}
    """
    parts = list(split_outside(text, "+")) or [""]
    if len(parts) > 2:
        hint = "FIRST+SECOND: matrices to the first, the rest to the second"
        raise UsageError(f"{text!r} joins more than two optimizers", hint=hint)
    specs = [_parse_one(part, text) for part in parts]
    return specs[0] if len(specs) == 1 else msgspec.structs.replace(specs[0], rest=specs[1])


def _parse_one(part: str, whole: str) -> OptimizerSpec:
    found = _ONE.fullmatch(part.strip())
    if found is None:
        raise UsageError("this does not name an optimizer", found=repr(whole), hint=_EXAMPLES)
    base, words = found["base"], tuple(found["words"].lower().split("-")[1:])
    for word in words:
        if word not in WORDS:
            hint = f"{', '.join('-' + known for known in WORDS)}, or (OPTION=VALUE)"
            raise UsageError(f"an optimizer cannot be {word!r}", found=whole, hint=hint)
    options: dict[str, OptionValue] = {}
    inner = None
    for item in split_outside(found["items"] or "", ","):
        name, equals, value = item.partition("=")
        if equals and name.strip().isidentifier():
            options[name.strip()] = _value(value.strip())
        elif inner is None and item.strip():
            inner = parse_optimizer(item.strip())
        else:
            raise UsageError(f"{item.strip()!r} is no option", found=whole, hint="OPTION=VALUE, separated by commas")
    short = base.lower() if "." not in base and ":" not in base else base
    return OptimizerSpec(base=short, words=words, options=options, inner=inner)


def _value(text: str) -> OptionValue:
    """A Python number, text, tuple, True, False or None (small letters too); everything else is text."""
    word = {"true": "True", "false": "False", "none": "None"}.get(text.lower(), text)
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    value = tuple(value) if isinstance(value, list) else value
    return value if isinstance(value, (bool, int, float, str, tuple, type(None))) else text


def split_outside(text: str, at: str) -> Iterator[str]:
    """The parts of a text between separators that stand outside of all parentheses and quotes."""
    depth, quote, start = 0, "", 0
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == at and depth == 0:
            yield text[start:index]
            start = index + 1
    if text[start:] or start:
        yield text[start:]
