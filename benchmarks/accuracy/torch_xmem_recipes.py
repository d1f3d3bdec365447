"""Child of `phantom_recipes`: all jobs on one card in one process, each with every recipe; a line of JSON for each.

`python -m benchmarks.accuracy.torch_xmem_recipes DEVICE CUDNN` reads the rows from its input. The phantom is loaded
before torch, so what needs torch is imported late. Between two runs the allocator gives everything back.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from pathlib import Path
from typing import Any

from memfit.predict.devices.catalogue import described_gpu
from memfit.predict.devices.parse import context_of, parse_device
from memfit.predict.phantom.library.build import built_library
from memfit.predict.phantom.library.installed import InstalledTorch, find_torch
from memfit.predict.phantom.library.load import PhantomLibrary

NUM_STEPS = 4


def torch_with(cudnn: str) -> InstalledTorch:
    """The installed torch, with another cuDNN where a folder of one is named."""
    torch = find_torch()
    if not cudnn:
        return torch
    folder = Path(cudnn) / "nvidia" / "cudnn"
    return dataclasses.replace(torch, include=(folder / "include", *torch.include), cudnn_folder=folder / "lib")


def load(name: str, cudnn: str) -> PhantomLibrary:
    """Become the named GPU."""
    installed = torch_with(cudnn)
    device, gpu = described_gpu(parse_device(name))
    assert device.total_bytes is not None
    library = PhantomLibrary(built_library(installed), gpu, device.total_bytes, context_of(device).usual_bytes)
    library.use_cudnn(Path(installed.cudnn_folder or ""))
    return library


def reserved_by(row: dict[str, str], recipe: str) -> int | None:
    """Reserved bytes of one job; None when it runs out of memory."""
    import torch

    from benchmarks.accuracy.torch_xmem_loop import Habits, build
    from memfit.job.training import plain_step
    from memfit.predict.phantom.in_child.weights import SkippedWeights

    torch.backends.cudnn.enabled = recipe != "no cuDNN"
    torch.backends.cudnn.allow_tf32 = recipe != "no TF32"
    habits = Habits(frees_batch=recipe == "batch freed", zeroes="late" if recipe == "zeroed late" else "first")
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        with SkippedWeights().skipping():
            step = plain_step(build(row["model"], row["optimizer"], int(row["batch_size"]), habits=habits))
        for _ in range(NUM_STEPS):
            step()
    except torch.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_reserved()


def main() -> None:
    """Answer the rows."""
    asked: dict[str, Any] = json.load(sys.stdin)
    library = load(sys.argv[1], sys.argv[2])
    import torch

    library.use_kernels_for(torch.cuda.get_arch_list())
    print(json.dumps({"torch": str(torch.__version__), "cudnn": torch.backends.cudnn.version()}), flush=True)
    for row in asked["rows"]:
        found: dict[str, int | None] = {}
        for recipe in asked["recipes"]:
            found[recipe] = reserved_by(row, recipe)
            gc.collect()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
