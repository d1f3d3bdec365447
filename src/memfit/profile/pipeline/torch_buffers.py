"""Probe of the installed torch.distributed.pipelining for its receive buffers: for all micro-batches, or for a few.

The runtime is asked, never its version: a stage of two ranks is set up on the fake process group, in a process of its
own, for two numbers of micro-batches, and the tensors that it holds afterwards are counted. Private calls as read in
torch 2.13: `PipelineStage._prepare_forward_infra` makes the buffers; with static metadata nothing is sent.
"""

from __future__ import annotations

import functools
import subprocess
import sys

from memfit.errors import UnsupportedTorch

_TENSOR_BYTES = 1 << 16
_PROBE = f"""
import gc, warnings
warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
given = torch.zeros(1, {_TENSOR_BYTES // 4})

def buffers(count):
    stage = PipelineStage(torch.nn.Identity(), 1, 2, torch.device("cpu"), input_args=(given,), output_args=(given,))
    if hasattr(stage, "_inference_mode"):
        from torch.distributed.pipelining._utils import InferenceMode
        stage._inference_mode = InferenceMode.STATIC
    stage._prepare_forward_infra(count, (given,))
    found = set()
    for each in gc.get_objects():
        if isinstance(each, torch.Tensor) and each.device.type == "cpu":
            if each.untyped_storage().nbytes() == {_TENSOR_BYTES}:
                found.add(each.untyped_storage().data_ptr())
    del stage
    gc.collect()
    return len(found)

print(buffers(3), buffers(11))
"""


@functools.cache
def receives_all_micro_batches() -> bool:
    """Whether receive buffers grow with the number of micro-batches of a step."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )  # fmt: skip
        few, many = (int(word) for word in done.stdout.split()[-2:])
    except (subprocess.SubprocessError, ValueError, OSError) as error:
        found = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise UnsupportedTorch(
            "the pipelining of the installed torch could not be asked for its buffers",
            found=found[0] if found else type(error).__name__, hint="--runtime ideal",
        ) from None  # fmt: skip
    return many - few >= 8
