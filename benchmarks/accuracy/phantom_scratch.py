"""What do single reductions and attention calls ask the allocator for on the phantom GPU? Recorded for tests.

    python -m benchmarks.accuracy.phantom_scratch FILE

Run with a CUDA build of torch. Shapes are drawn with a fixed seed; FILE (tests/predict/phantom_scratch.json) holds, for
each GPU and case, the requests of every fenced part in order, releases negative.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks.accuracy.phantom_scratch_job import FENCE_BYTES
from memfit.job.description import describe_job
from memfit.predict.devices.parse import parse_device
from memfit.predict.phantom.engine import predict_on_phantom
from memfit.records.timeline import Timeline

GPUS = ("cuda:a100-40gb", "cuda:rtx3060-12gb", "cuda:t4-16gb")
NUM_REDUCTIONS = 240
LONGEST = {1: 2**24, 2: 2**13, 3: 300, 4: 80}
"""The longest dimension, by how many there are."""


def reductions() -> list[dict[str, Any]]:
    """Sums over random dimensions of random shapes, half of them transposed."""
    draw = random.Random(7)
    cases = []
    for _ in range(NUM_REDUCTIONS):
        num_dims = draw.choice([1, 2, 2, 2, 3, 3, 4])
        most = math.log2(LONGEST[num_dims])
        even = draw.random() < 0.5
        shape = [2 ** draw.randint(0, int(most)) if even else int(2 ** (most * draw.random())) for _ in range(num_dims)]
        order = draw.sample(range(num_dims), num_dims) if draw.random() < 0.5 else list(range(num_dims))
        reduced = sorted(draw.sample(range(num_dims), draw.randint(1, num_dims)))
        dtype = draw.choice(["float32", "bfloat16", "float16", "float64"])
        cases.append({"shape": shape, "order": order, "reduced": reduced, "dtype": dtype})
    return cases


def attentions(gpu: str) -> list[dict[str, Any]]:
    """Sizes of heads on both sides of every limit; flash attention needs a GPU of the Ampere generation or later."""
    cases = []
    for kernel, dtype, head_size, key_heads, dropout in [
        *(("efficient", "float32", size, 4, drop) for size in (32, 64, 128, 192) for drop in (0.0, 0.1)),
        *(("efficient", "float16", size, 4, drop) for size in (32, 64, 96, 128, 192) for drop in (0.0, 0.1)),
        *(("flash", "float16", size, heads, 0.0) for size in (32, 64, 72, 128, 160, 256) for heads in (2, 4)),
    ]:
        for batch, queries, keys in ((2, 200, 200), (1, 64, 4096), (8, 512, 512)):
            sizes = {"batch": batch, "heads": 4, "key_heads": key_heads, "queries": queries, "keys": keys}
            cases.append({"kernel": kernel, "dtype": dtype, "head_size": head_size, "dropout": dropout, **sizes})
    return [case for case in cases if case["kernel"] != "flash" or "t4" not in gpu]


def parts_of(timeline: Timeline) -> list[list[int]]:
    """What lies between fences."""
    found: dict[int, int] = {}
    for span in timeline.spans:
        found[span.start] = span.num_bytes
        if span.end is not None:
            found[span.end] = -span.num_bytes
    parts: list[list[int]] = [[]]
    for place in sorted(found):
        if found[place] == FENCE_BYTES:
            parts.append([])
        elif found[place] != -FENCE_BYTES:
            parts[-1].append(found[place])
    return parts


def record(gpu: str) -> list[dict[str, Any]]:
    """Every case of one GPU with its requests: within a sum; within forward and backward of attention."""
    cases = [*reductions(), *attentions(gpu)]
    job = describe_job(f"{Path(__file__).with_name('phantom_scratch_job.py')}:scratch", {"cases": json.dumps(cases)})
    timeline = predict_on_phantom(job, parse_device(gpu), num_steps=1).timeline
    assert timeline is not None
    parts = iter(parts_of(timeline)[1:])
    for case in cases:
        num_parts = 1 if "reduced" in case else 2
        case["requests"] = [next(parts) for _ in range(num_parts)]
        next(parts)  # what is made between this case and the next
    return cases


def main() -> None:
    """Write the file."""
    recorded = {gpu: record(gpu) for gpu in GPUS}
    lines = [f'"{gpu}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for gpu, cases in recorded.items()]
    Path(sys.argv[1]).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
