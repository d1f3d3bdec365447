"""How far down does a budget go with the levers that `fit` applies, and does the training stay the same?

    python -m benchmarks.plans.levers [NAME ...] [--publish docs/fit.md]

For each model and set of levers: the smallest budget that `fit_to_budget` names is asked for again, then three steps
are trained. Peaks are counted under torch's allocator, in a process that has `peers_counter.c` preloaded; weights,
optimizer state and losses are compared with those of the plain training by digests.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks.plans.execution_results import publish
from benchmarks.plans.peers_count import PRELOAD, counter_library
from memfit.units import format_bytes

BEGIN, END = "<!-- levers: begin -->", "<!-- levers: end -->"
SETS = ((), ("step-in-backward",), ("chunked-loss",), ("step-in-backward", "chunked-loss"))
NAMES = ("GPT-2", "Llama", "MLP")
NUM_STEPS = 3
CHILD = "--child"
HEADER = (
    "| model (plain) | levers allowed | smallest budget | of plain | counted | losses | weights, state "
    "| slower, promised |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def main() -> None:
    """Run every model in processes of its own, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME")
    parser.add_argument("--publish", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.names or NAMES:
        plain, *fitted = _in_child(name)
        rows += [_row(name, levers, plain, found) for levers, found in zip(SETS, fitted, strict=True)]
        print("\n".join(rows[-len(SETS) :]), flush=True)
    if options.publish:
        publish(options.publish, HEADER + "\n".join(rows) + "\n", BEGIN, END)


def _in_child(name: str) -> list[dict[str, Any]]:
    """The plain training, then one for each set of levers."""
    library = counter_library()
    if library is None:
        raise SystemExit("peaks are counted by a library that cc builds, and there is no cc")
    command = [sys.executable, "-m", "benchmarks.plans.levers", CHILD, name]
    done = subprocess.run(command, env={**os.environ, PRELOAD: library}, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _row(name: str, levers: tuple[str, ...], plain: dict[str, Any], found: dict[str, Any]) -> str:
    equal = [found[what] == plain[what] for what in ("losses", "digests")]
    furthest = max(abs(a - b) / abs(b) for a, b in zip(found["losses"], plain["losses"], strict=True))
    cells = [
        f"{name} ({format_bytes(plain['peak_bytes'])})",
        " + ".join(levers) or "none",
        format_bytes(found["budget_bytes"]),
        f"{found['budget_bytes'] / plain['peak_bytes']:.2f}",
        format_bytes(found["peak_bytes"]),
        "bit-equal" if equal[0] else f"within {furthest:.0e}",
        "bit-equal" if equal[1] else "not bit-equal",
        f"{100 * (found['slowdown'] - 1):.0f} %",
    ]
    return f"| {' | '.join(cells)} |"


# ---- in the child ----------------------------------------------------------------------------------------------------


def child() -> None:
    """Train plainly or fitted, and print what came of it as JSON."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counter = ctypes.CDLL(os.environ[PRELOAD])
    counter.counted_live.restype = counter.counted_peak.restype = ctypes.c_long
    _one(counter, sys.argv[2], None)  # what a first step makes for good is there then
    for levers in (None, *SETS):
        print(json.dumps(_one(counter, sys.argv[2], levers)), flush=True)


def _one(counter: Any, name: str, levers: tuple[str, ...] | None) -> dict[str, Any]:
    """Train plainly (None), or fitted with these levers allowed."""
    gc.collect()
    before = counter.counted_live()
    parts = _build(name)
    found: dict[str, Any] = {} if levers is None else _fit(parts, levers)
    gc.collect()
    return found | _trained(parts, counter, before)


def _build(name: str) -> Any:
    """Model, batch, loss and optimizer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "MLP":
        model = nn.Sequential(*(nn.Sequential(nn.Linear(384, 384), nn.GELU()) for _ in range(8)), nn.Linear(384, 10))
        batch, loss = (torch.randn(128, 384), torch.randint(0, 10, (128,))), nn.functional.cross_entropy
        return model, batch, loss, torch.optim.AdamW(model.parameters())
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 6000, "bos_token_id": 1, "eos_token_id": 2}
    if name == "GPT-2":
        config = transformers.GPT2Config(n_layer=3, n_embd=128, n_head=4, n_positions=128, **sizes)
        model = transformers.GPT2LMHeadModel(config)
    else:
        layers = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = transformers.LlamaConfig(hidden_size=128, intermediate_size=344, **layers, **sizes)
        model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(3, 5999, (4, 96))
    model.train()
    return model, {"input_ids": tokens, "labels": tokens.clone()}, None, torch.optim.AdamW(model.parameters())


def _fit(parts: Any, levers: tuple[str, ...]) -> dict[str, Any]:
    import memfit
    from memfit.errors import DoesNotFit

    model, batch, loss, optimizer = parts
    fixed_bytes = sum(p.nbytes for p in model.parameters())
    try:
        memfit.fit_to_budget(model, batch, loss, optimizer, budget=fixed_bytes + 2**20, allow=levers)
        raise SystemExit("a budget that was meant to be too small holds")
    except DoesNotFit as refusal:
        budget_bytes = refusal.needed_bytes
    assert budget_bytes is not None
    fitted = memfit.fit_to_budget(model, batch, loss, optimizer, budget=budget_bytes, allow=levers)
    return {"budget_bytes": budget_bytes, "slowdown": fitted.plan.slowdown}


def _trained(parts: Any, counter: Any, before: int) -> dict[str, Any]:
    import torch

    from memfit.profile.reference_step import digest_of

    model, batch, loss, optimizer = parts
    torch.manual_seed(7)
    peak_bytes, losses = 0, []
    for _ in range(NUM_STEPS):
        gc.collect()
        counter.counted_reset()
        value = model(**batch).loss if loss is None else loss(model(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        peak_bytes = max(peak_bytes, counter.counted_peak() - before)
        losses.append(value.item())
        del value
    tensors = [*model.parameters(), *(t for entry in optimizer.state.values() for t in entry.values())]
    return {"peak_bytes": peak_bytes, "losses": losses, "digests": [digest_of(t).hex() for t in tensors]}


if __name__ == "__main__":
    child() if sys.argv[1:2] == [CHILD] else main()
