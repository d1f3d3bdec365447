"""Layouts that users and other programs write: DeepSpeed's parts, numbers of layers, Megatron's layout string.

`0,10,20,41`       DeepSpeed's parts: where each stage begins, and the number of layers at the end
`10x10x21`         how many layers each stage has
`Ett|(tt|)*6mL`    Megatron's: one letter per layer (E embedding, t decoder, m prediction of further tokens, L loss),
                   a bar between stages, `(...)*6` and `t*3` repeat

A layout that does not cover the chain exactly is refused: layers are never dropped.
"""

from __future__ import annotations

import itertools
import re

from memfit.errors import UsageError
from memfit.records.pipeline import PipelineChain

LETTERS = "EtmL"
MOST_LETTERS = 100_000


def parse_layout(text: str, chain: PipelineChain) -> list[int]:
    """The last layer of every stage."""
    num_layers = len(chain.layers)
    if re.fullmatch(r"\s*\d+(\s*,\s*\d+)+\s*", text):
        return _from_parts([int(part) for part in text.split(",")], num_layers, text)
    if re.fullmatch(r"\s*\d+(\s*x\s*\d+)*\s*", text):
        return _from_counts([int(part) for part in text.split("x")], num_layers, text)
    if set(text) <= set(LETTERS + "|()*, 0123456789"):
        return _from_megatron(text, num_layers)
    raise UsageError("this is no layout", found=repr(text), hint="0,10,20,41 or 10x10x21 or Megatron's Ett|(tt|)*6mL")


def _from_parts(parts: list[int], num_layers: int, text: str) -> list[int]:
    if parts[0] != 0 or parts[-1] != num_layers or any(b <= a for a, b in itertools.pairwise(parts)):
        raise UsageError(
            f"the parts must rise from 0 to the {num_layers} layers of the chain", found=text,
            hint=f"for example 0,{num_layers // 2},{num_layers}",
        )  # fmt: skip
    return [part - 1 for part in parts[1:]]


def _from_counts(counts: list[int], num_layers: int, text: str) -> list[int]:
    if sum(counts) != num_layers or min(counts) < 1:
        raise UsageError(
            "the layout does not cover the chain", found=f"{text}: {sum(counts)} layers of {num_layers}",
            hint="as many layers as the chain has, at least one in each stage",
        )  # fmt: skip
    return [end - 1 for end in itertools.accumulate(counts)]


def _from_megatron(text: str, num_layers: int) -> list[int]:
    stages = unfolded(text).split("|")
    counts = [len(stage) for stage in stages]
    if sum(counts) != num_layers or min(counts) < 1:
        raise UsageError(
            "the layout does not cover the chain",
            found=f"{text}: {sum(counts)} letters in {len(stages)} stages, {num_layers} layers",
            hint="one letter for every layer of the chain (memfit pipeline lists them), none of the stages empty",
        )  # fmt: skip
    return [end - 1 for end in itertools.accumulate(counts)]


def unfolded(text: str) -> str:
    """Megatron's string with all repetitions written out."""
    plain = re.sub(r"[\s,]", "", text)
    while match := re.search(r"\(([^()]*)\)\*(\d+)|([EtmL|])\*(\d+)", plain):
        repeated = (match[1] if match[1] is not None else match[3]) * int(match[2] or match[4])
        plain = plain[: match.start()] + repeated + plain[match.end() :]
        if len(plain) > MOST_LETTERS:
            raise UsageError("the layout has too many layers", found=text[:80], hint="fewer repetitions")
    if set(plain) - set(LETTERS + "|"):
        raise UsageError("this is no layout", found=repr(text), hint="Ett|(tt|)*6mL")
    return plain.removesuffix("|")
