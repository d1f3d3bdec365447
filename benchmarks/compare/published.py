"""Is the published table of low-bit optimizers predicted: ViT-H, batch 8, bfloat16 autocast, without a GPU?

  CUDA_PYTHON -m benchmarks.compare.published

CUDA_PYTHON is an interpreter whose torch was built with CUDA (`make gpu-torch`), with torchao and bitsandbytes beside
it (pip install --no-deps). The table is that of torchao's README: timm's ViT-H with 630 million parameters on an A100,
compiled; here it is ViT-H/14 in plain torch, eager, on the phantom GPU, allocated bytes. Exit code 1 where a row has no
figure.
"""

from __future__ import annotations

import sys
from pathlib import Path

from memfit import api

PUBLISHED_GB = {
    "adamw-fused": 12.23,
    "bitsandbytes.optim.AdamW8bit": 8.32,
    "torchao.optim.AdamW8bit": 8.33,
    "torchao.optim.AdamW4bit": 7.72,
}
JOB = Path(__file__).with_name("torch_vit_huge.py")


def main() -> int:
    """Print the table; returns the exit code."""
    grid = api.compare_recipes(
        f"{JOB}:make", optimizers=list(PUBLISHED_GB), techniques=["bf16"], device="cuda:a100-40gb", engine="phantom"
    )
    print(f"torch {grid.torch_version}, {grid.engine}, {grid.took_seconds:.0f} s")
    print("| optimizer | published, GB | predicted, GB | difference |")
    print("|---|---:|---:|---:|")
    is_whole = True
    for cell in grid.cells:
        published = PUBLISHED_GB[cell.optimizer]
        peak = None if cell.predicted is None else cell.predicted.peak.value
        is_whole = is_whole and peak is not None
        found = f"- | {cell.reason}" if peak is None else f"{peak / 1e9:.2f} | {peak / 1e9 / published - 1:+.1%}"
        print(f"| {cell.optimizer} | {published} | {found} |")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
