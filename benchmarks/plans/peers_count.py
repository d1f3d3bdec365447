"""Peaks of a tool and of our plan, by a counter under torch's allocator that knows nothing of memfit.

    python -m benchmarks.plans.peers_count NAME TOOL PLAN     (in a process that has the counter preloaded)

The counter is `peers_counter.c`, compiled with `cc` when it is first needed. What it counts is the whole of the
process: the model, its batch and whatever the step makes.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("peers_counter.c")
PRELOAD = "LD_PRELOAD"


def count(name: str, tool: str, plan: Path) -> dict[str, int]:
    """Bytes of both sides; empty where there is no compiler."""
    library = counter_library()
    if library is None:
        return {}
    command = [sys.executable, "-m", "benchmarks.plans.peers_count", name, tool, str(plan)]
    done = subprocess.run(command, env={**os.environ, PRELOAD: library}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@functools.lru_cache(maxsize=1)
def counter_library() -> str | None:
    """The compiled counter, to be preloaded; None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = str(Path(tempfile.mkdtemp(), "counter.so"))
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


def main() -> None:
    """Print both peaks as JSON."""
    name, tool, plan = sys.argv[1:]
    import torch

    import memfit
    from benchmarks.plans import peers_torch as lab

    torch.set_num_threads(1)
    counter = ctypes.CDLL(os.environ[PRELOAD])
    counter.counted_live.restype = counter.counted_peak.restype = ctypes.c_long
    with lab.quiet_warnings():
        theirs = lab.build(name)
        attach = lab.peers_of(theirs, compiled=True)[tool]
        attach(theirs.model)
        found = {"theirs": _peak(lab, counter, theirs)}
        ours = lab.build(name)
        memfit.apply_plan(ours.model, plan)
        found["ours"] = _peak(lab, counter, ours)
    print(json.dumps(found))


def _peak(lab: Any, counter: Any, step: Any) -> int:
    """The most of the third step: what a first one makes for good (caches, compiled code) is there by then."""
    for _ in range(2):
        step.run()
    step.model.zero_grad(set_to_none=True)
    gc.collect()
    before = counter.counted_live()
    counter.counted_reset()
    step.run()
    return lab.fixed_bytes(step) + counter.counted_peak() - before


if __name__ == "__main__":
    main()
